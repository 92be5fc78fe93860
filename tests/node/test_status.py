"""The node's status: a value that cannot be read is missing, logged once, and never ends the node."""

import asyncio
import hashlib
import os
import time
from collections.abc import Callable
from dataclasses import fields, replace
from datetime import UTC, datetime, timedelta
from errno import EMFILE
from functools import partial
from itertools import permutations
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import pytest

from agent.config import ConfigFile
from agent.fact_store import FactStore
from agent.fact_store.core.errors import ArtifactsFull, StoreUnusable
from agent.fact_store.core.records import NO_CONSUMER, Incident
from agent.fact_store.read.forecast import ConsumerSpace, StoreSpace, StreamSpace
from agent.health.consumer_lag import NOTICED_S
from agent.health.samples import health_samples
from agent.health.snapshot import (
    AbuseStatus,
    CatchUpStatus,
    ComparisonStatus,
    EventStatus,
    PacingStatus,
    PeerStatus,
    UnreferencedStatus,
)
from agent.health.verdict import assess, since_of
from agent.ingest import Ingest, IngestPorts, SourceStatistics
from agent.ingest.lifecycle import State
from agent.ingest.supervision import EventStatistics
from agent.local_socket.serving import RequestHandler
from agent.message import Envelope, Fact, Message, Sample, TagDefinition
from agent.node import status
from agent.node.broker_runtime import BrokerRuntime
from agent.node.health_recorder import HealthRecorder
from agent.node.reload import Reloader
from agent.node.status import ABUSES_S_MAX, StatusCollector, read_abuses
from agent.node.trust import TrustFiles
from agent.replication.mqtt.link import LinkStatistics
from agent.replication.protocol.messages import ConfirmReceipt
from agent.replication.pulling.anti_entropy import AntiEntropyStatistics
from agent.replication.pulling.catch_up import CatchUp
from agent.replication.pulling.puller import Pacing, PullStatistics
from agent.replication.pulling.receiving.pull_events import Asking, ReceiverCounters
from agent.replication.serving.server import ServerStatistics
from agent.settings.node import IdentitySettings, NodeSettings
from agent.settings.store import StoreSettings, StreamSettings
from agent.telemetry import Telemetry
from tests.fact_store.making import crowd_incidents
from tests.waiting import wait_until_async

STREAM = "facts.operational"


def collector_of(
    store: FactStore, folder: Path, file: ConfigFile | None = None, clock_s: Callable[[], float] = time.monotonic
) -> StatusCollector:
    """The collector of a node without peers and sources."""
    settings, ingest = (
        NodeSettings(IdentitySettings("plant-a", folder)),
        Ingest("plant-a", (), {}, IngestPorts(store.appends)),
    )
    file = file or ConfigFile(folder / "node.toml")
    reloader = Reloader(settings, file, TrustFiles(settings, store), not_carried_out, asyncio.Event())
    return StatusCollector(store, {}, ingest, Telemetry(), reloader, clock_s)


async def not_carried_out(*_: object) -> None:
    """Nothing is reloaded here."""


def with_a_consumer_behind(folder: Path) -> FactStore:
    """A store with one message that a consumer has not confirmed, and another stream with three, whose consumer has
    nothing to confirm."""
    store = FactStore.open(folder / "facts.db", "plant-a")
    for stream, consumer, start, count in ((STREAM, "mes", "oldest", 1), ("quality", "lab", "end", 3)):
        messages = [
            Message(Envelope(f"m{n}", "plant-a", "*", 1_700_000_000_000), Fact("batch:B-1", "done", b"1"))
            for n in range(1, count + 1)
        ]
        store.appends.append_messages(stream, messages).result()
        store.consumers.register(consumer, "plant-a", stream, start).result()  # type: ignore[arg-type]
    return store


