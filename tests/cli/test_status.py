"""`bsfg status` as a person reads it: room, hours and what each consumer holds back, where there is something to
say."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from agent.cli.health.status import exit_status, text
from agent.health.brief import encode_brief, encode_health
from agent.health.problems import Level
from agent.health.snapshot import (
    BrokerStatus,
    CatchUpStatus,
    ConsumerStatus,
    EventStatus,
    NodeSnapshot,
    PacingStatus,
    PeerStatus,
    SourceStatus,
    StoreStatus,
    StreamStatus,
    UnreferencedStatus,
)
from agent.health.verdict import assess


def health_json(snapshot: NodeSnapshot, *, everything: bool = False) -> dict[str, Any]:
    """What /healthz answers."""
    found: dict[str, Any] = json.loads(encode_health(snapshot, assess(snapshot), everything=everything))
    return found


def told(snapshot: NodeSnapshot) -> str:
    """What the command prints for a snapshot."""
    return text(health_json(snapshot))


def snapshot(stream: StreamStatus, consumer: ConsumerStatus) -> NodeSnapshot:
    """A node with one stream and one consumer."""
    return NodeSnapshot("plant", "00", 1, 0, None, (stream,), (consumer,))


def test_status_without_limits_and_lag_shows_only_what_is_held() -> None:
    """What is not to be expected is not printed."""
    lines = told(
        snapshot(
            StreamStatus("facts.telemetry", 1, 12, 2_000_000),
            ConsumerStatus("idmz.t", "facts.telemetry", "idmz", "online", 12, 0, None, 0, 0.0),
        )
    ).splitlines()
    assert lines[1].endswith("offsets 1 to 12, 2.0 MB")
    assert lines[2].endswith("online, confirmed to 12, 0 behind")


def test_limits_and_hours() -> None:
    """The limit, the pace, the hours until it is met and until the first loss; what the consumer holds back."""
    stream = StreamStatus("facts.telemetry", 1, 12, 2_000_000, 10**7, 20.0, 1500.0, 5.5, 168.0, 90.0)
    consumer = ConsumerStatus("idmz.t", "facts.telemetry", "idmz", "offline", 2, 10, 30.0, 1_500_000, 78.0, 90.0)
    said = told(snapshot(stream, consumer))
    assert "2.0 MB of 10.0 MB, 1.5 kB/s, full in 5.5 h without confirmations, first loss in 90.0 h" in said
    assert "10 behind, oldest 30.0 s, holds back 1.5 MB" in said


def test_status_estimates_when_a_consumer_has_caught_up() -> None:
    """The status shows its read rate and the time left; a backlog that it has just begun to read is no outage."""
    consumer = ConsumerStatus("idmz.t", "facts.telemetry", "idmz", "online", 2, 10**7, 2 * 86_400.0)
    reading = replace(consumer, facts_per_s=50_000.0, seconds_left=200.0)
    stream = StreamStatus("facts.telemetry", 1, 10**7 + 2, 2_000_000)
    assert "10,000,000 behind, oldest 2 days, reads 50,000 facts/s, 3 min left" in told(snapshot(stream, reading))
    verdict = assess(snapshot(stream, reading))
    assert (verdict.level, verdict.alert) == (Level.LATE, False)
    assert verdict.reasons[0].text.endswith("online, catches up at 50,000 facts/s, 3 min left")
    assert assess(snapshot(stream, consumer)).alert


def test_status_shows_the_losses_of_a_source() -> None:
    """How many tags it has and how many values came; losses only where there were some."""
    source = SourceStatus("press", "opcua", True, values_total=9_000, tags=40)
    assert told(NodeSnapshot("plant", "00", 1, 0, None, sources=(source,))).endswith("connected, 40 tags, 9,000 values")
    quiet = replace(source, values_total=0, last_value_unix_ms=1_000)
    assert told(NodeSnapshot("plant", "00", 1, 0, None, sources=(quiet,))).endswith("0 values since the start")
    lossy = replace(source, lost_total=12, tags_bad=3)
    said = told(NodeSnapshot("plant", "00", 1, 0, None, sources=(lossy,)))
    assert said.endswith("40 tags (3 bad), 9,000 values, 12 lost")
    assert "! source press: 3 of 40 tags are bad" in said


def test_a_bad_sensor_is_told_from_a_dead_source() -> None:
    """By the verdict and by the exit status; both are alerts, and beside a dead source the sensor changes nothing."""
    sensor = SourceStatus("press", "opcua", True, values_total=9_000, tags=40, tags_bad=1)
    dead = SourceStatus("oven", "modbus", False, tags=4)
    for sources, verdict, status in (((sensor,), "late", 3), ((dead,), "broken", 1), ((sensor, dead), "broken", 1)):
        node = NodeSnapshot("plant", "00", 1, 0, None, sources=sources)
        found = health_json(node)
        assert (found["verdict"], found["alert"], exit_status(found)) == (verdict, True, status)
    assert exit_status(health_json(NodeSnapshot("plant", "00", 1, 0, None))) == 0


def test_status_shows_who_holds_the_log() -> None:
    """A large write-ahead log is a problem, and the process that holds it stands beneath; at its usual size it is
    none."""
    held = NodeSnapshot("plant", "00", 1, 0, None, store=StoreStatus(log_bytes=300_000_000))
    assert assess(replace(held, store=StoreStatus(log_bytes=64 * 2**20))).reasons == ()
    found = health_json(held)
    found["store"]["log_held_by"] = ["1234 (python3)"]
    said = text(found).splitlines()
    assert "  - store: its write-ahead log has 300 MB [log_held]" in said
    assert "      the write-ahead log is held by process 1234 (python3)" in said


def test_status_shows_the_events_of_a_source() -> None:
    """Where a source is asked for events: how many came, how many conditions stand, and how many were lost."""
    source = SourceStatus("press", "opcua", True, events=EventStatus(1_200, 0, 3, 5))
    said = told(NodeSnapshot("plant", "00", 1, 0, None, sources=(source,)))
    assert said.endswith("0 values, 1,200 events, 3 conditions retained")
    lossy = replace(source, events=EventStatus(1_200, 7, 3, 5))
    assert ", 1,200 events (7 lost), 3 conditions" in told(NodeSnapshot("plant", "00", 1, 0, None, sources=(lossy,)))


def test_status_estimates_when_a_pull_has_caught_up() -> None:
    """The status shows start, position, rate and time left; while the pull catches up it is no alert."""
    state = CatchUpStatus(1_000, 25.0, 50_000.0, 180.0)
    peer = PeerStatus("plant-a", "facts.telemetry", True, 1_000_000, 4_000_000, 900.0, 900.0, catch_up=state)
    closing = NodeSnapshot("idmz", "00", 1, 0, None, peers=(peer,))
    assert "1,000,000 of 4,000,000, catching up from 1,000: 25.0 % at 50,000 facts/s, 180 s left" in told(closing)
    assert (assess(closing).level, assess(closing).alert) == (Level.LATE, False)
    assert "25 % caught up at 50,000 facts/s, 3 min left" in assess(closing).reasons[0].text
    stuck = replace(peer, catch_up=replace(state, seconds_left=None))
    assert assess(replace(closing, peers=(stuck,))).alert
    assert "25.0 % at 50,000 facts/s" in told(replace(closing, peers=(stuck,)))


def test_status_names_the_bandwidth_limit_of_a_pull() -> None:
    """The status shows the limit, for how long it has delayed the pull and for how many bytes; the reason for a lag
    names the limit only where it is the cause."""
    pacing = PacingStatus(250_000, True, 90.4, 400_000, 12_300_000)
    peer = PeerStatus("plant-a", "facts.telemetry", True, 1_000, 4_000, 900.0, 900.0, pacing=pacing)
    waits = NodeSnapshot("idmz", "00", 1, 0, None, peers=(peer,))
    assert "limited to 250.0 kB/s: waited 90 s for 12.3 MB, waits now" in told(waits)
    assert "bytes_per_second_max = 250000" in assess(waits).reasons[0].hint
    goes_on = replace(waits, peers=(replace(peer, pacing=replace(pacing, waits=False)),))
    assert told(goes_on).endswith("waited 90 s for 12.3 MB")
    assert "bytes_per_second_max" not in assess(goes_on).reasons[0].hint


def test_status_names_artifacts_at_their_limit() -> None:
    """Artifacts, their limit, and what is lacking for one that waits, with the setting to change, as an alert; a page
    that waits for it says why. Where there are none and no limit, nothing is said."""
    limit = "artifacts_total_bytes_max"
    store = StoreStatus(
        artifact_bytes=48_000_000, artifact_bytes_max=50_000_000, artifact_bytes_lacking=1_500_000, artifact_limit=limit
    )
    why = "ArtifactsFull: artifacts_total_bytes_max reached"
    peer = PeerStatus("plant-a", "facts.reports", True, 3, 9, 0.0, page_waits=why)
    full = NodeSnapshot("idmz", "00", 1, 0, None, peers=(peer,), store=store)
    said = told(full)
    assert "artifacts 48.0 MB of 50.0 MB, artifacts_total_bytes_max reached: an artifact needs 1.5 MB more" in said
    assert "3 of 9, a page waits to be stored" in said
    first, second = assess(full).reasons
    assert (first.subject, first.level, first.alert) == ("artifacts", Level.FULL, True)
    assert "artifacts_total_bytes_max in [store]" in first.hint
    assert why in second.text
    quiet = replace(full, peers=(), store=replace(store, artifact_bytes_lacking=0))
    assert assess(quiet).level is Level.GOOD
    assert told(quiet).splitlines()[1:] == ["  artifacts 48.0 MB of 50.0 MB"]
    assert "artifacts" not in told(replace(quiet, store=StoreStatus(artifact_bytes_max=50_000_000)))
    disk = replace(full, store=replace(store, artifact_limit="artifact_disk_spare_bytes"))
    assert "artifact_disk_spare_bytes reached" in assess(disk).reasons[0].text
    assert "free disk space" in assess(disk).reasons[0].hint


def test_status_names_a_zone_at_its_quota_of_artifacts() -> None:
    """What each zone has here that no fact refers to is shown; a zone near its quota is a warning that names it."""
    brought = (UnreferencedStatus("evil", 9_500_000), UnreferencedStatus("plant-a", 1_000_000))
    store = StoreStatus(
        artifact_bytes=10_500_000, artifact_unreferenced=brought, artifact_unreferenced_bytes_max=10_000_000
    )
    node = NodeSnapshot("idmz", "00", 1, 0, None, store=store)
    said = told(node)
    assert "9.5 MB of 10.0 MB from evil, no fact refers to them" in said
    assert "1.0 MB of 10.0 MB from plant-a" in said
    (reason,) = assess(node).reasons
    assert (reason.level, reason.alert) == (Level.LATE, False)
    assert "zone evil has 9.5 of 10.0 MB" in reason.text


def test_a_changed_configuration_is_printed_as_the_page_shows_it() -> None:
    """The line about a node.toml that is not in force is the one in docs/operate/peers.md, and is no alert."""
    lines = told(NodeSnapshot("plant", "00", 1, 0, None, config_changed=True)).splitlines()[1:]
    assert lines[0].startswith("  - node.toml: ")
    assert "\n".join(lines) in (Path(__file__).parents[2] / "docs/operate/peers.md").read_text("utf-8")


def test_consequences_stand_beneath_their_cause_in_lines_of_a_terminal() -> None:
    """The cause with what to do, what follows from it beneath, and no line beyond 120 columns that can be broken."""
    broker = BrokerStatus("site", False, trouble="broker site (10.0.0.1:8883): " + "cannot be reached " * 12)
    peer = PeerStatus("plant-a", "facts.telemetry", False, 1, 9, 900.0, 900.0, broker="site")
    lines = told(NodeSnapshot("idmz", "00", 1, 0, None, brokers=(broker,), peers=(peer,))).splitlines()
    assert lines[0].startswith("idmz: broken: broker site: not connected: 10.0.0.1:8883: cannot be reached")
    marked = [line for line in lines if line.startswith(("  ! ", "      -> ", "      so "))]
    assert [line[:19].strip() for line in marked] == [
        "! broker site: no",
        "-> start the",
        "so peer plant",
    ]
    assert max(map(len, lines)) <= 120


def test_a_thousand_peers_fit_a_screen() -> None:
    """Of a thousand peers, three of which are silent and one of which is behind, the status shows these four first, the
    remedy of the silent ones once, and how many there are; the exit status is the same. With --all it shows them
    all."""
    peers = [PeerStatus(f"plant-{n:04}", "facts.telemetry", True, 9, 9, 0.0) for n in range(1_000)]
    for n in (7, 500, 900):
        peers[n] = replace(peers[n], connected=False)
    peers[600] = replace(peers[600], end_offset=50, lag_seconds=20.0)
    zones = tuple(peer.zone for peer in peers)
    broker = BrokerStatus("site", connected=True, zones=zones)
    node = NodeSnapshot("idmz", "00", 1, 0, None, peers=tuple(peers), brokers=(broker,))
    said = told(node).splitlines()
    assert len(said) < 30
    worst = [line.split()[1] for line in said if line.startswith("  peer ")]
    assert set(worst[:4]) == {f"plant-{n:04}/facts.telemetry" for n in (7, 500, 600, 900)}
    assert sum("-> start the node of that zone" in line for line in said) == 1
    assert "            the worst 10 of 1,000, 997 connected (--all prints all)" in said
    assert len(encode_health(node, assess(node))) < 20_000
    assert sum(line.startswith("  peer ") for line in text(health_json(node, everything=True)).splitlines()) == 1_000
    down = replace(node, brokers=(), peers=tuple(replace(peer, connected=False, lag_seconds=0.0) for peer in peers))
    assert "  and 990 more: 990 peer_silent (--all)" in told(down).splitlines()
    assert exit_status(health_json(down)) == exit_status(health_json(down, everything=True))
    down = replace(down, since={"broken": 1, **{reason.key: 2 for reason in assess(down).reasons}})
    assert len(health_json(down)["since"]) == 11
    assert len(encode_health(down, assess(down))) < 20_000
    lines = encode_brief(down, assess(down)).decode().splitlines()
    assert lines[1] == ' "verdict": "broken",', "what a monitoring reads comes first"
    assert sum(line.startswith('  {"problem":"peer_silent"') for line in lines) == 10
    assert (len(lines) <= 30, max(map(len, lines)) <= 360) == (True, True)
