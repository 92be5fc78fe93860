"""`bsfg status`, `fleet` and `diag` as a person reads them. That the status says what the page and the metrics say of
each problem is in tests/page/test_alarms.py."""

import json
import os
import sqlite3
import sys
import tarfile
import time
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from click.testing import CliRunner

from agent.cli import bsfg
from agent.cli.health import diag, page
from agent.cli.health.status import exit_status, lasting_readers, text
from agent.config import load
from agent.fact_store import FactStore
from agent.health.brief import encode_brief, encode_health
from agent.health.snapshot import (
    BrokerStatus,
    CatchUpStatus,
    ConsumerStatus,
    EventStatus,
    NodeSnapshot,
    PacingStatus,
    PairSnapshot,
    PeerStatus,
    SourceStatus,
    StoreStatus,
    StreamStatus,
    UnreferencedStatus,
)
from agent.health.verdict import assess
from tests.health.conftest import NOW_MS
from tests.page.zones import Zones, gateway

NODE = NodeSnapshot("plant", "00", 1, 0, None)
STREAM = StreamStatus("facts.telemetry", 1, 12, 2_000_000)
LIMITED = StreamStatus("facts.telemetry", 1, 12, 2_000_000, 10**7, 20.0, 1500.0, 5.5, 168.0, 90.0)
CONSUMER = ConsumerStatus("idmz.t", "facts.telemetry", "idmz", "online", 12, 0, None, 0, 0.0)
BEHIND = ConsumerStatus("idmz.t", "facts.telemetry", "idmz", "offline", 2, 10, 30.0, 1_500_000, 78.0, 90.0)
READING = replace(BEHIND, behind_facts=10**7, oldest_unconfirmed_age_s=2 * 86_400.0, facts_per_s=5e4, seconds_left=2e2)
SOURCE = SourceStatus("press", "opcua", True, values_total=9_000, tags=40)
PEER = PeerStatus("plant-a", "facts.telemetry", True, 1_000_000, 4_000_000, 900.0, 900.0)
CATCH_UP = CatchUpStatus(1_000, 25.0, 50_000.0, 180.0)
PACING = PacingStatus(250_000, True, 90.4, 400_000, 12_300_000)
ARTIFACTS = StoreStatus(artifact_bytes=48_000_000, artifact_bytes_max=50_000_000)
REFUSED = replace(
    ARTIFACTS, artifact_bytes=0, artifact_bytes_lacking=1_500_000, artifact_limit="artifacts_total_bytes_max"
)
BROUGHT = (UnreferencedStatus("evil", 9_500_000), UnreferencedStatus("plant-a", 1_000_000))
QUOTA = replace(ARTIFACTS, artifact_unreferenced=BROUGHT, artifact_unreferenced_bytes_max=10**7)
LINES: list[tuple[str, Any, str]] = [
    ("streams", STREAM, "offsets 1 to 12, 2.0 MB"),
    ("streams", replace(STREAM, first_offset=13, end_offset=12, bytes=0), "no facts, 0.0 MB"),
    ("streams", LIMITED, "2.0 MB of 10.0 MB, 1.5 kB/s, full in 5.5 h without confirmations, first loss in 90.0 h"),
    ("streams", replace(LIMITED, hours_until_ttl_loss=167.98), "full in 5.5 h without confirmations"),
    ("streams", replace(LIMITED, hours_until_full=0.0, hours_until_ttl_loss=0.0), "full in 0.0 h without confirmations, first loss in 0.0 h"),
    ("consumers", CONSUMER, "online, confirmed to 12, 0 behind"),
    ("consumers", BEHIND, "10 behind, oldest 30.0 s, holds back 1.5 MB"),
    ("consumers", READING, "10,000,000 behind, oldest 2 days, reads 50,000 facts/s, 3 min left, holds back 1.5 MB"),
    ("consumers", replace(READING, oldest_unconfirmed_age_s=0.3), "10,000,000 behind, oldest 0.3 s, holds back 1.5 MB"),
    ("sources", SOURCE, "connected, 40 tags, 9,000 values"),
    ("sources", replace(SOURCE, values_total=0, last_value_unix_ms=1_000), "0 values since the start"),
    ("sources", replace(SOURCE, lost_total=12, tags_bad=3), "40 tags (3 bad), 9,000 values, 12 lost"),
    ("sources", replace(SOURCE, lost_total=12, gaps_open=2), "9,000 values, 12 lost, 2 gaps to fill from history"),
    ("sources", replace(SOURCE, events=EventStatus(12, 0, 3, 5)), "values, 12 events, 3 conditions retained"),
    ("sources", replace(SOURCE, events=EventStatus(12, 7, 3, 5)), ", 12 events (7 lost), 3 conditions retained"),
    ("peers", replace(PEER, catch_up=CATCH_UP), " from 1,000: 25.0 % at 50,000 facts/s, 180 s left"),
    ("peers", replace(PEER, catch_up=replace(CATCH_UP, seconds_left=None)), "25.0 % at 50,000 facts/s"),
    ("peers", replace(PEER, pacing=PACING), "limited to 250.0 kB/s: waited 90 s for 12.3 MB, waits now"),
    ("peers", replace(PEER, pacing=replace(PACING, waits=False)), "waited 90 s for 12.3 MB"),
    ("peers", replace(PEER, connected=False, blocked=True), " blocked, 1,000,000 of 4,000,000"),
    ("peers", replace(PEER, page_waits="full"), "1,000,000 of 4,000,000, a page waits to be stored"),
    ("store", ARTIFACTS, "\n  artifacts 48.0 MB of 50.0 MB"),
    ("store", REFUSED, "artifacts 0.0 MB of 50.0 MB, artifacts_total_bytes_max reached: an artifact needs 1.5 MB more"),
    ("store", QUOTA, "9.5 MB of 10.0 MB from evil, no fact refers to them\n            1.0 MB of 10.0 MB from plant-a, no fact refers to them"),
]  # fmt: skip
ZONES = 23
SETTINGS = """[node]
zone = "plant-a"
[[notify]]
name = "ops"
webhook_url = "https://chat.example/hooks/T0PSECRET"
[[opcua]]
name = "plc"
url = "opc.tcp://plc:4840"
tags_file = "plc.csv"
  password_file = "plc.password"
user_name = 'hmi'
"""