def test_a_consumers_age_counts_from_its_registration(store: FactStore, tmp_path: Path) -> None:
    """The age counts neither from the source time of the facts, years ago, nor from their arrival before the consumer
    registered."""
    store.appends.define([TagDefinition("tag:line1/t1")]).result()
    store.appends.append_samples("facts.telemetry", [Sample(1, 1, 1.0, 0)]).result()
    store.consumers.register("mes", "plant-a", "facts.telemetry", "oldest").result()
    collector, kept = collector_of(store, tmp_path), ConsumerSpace("mes", "facts.telemetry", 100, 72.0, None)
    collector._from_disk.space = StoreSpace(0, None, None, None, (), (kept,))
    (consumer,) = collector.snapshot().consumers
    assert consumer.behind_facts == 1
    assert consumer.oldest_unconfirmed_age_s is not None
    assert consumer.oldest_unconfirmed_age_s < 60
    assert consumer.hours_held == 72.0


def test_the_read_rate_of_a_consumer(tmp_path: Path) -> None:
    """It is computed from one refresh to the next, by the node's clock."""
    now_s = 100.0
    with with_a_consumer_behind(tmp_path) as store:
        collector = collector_of(store, tmp_path, clock_s=lambda: now_s)
        collector._sample_consumers()
        messages = [
            Message(Envelope(f"m{n}", "plant-a", "*", 1), Fact("batch:B-1", "done", b"1")) for n in range(2, 12)
        ]
        store.appends.append_messages(STREAM, messages).result()
        store.consumers.confirm("mes", 5).result()
        now_s = 102.0
        collector._sample_consumers()
        behind, level = collector.snapshot().consumers
        assert (behind.name, behind.facts_per_s, behind.behind_facts) == ("mes", 2.5, 6)
        assert behind.seconds_left is None, "it has more before it than at the first look"
        assert (level.name, level.facts_per_s, level.behind_facts) == ("lab", None, 0)


@pytest.mark.parametrize(
    "read, error",
    [("space", StoreUnusable("disk I/O error", "check the disk")), ("integrity", OSError(EMFILE, "no more files"))],
)
def test_what_cannot_be_read_does_not_end_the_node(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, read: str, error: Exception
) -> None:
    """A disk error, or a folder that cannot be listed, costs the values from the disk and is logged once; the others
    are there."""
    with with_a_consumer_behind(tmp_path) as store:
        as_before = getattr(store, read)
        monkeypatch.setattr(store, read, Mock(side_effect=error))
        collector = collector_of(store, tmp_path)
        for _ in range(3):
            assert collector._read_from_disk() is None
        snapshot = collector.snapshot()
        assert snapshot.store_fill_percent is None
        assert [(stream.name, stream.end_offset) for stream in snapshot.streams] == [(STREAM, 1), ("quality", 3)]
        assert [record.message for record in caplog.records] == ["status_unreadable"]
        with monkeypatch.context() as well:
            well.setattr(store, read, as_before)
            assert collector._read_from_disk() is not None
        assert collector._read_from_disk() is None
    assert [record.message for record in caplog.records] == ["status_unreadable"] * 2, "it came back"


def test_space_of_streams_and_consumers(tmp_path: Path) -> None:
    """Space, fill level and hours come from the store's own limits and the stream's own time to live."""
    limits = [
        StreamSettings(STREAM, keep_hours=1.0, ttl_hours=10.0, bytes_max=1024 * 1024),
        StreamSettings("quality", keep_hours=1.0, ttl_hours=20.0, bytes_max=2 * 1024 * 1024),
    ]
    with with_a_consumer_behind(tmp_path) as store:
        collector = collector_of(store, tmp_path)
        collector._read_from_disk()
        for stream in collector.snapshot().streams:
            assert stream.own_end == f"{store.zone}:{store.life.hex()}:{store.end_offset(stream.name)}"
    settings = StoreSettings(disk_free_bytes_min=0, ballast_bytes=0)
    with FactStore.open(tmp_path / "facts.db", "plant-a", settings=settings, streams=limits) as store:
        collector = collector_of(store, tmp_path)
        collector._from_disk.space = collector._read_from_disk()
        snapshot = collector.snapshot()
        (stream, other), (level, consumer) = snapshot.streams, snapshot.consumers
        assert (stream.bytes_max, stream.ttl_hours) == (1024 * 1024, 10.0)
        assert stream.fill_percent == pytest.approx(100 * stream.bytes / 1024 / 1024)
        assert (other.bytes_max, other.ttl_hours, other.fill_percent) == (2 * 1024 * 1024, 20.0, 0.0)
        assert snapshot.store_fill_percent is not None
        assert snapshot.store_fill_percent >= stream.fill_percent
        assert (level.bytes_held, level.hours_held, level.hours_until_ttl_loss) == (0, 0.0, None)
        assert consumer.bytes_held == stream.bytes > 0
        assert consumer.hours_held is not None
        assert consumer.hours_until_ttl_loss == pytest.approx(10.0 - consumer.hours_held)
        assert stream.hours_until_ttl_loss == consumer.hours_until_ttl_loss