def health_json(snapshot: NodeSnapshot, *, everything: bool = False) -> dict[str, Any]:
    """What /healthz answers."""
    found: dict[str, Any] = json.loads(encode_health(snapshot, assess(snapshot), everything=everything))
    return found


def told(snapshot: NodeSnapshot) -> str:
    """What the command prints for a snapshot."""
    return text(health_json(snapshot))


@pytest.mark.parametrize("kind, part, said", LINES)
def test_the_line_of_a_part(kind: str, part: Any, said: str) -> None:
    """Each part has a line, which ends with what is to be said of it now, and with nothing else."""
    plain = next(part for known, part, _ in LINES if known == kind)
    assert told(replace(NODE, **{kind: part if kind == "store" else (plain, part)})).endswith(said)


def test_states_stand_in_one_column() -> None:
    """Beside a short name, one that is longer than the usual column."""
    sources = (SOURCE, replace(SOURCE, name="filling-line-3-north-palletiser"))
    lines = told(replace(NODE, streams=(STREAM,), sources=sources)).splitlines()[1:]
    assert {line.index(state) for line in lines for state in ("offsets 1", "connected,") if state in line} == {44}


def test_a_bad_sensor_is_told_from_a_dead_source() -> None:
    """By the verdict and by the exit status; beside a dead source the sensor changes nothing. Artifacts are not named
    where there are none."""
    sensor, dead = replace(SOURCE, tags_bad=1), SourceStatus("oven", "modbus", False, tags=4)
    for sources, verdict, status in (((sensor,), "late", 3), ((sensor, dead), "broken", 1)):
        found = health_json(replace(NODE, sources=sources))
        assert (found["verdict"], found["alert"], exit_status(found)) == (verdict, True, status)
    assert told(replace(NODE, store=StoreStatus(artifact_bytes_max=50_000_000))) == "plant: good"


def test_status_shows_who_holds_the_log() -> None:
    """A large write-ahead log is a problem, and the process that holds it stands beneath; at its usual size it is
    none."""
    held = replace(NODE, store=StoreStatus(log_bytes=300_000_000))
    assert assess(replace(held, store=StoreStatus(log_bytes=64 * 2**20))).reasons == ()
    found = health_json(held)
    found["store"]["log_held_by"] = ["1234 (python3)"]
    said = text(found).splitlines()
    assert "  - store: its write-ahead log has 300 MB [log_held]" in said
    assert "      the write-ahead log is held by process 1234 (python3)" in said


def test_a_changed_configuration_is_printed_as_the_page_shows_it() -> None:
    """The line about a node.toml that is not in force is the one in docs/operate/peers.md, and is no alert."""
    lines = told(replace(NODE, config_changed=True)).splitlines()[1:]
    assert lines[0].startswith("  - node.toml: ")
    assert "\n".join(lines) in (Path(__file__).parents[2] / "docs/operate/peers.md").read_text("utf-8")


@pytest.mark.parametrize("columns", [80, 300])
def test_consequences_stand_beneath_their_cause_in_lines_of_a_terminal(
    monkeypatch: pytest.MonkeyPatch, columns: int
) -> None:
    """The cause with what to do, what follows from it beneath, and no line beyond 120 columns that can be broken, or
    the terminal's."""
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.setattr(sys, "stdout", Mock(isatty=lambda: True))
    broker = BrokerStatus("site", False, trouble="broker site (10.0.0.1:8883): " + "cannot be reached " * 12)
    peer = PeerStatus("plant-a", "facts.telemetry", False, 1, 9, 900.0, 900.0, broker="site")
    lines = told(replace(NODE, brokers=(broker,), peers=(peer,))).splitlines()
    assert lines[0].startswith("plant: broken: broker site: not connected: 10.0.0.1:8883: cannot be reached")
    marked = [line for line in lines if line.startswith(("  ! ", "      -> ", "      so "))]
    assert [line[:19].strip() for line in marked] == ["! broker site: no", "-> start the", "so peer plant"]
    assert max(map(len, marked)) <= min(columns, 120)
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
    node = replace(NODE, peers=tuple(peers), brokers=(broker,), zones_accepted=zones)
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


def test_the_worst_ten_and_a_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of many zones that are not good ten are printed, with how many there are; --all, words and --json print all that
    are meant. The command of the worst comes last."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "node.toml").write_text('[node]\nzone = "idmz"\n')
    (tmp_path / "state").mkdir()
    with FactStore.open(tmp_path / "state" / "facts.db", "idmz") as store:
        Zones(store).send(*(gateway(f"plant-{number:02}", NOW_MS) for number in range(ZONES)))  # silent since then

    def fleet(*words: str) -> list[str]:
        done = CliRunner().invoke(bsfg, ["fleet", *words], catch_exceptions=False)
        assert done.exit_code == 1
        return done.output.splitlines()

    sentence, _, _, *rows, more, hint = fleet()
    assert sentence == f"{ZONES} of {ZONES} zones are broken."
    assert [row.split()[1] for row in rows] == [f"plant-{number:02}" for number in range(10)]
    assert more == f"the worst 10 of {ZONES} that are not good (--all prints all)"
    assert hint.startswith("plant-00: -> ")
    assert len(fleet("--all")) == ZONES + 4
    assert len(fleet("plant-1")) == 10 + 4
    assert fleet("no-such-zone") == [sentence], "an operator must act, whatever is looked for"
    assert [json.loads(line)["level"] for line in fleet("--json")] == ["broken"] * ZONES