def test_the_fill_of_a_store_is_that_of_its_nearest_limit(store: FactStore, tmp_path: Path) -> None:
    """Of its own, or of any stream that has one: the verdict warns of a stream that is nearly full while the disk has
    room."""
    collector = collector_of(store, tmp_path)
    unlimited = StreamSpace("no.limit", 0, None, None, None, None, None, None)
    for of_store, *of_streams in permutations((3.0, 50.0, 90.0)):
        streams = [replace(unlimited, name=f"limit{n}", fill_percent=fill) for n, fill in enumerate(of_streams)]
        collector._from_disk.space = StoreSpace(0, None, of_store, None, (unlimited, *streams), ())
        assert collector.snapshot().store_fill_percent == 90.0
    collector._from_disk.space = StoreSpace(0, None, None, None, (unlimited,), ())
    assert collector.snapshot().store_fill_percent is None


def pull_statistics(**some: object) -> PullStatistics:
    """The statistics of a pull, 0 where not given."""
    names = [field.name for field in fields(PullStatistics)]
    fixed = {"peer_node": "plant-b", "catch_up": None, "counters": ReceiverCounters()}
    return PullStatistics(**(dict.fromkeys(names, 0) | fixed | some))  # type: ignore[arg-type]


def test_the_reasons_that_delay_a_pull(store: FactStore, tmp_path: Path) -> None:
    """The status shows the peer's bandwidth limit, in seconds and whether it delays the pull now, and why a page is not
    stored."""
    collector = collector_of(store, tmp_path)
    pacing = Pacing(50_000, 8_863, 1_831, 438_602)
    for asking in (Asking.PACED, Asking.WAITING):
        found = collector._peer(pull_statistics(asking=asking, pacing=pacing, page_waits="full"))
        assert found.pacing == PacingStatus(50_000, asking is Asking.PACED, 8.863, 1_831, 438_602)
        assert found.page_waits == "full"
    assert collector._peer(pull_statistics(asking=Asking.WAITING, pacing=None)).pacing is None