def test_a_zone_that_no_peer_brings_any_more_is_gone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What node.toml names is the fleet, as on the page: a plant that was removed does not alarm for a week."""
    monkeypatch.chdir(tmp_path)
    broker = '[[broker]]\nname = "b"\nhost = "h"\nca_file = "a"\ncert_file = "b"\nkey_file = "c"\n'
    peer = '[[peer]]\nzone = "hub"\nbroker = "b"\npulls = ["facts.telemetry"]\nrelays = ["plant-a"]\n'
    (tmp_path / "node.toml").write_text(f'[node]\nzone = "idmz"\n{broker}{peer}')
    (tmp_path / "state").mkdir()
    now_ms = time.time_ns() // 1_000_000 + 60_000
    with FactStore.open(tmp_path / "state" / "facts.db", "idmz") as store:
        Zones(store).send(gateway("plant-a", now_ms), gateway("plant-b", NOW_MS), gateway("idmz", now_ms))
    done = CliRunner().invoke(bsfg, ["fleet", "--all", "--json"], catch_exceptions=False)
    assert {json.loads(line)["zone"] for line in done.output.splitlines()} == {"plant-a", "idmz"}
    assert done.exit_code == 0
    tail, found = page._look(load(tmp_path / "node.toml"), None, 120)
    assert tail is not None
    tail._reader.close()
    assert not [line for line in found if "plant-b" in line]


def test_the_gateways_of_a_plant_are_beneath_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One line for the plant, one for each of its two gateways, the one that leads first; they count as one zone."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "node.toml").write_text('[node]\nzone = "idmz"\n')
    (tmp_path / "state").mkdir()
    now_ms = time.time_ns() // 1_000_000 + 60_000
    pair = PairSnapshot("plant-a", "leads", 7, "plant-a-2", "plant-a", now_ms, "follows", 200)
    other = replace(pair, role="follows", partner="plant-a-2", partner_state="leads")
    with FactStore.open(tmp_path / "state" / "facts.db", "idmz") as store:
        plant = gateway("plant-a", now_ms)
        Zones(store).send(replace(plant, pair=other), replace(plant, node="plant-a-2", pair=pair))
    done = CliRunner().invoke(bsfg, ["fleet", "--all"], catch_exceptions=False)
    sentence, _, _, *rows = done.output.splitlines()
    assert (sentence, done.exit_code) == ("The one zone is good.", 0)
    assert [row.split()[:2] for row in rows] == [["good", "plant-a"], ["good", "plant-a-2"], ["good", "plant-a"]]
    assert [row.split()[-1] for row in rows[1:]] == ["leads", "follows"]


def test_what_could_be_secret_is_hidden() -> None:
    """Values of such names go, in any form of quotes and indentation; names of files, and all else, stay."""
    found = diag.without_secrets(SETTINGS)
    assert "T0PSECRET" not in found
    assert "hmi" not in found
    assert 'webhook_url = "hidden"' in found
    assert 'password_file = "plc.password"' in found
    assert found.count("\n") == SETTINGS.count("\n")


@pytest.mark.parametrize(
    "text",
    [
        'notify = [{ name = "x", smtp_password_file = "mail", webhook_url = "https://h/T0PSECRET" }, { name = "y" }]',
        "'webhook_url' = 'T0PSECRET'",
        'notify."webhook_url"="T0PSECRET"',
        '# webhook_url = "T0PSECRET"',
        'url = "opc.tcp://op:T0PSECRET@plc:4840"',
        'webhook_template = """\n{"routing_key": "T0PSECRET"}\n"""\nname = "x"',
        "webhook_template = '''\nT0PSECRET",
    ],
)
def test_a_secret_is_hidden_in_any_form_of_toml(text: str) -> None:
    """Inline tables, quoted and dotted keys, comments, and strings of many lines, also one whose end is missing."""
    found = diag.without_secrets(f'{text}\nzone = "plant-a"')
    assert "T0PSECRET" not in found
    assert found.count("\n") == text.count("\n") + 1
    assert ('zone = "plant-a"' in found) is not text.startswith("webhook_template = '''")


def test_it_asks_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The list is shown; with a no there is no file, with a yes each part is in it, and only its owner may read it."""
    (tmp_path / "node.toml").write_text(SETTINGS.partition("[[opcua]]")[0])
    monkeypatch.setattr(diag, "_output", lambda words: " ".join(words[2:]))
    file = tmp_path / "diag.tar.gz"
    words = ["diag", "--config", str(tmp_path / "node.toml"), "--out", str(file)]
    refused = CliRunner().invoke(bsfg, words, input="n\n")
    assert (refused.exit_code, "status.json" in refused.output, file.exists()) == (1, True, False)
    nobody = CliRunner().invoke(bsfg, words, input="")
    assert (nobody.exit_code, "no terminal to ask; give --yes" in nobody.output, file.exists()) == (2, True, False)
    assert CliRunner().invoke(bsfg, words, input="y\n").exit_code == 0
    with tarfile.open(file) as tar:
        names = {Path(name).name for name in tar.getnames()}
        settings = tar.extractfile("bsfg-diag/node.toml")
        assert settings is not None
        assert b"T0PSECRET" not in settings.read()
    assert {"node.toml", "status.json", "log.txt", "versions.json"} <= names
    assert file.stat().st_mode & 0o777 == 0o600


def test_a_reader_that_does_not_end_is_named(tmp_path: Path) -> None:
    """Only while its transaction is open: a connection alone holds nothing."""
    file = tmp_path / "facts.db"
    assert lasting_readers(file) == []
    with closing(sqlite3.connect(file, isolation_level=None)) as reader:
        reader.executescript("PRAGMA journal_mode=WAL; CREATE TABLE fact (value); INSERT INTO fact VALUES (1)")
        assert lasting_readers(file) == []
        reader.execute("BEGIN")
        reader.execute("SELECT * FROM fact").fetchall()
        (found,) = lasting_readers(file)
        assert found.split()[0] == str(os.getpid())
        reader.execute("COMMIT")
        assert lasting_readers(file) == []