async def test_a_restart_while_the_peer_is_away(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was wrong keeps its beginning, and a pull without an answer is as late as the node that recorded it was, and
    the time since; not within the first half minute, nor where nothing was ever pulled, nor once it is answered. The
    health is that of the node, whose name is not its zone's, and more than its queue takes at once."""
    began_ms = 1_790_000_000_000
    monkeypatch.setattr(status, "_now_unix_ms", lambda: began_ms)
    away = pull_statistics(
        stream=STREAM, offset=30, peer_end_offset=30, last_answer_ms=None, lost_reason="gone", pacing=None
    )
    small = StoreSettings(batch_facts_target=10, queue_facts_max=10)
    with FactStore.open(tmp_path / "facts.db", "plant-a", settings=small, node="plant-a-2") as store:
        before = collector_of(store, tmp_path).snapshot()
        lost = PeerStatus("plant-b", STREAM, False, 30, 30, lag_seconds=40.0, trouble="gone")
        before = replace(before, taken_unix_ms=began_ms - 600_000, peers=(lost,), since={"broken": began_ms - 640_000})
        verdict = assess(before)
        await HealthRecorder(store, Mock())._record(health_samples(before, verdict), before.taken_unix_ms)
    with FactStore.open(tmp_path / "facts.db", "plant-a", node="plant-a-2") as store:
        collector = collector_of(store, tmp_path)
        collector.recall()
        assert collector._since["broken"] == began_ms - 640_000
        assert collector._since["peer_silent peer plant-b"] == before.taken_unix_ms
        assert collector._peer(away).lag_seconds is None
        monkeypatch.setattr(status, "_now_unix_ms", lambda: began_ms + 31_000)
        assert collector._peer(away).lag_seconds == pytest.approx(640, abs=5)
        assert collector._peer(replace(away, offset=0, stream="new")).lag_seconds is None
        assert collector._peer(replace(away, lost_reason=None, last_answer_ms=1)).lag_seconds == 0.0


def test_what_may_be_missing_of_a_peer(store: FactStore, tmp_path: Path) -> None:
    """The pull of it that was level longest ago decides; one that was never answered counts from the start."""
    pulls = [
        pull_statistics(peer_node=peer, stream=stream, level_ms=level_ms)
        for peer, stream, level_ms in (
            ("plant-b", "a", 9_000),
            ("plant-b", "b", 8_000),
            ("plant-c", "a", None),
            ("plant-d", "a", 1),
        )
    ]
    pullers = [Mock(statistics=lambda pull=pull: pull) for pull in pulls]
    collector = collector_of(store, tmp_path)
    collector._runtimes = {"broker": Mock(pullers=pullers)}
    collector._clock_s = lambda: 10.0
    assert [collector.unseen_s(peer) for peer in ("plant-b", "plant-c", "idmz")] == [2.0, NOTICED_S, 0.0]
    collector._clock_s = lambda: 15.0
    assert collector.unseen_s("plant-c") == 5.0 + NOTICED_S


def test_counters_of_pulls_and_comparisons_reach_the_status(store: FactStore, tmp_path: Path) -> None:
    """Counts of each pull, its catching up and its comparisons reach the status, each under its own name; pulls of two
    streams from a peer, and through two brokers, are kept apart."""
    counters = {"pages": 3, "pages_late": 4, "pages_dropped": 5, "timeouts": 6, "restarts": 7, "unproven": 8}
    counters |= {"facts_stored": 1, "facts_duplicate": 2}
    comparisons = {"comparisons": 1, "failures": 2, "divergent_ranges": 3, "repaired_ranges": 4, "repaired_facts": 5}
    where = {"offset": 30, "peer_end_offset": 50, "catch_up": CatchUp(10, 30, 50, 5.0, 4.0)}
    runtimes = dict[str, BrokerRuntime]()
    pulled = [("site", "plant-b", STREAM), ("site", "plant-b", "health"), ("line", "plant-c", STREAM)]
    for n, (broker, peer, stream) in enumerate(pulled):
        counted = ReceiverCounters(**{name: count + 10 * n for name, count in counters.items()})
        pull = pull_statistics(peer_node=peer, stream=stream, pacing=None, lease=8 + n, counters=counted, **where)
        found = {name: count + 20 * n for name, count in comparisons.items()}
        compared = AntiEntropyStatistics(peer, stream, **found, last_unix_ms=6, is_equal=n == 1)
        runtime = runtimes.setdefault(broker, broker_runtime(Counted(0), broker))
        runtime.pullers.append(Mock(statistics=lambda pull=pull: pull))
        runtime.comparers[stream] = Mock(statistics=lambda compared=compared: [compared])
    collector = collector_of(store, tmp_path)
    collector._runtimes = runtimes
    peers = collector.snapshot().peers
    assert [(peer.broker, peer.zone, peer.stream) for peer in peers] == pulled
    for n, peer in enumerate(peers):
        assert {name: getattr(peer, f"{name}_total") - 10 * n for name in counters} == counters
        assert (peer.position, peer.end_offset, peer.lease) == (30, 50, 8 + n)
        assert peer.catch_up == CatchUpStatus(10, 50.0, 5.0, 4.0)
        counts = (count + 20 * n for count in comparisons.values())
        assert peer.compared == ComparisonStatus(*counts, last_unix_ms=6, is_equal=n == 1)


@pytest.mark.parametrize("asking", Asking)
def test_how_a_pull_is_asking(store: FactStore, tmp_path: Path, asking: Asking) -> None:
    """Fenced and blocked pulls are marked, and a pull without an answer so far has no lag."""
    pull = pull_statistics(asking=asking, pacing=None, lost_reason=None, last_answer_ms=None)
    status = collector_of(store, tmp_path)._peer(pull)
    assert (status.fenced, status.blocked) == (asking is Asking.FENCED, asking is Asking.BLOCKED)
    assert (status.lag_seconds, status.connected) == (None, False)


def test_counts_of_a_source(store: FactStore, tmp_path: Path) -> None:
    """Every count that the supervisor of each source keeps reaches the status under its own name."""
    counted = {
        "tags": 40,
        "tags_bad": 3,
        "tags_silent": 11,
        "connects_total": 2,
        "duplicates_total": 4,
        "out_of_order_total": 5,
        "backfilled_total": 15,
        "gaps_open": 16,
    }
    counted |= {
        "polls_total": 90,
        "polls_missed_total": 6,
        "store_refused_total": 7,
        "values_total": 8,
        "errors_total": 9,
    }
    names = [field.name for field in fields(SourceStatistics)]
    others = {"dropped_total": 10, "state": State.CONNECTED, "events": EventStatistics(11, 12, 13, 14)}
    source = SourceStatistics(**(dict.fromkeys(names, "") | counted | others))  # type: ignore[arg-type]
    collector = collector_of(store, tmp_path)
    other = replace(source, name="other", tags=41, state=State.WAITING, events=None)
    before = replace(source, polls_total=84, polls_missed_total=2)
    collector._ingest.statistics = lambda: [before, other]  # type: ignore[method-assign]
    collector.snapshot()
    collector._ingest.statistics = lambda: [source, other]  # type: ignore[method-assign]
    collector._clock_s = lambda: time.monotonic() + 600
    found, second = collector.snapshot().sources
    assert (found.polls_missed_percent, second.polls_missed_percent) == (40.0, None)
    assert (second.name, second.tags, second.connected, second.events) == ("other", 41, False, None)
    assert {name: getattr(found, name) for name in counted} == counted
    assert found.lost_total == 10
    assert found.events == EventStatus(11, 12, 14, last_event_unix_ms=13)
    assert found.connected


def test_artifacts_at_their_limit(tmp_path: Path) -> None:
    """The status shows their size, their limits, and the room that is missing for the refused one."""
    settings = StoreSettings(
        artifacts_total_bytes_max=100, artifact_bytes_max=100, artifact_unreferenced_bytes_max=900_000
    )
    with FactStore.open(tmp_path / "facts.db", "plant-a", settings=settings) as store:
        digests = ["sha256:" + hashlib.sha256(blob).hexdigest() for blob in (b"a" * 80, b"b" * 30)]
        store.artifacts.put_chunk("plant", digests[0], 80, 0, b"a" * 80)
        with pytest.raises(ArtifactsFull, match="artifacts_total_bytes_max reached"):
            store.artifacts.put_chunk("plant", digests[1], 30, 0, b"b" * 30)
        collector = collector_of(store, tmp_path)
        collector._read_from_disk()
        found = collector.snapshot().store
        assert (found.artifact_bytes, found.artifact_bytes_max, found.artifact_bytes_lacking) == (80, 100, 10)
        assert found.artifact_unreferenced_bytes_max == 900_000
        assert (found.artifact_limit, found.artifact_unreferenced) == (
            "artifacts_total_bytes_max",
            (UnreferencedStatus("plant", 64 * 1024),),
        )


def test_incidents_of_other_kinds_hide_neither_a_divided_history_nor_a_loss(tmp_path: Path) -> None:
    """However many come after them: the history and what a consumer has lost are in the status, and the loss, which the
    next start counts."""
    with FactStore.open(tmp_path / "facts.db", "plant-a") as store:
        for kind, said in (
            ("branch", ""),
            ("log_lost", ""),
            ("facts_expired", "by: mes"),
            ("facts_expired", NO_CONSUMER),
        ):
            store.note_incident(kind, f"plant-b{said}", f"a test {said}").result()
        crowd_incidents(store)
        collector = collector_of(store, tmp_path)
        collector._read_from_disk()
        history = {(entry.kind, entry.subject) for entry in collector.snapshot().history}
        assert history == {("branch", "plant-b"), ("facts_expired", "plant-bby: mes")}, (
            "and not what nobody was to have"
        )
    with FactStore.open(tmp_path / "facts.db", "plant-a", unattended=True) as store:
        assert store.integrity().losses == 1


def test_refusals_of_a_full_disk_are_proof_of_work(tmp_path: Path) -> None:
    """The watchdog must not end a node whose disk is full: it serves what it holds."""
    with with_a_consumer_behind(tmp_path) as store:
        (before,) = collector_of(store, tmp_path).progress()
        with pytest.raises(Exception, match="cannot be sealed"):  # counted as a full disk would be
            store.appends.append_samples(STREAM, [Sample(9, 1, 1.0, 0)]).result()
        (after,) = collector_of(store, tmp_path).progress()
        assert after.counter > before.counter
        assert (store.statistics().appends_failed, after.counter) == (1, store.statistics().commits + 1)


def test_samples_without_acknowledgement_are_counted(store: FactStore) -> None:
    """They are in the count, but not in the latency."""
    store.appends.define([TagDefinition("tag:line1/t1")]).result()
    store.appends.append_samples("facts.telemetry", [Sample(1, 1, 1.0, 0), Sample(1, 2, 2.0, 0)]).result()
    counted = store.statistics()
    assert (counted.facts_appended, sum(counted.append_latency.counts)) == (2, 0)


async def test_requests_at_the_local_socket_are_counted(tmp_path: Path) -> None:
    """A confirmation at the local socket is counted."""
    with with_a_consumer_behind(tmp_path) as store:
        store.consumers.register("local.mes", "local", STREAM, "oldest").result()
        await RequestHandler(store).answer(ConfirmReceipt(consumer_name="local.mes", offset=1, life=store.life.hex()))
        assert collector_of(store, tmp_path).snapshot().requests.confirms_total == 1


class Counted:
    """A server that has counted these requests and the facts of their answers."""

    def __init__(self, facts_sent: int, **requests: int) -> None:
        self._counted = ServerStatistics(requests, {"fenced": 1}, {}, facts_sent, 10 * facts_sent, parked=1)

    def statistics(self) -> ServerStatistics:
        """What it has counted."""
        return self._counted


def broker_runtime(server: Counted, name: str) -> BrokerRuntime:
    """The parts of a broker: this server, and no pulls."""
    runtime = Mock(server=server, comparers={}, pullers=[])
    runtime.broker.name, runtime.link.statistics.return_value = name, LinkStatistics(False, 0, 0, 0, None)
    return runtime


def test_the_servers_of_all_brokers_are_counted_together(store: FactStore, tmp_path: Path) -> None:
    """Fetches, facts and refusals of a node with two brokers are sums; other requests are not fetches."""
    collector = collector_of(store, tmp_path)
    counted = {"first": Counted(5, FetchFacts=3, GetBounds=7), "second": Counted(2, FetchFacts=4)}
    collector._runtimes = {name: broker_runtime(counts, name) for name, counts in counted.items()}
    snapshot = collector.snapshot()
    assert [broker.name for broker in snapshot.brokers] == [*counted]
    assert snapshot.requests.fetches_total == 7
    assert snapshot.serving.requests == {"FetchFacts": 7, "GetBounds": 7}
    assert (snapshot.serving.refusals, snapshot.serving.drops) == ({"fenced": 2}, {})
    assert (snapshot.serving.facts_sent_total, snapshot.serving.bytes_sent_total, snapshot.serving.waiting) == (
        7,
        70,
        2,
    )


def test_a_changed_configuration_is_named_until_the_restart(store: FactStore, tmp_path: Path) -> None:
    """After an edit of node.toml the status names the change and what to do, without an alert, until the file is as
    before."""
    file = tmp_path / "node.toml"
    file.write_text('[node]\nzone = "plant-a"\n')
    config = ConfigFile(file)
    config.load()
    collector = collector_of(store, tmp_path, config)

    async def reasons() -> list[tuple[str, bool]]:
        refreshing = asyncio.create_task(collector.run())
        before = collector._turns
        await wait_until_async(lambda: collector._turns > before, "the values are read")
        refreshing.cancel()
        snapshot, verdict = collector.judge()
        assert snapshot.since == since_of(verdict)
        return [(reason.subject, reason.alert) for reason in verdict.reasons]

    assert ("node.toml", False) not in asyncio.run(reasons())
    file.write_text(file.read_text() + '[[peer]]\nzone = "idmz"\n')
    assert ("node.toml", False) in asyncio.run(reasons())
    file.write_text('[node]\nzone = "plant-a"\n')
    assert ("node.toml", False) not in asyncio.run(reasons())
    file.unlink()
    assert ("node.toml", False) in asyncio.run(reasons())


def test_the_certificate_that_ends_first_counts(store: FactStore, tmp_path: Path) -> None:
    """Of the certificates for several brokers, the one that ends first is shown; a broker without one does not
    count."""
    ends = [None, *(datetime.now(UTC) + timedelta(days=days, hours=1) for days in (30, 3, 90))]
    runtimes = {
        f"b{number}": SimpleNamespace(
            link=SimpleNamespace(statistics=partial(SimpleNamespace, identity_ends=end)),
            broker=SimpleNamespace(cert_file=Path(f"b{number}.pem")),
        )
        for number, end in enumerate(ends)
    }
    collector = collector_of(store, tmp_path)
    assert collector._certificate() == {"certificate_days_left": None, "certificate_file": ""}
    collector._runtimes = runtimes  # type: ignore[assignment]
    assert collector._certificate() == {"certificate_days_left": 3, "certificate_file": "b2.pem"}


def test_zones_that_abuse_the_broker_are_read_while_its_watch_runs(tmp_path: Path) -> None:
    """From the file of the watch; nothing without one, from one that is damaged, or that is not written any more."""
    file = tmp_path / "abuses.json"
    assert read_abuses(file) == []
    file.write_text('[{"zone": "evil", "why": "has 300 sessions", "sessions": 300}]')
    assert read_abuses(file) == [AbuseStatus("evil", "has 300 sessions", 300)]
    os.utime(file, (time.time() - ABUSES_S_MAX - 10,) * 2)
    assert read_abuses(file) == []
    file.write_text('[{"zone": "evil"')
    assert read_abuses(file) == []


def test_facts_of_the_pair_that_are_declined_are_told_once() -> None:
    """Of our own zone, if another node records it, too; not of other zones, whose relay may lie, nor for each range."""
    told = [("declined", f"facts.telemetry of {zone}/00, {first} to 9", "no record", 1, 0, status.DAY_MS)
            for zone in ("plant-b", "plant-a") for first in (1, 5)]  # fmt: skip
    incidents = [Incident(*row) for row in told]
    assert [event.subject for event in status._history(incidents, status.DAY_MS, "plant-a")] == [
        "facts.telemetry of plant-a/00, 1 to 9"
    ]
    assert status._history(incidents, status.DAY_MS) == ()
