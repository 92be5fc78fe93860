"""The node's figures: what cannot be read is missing and told once, and never ends the node."""

import asyncio
import hashlib
from dataclasses import fields
from pathlib import Path

import pytest

from agent.config import IdentitySettings, NodeSettings
from agent.fact_store import FactStore
from agent.fact_store.log.errors import ArtifactsFull, StoreUnusable
from agent.fact_store.log.settings import StoreSettings, StreamSettings
from agent.fact_store.read.forecast import ConsumerSpace, StoreSpace
from agent.health.snapshot import PacingFigures
from agent.ingest.supervisor import Ingest, SourceStatistics, State
from agent.local_socket import local_socket
from agent.message import Envelope, Fact, Message, Sample, TagDefinition
from agent.node.status import Figures
from agent.replication.protocol.pull_events import Asking
from agent.replication.pulling.puller import Pacing, PullStatistics
from agent.telemetry import Telemetry

STREAM = "facts.operational"


def figures_of(store: FactStore, folder: Path) -> Figures:
    """Figures of a node without peers and sources."""
    settings = NodeSettings(IdentitySettings("plant-a", folder))
    return Figures(settings, store, {}, (), (), Ingest("plant-a", (), {}, store.appends, ()), Telemetry())


def with_a_consumer_behind(folder: Path) -> FactStore:
    """A store with one message that a consumer has not confirmed."""
    store = FactStore.open(folder / "facts.db", "plant-a")
    envelope = Envelope("m1", "plant-a", "*", 1_700_000_000_000)
    store.appends.append_message(STREAM, Message(envelope, Fact("batch:B-1", "done", b"1"))).result(20)
    store.consumers.register("mes", "plant-a", STREAM, "oldest").result(20)
    return store


def test_the_age_of_a_consumer_is_the_time_it_had(tmp_path: Path) -> None:
    """Not the source time of what it lacks, years ago, nor for how long that lay here before the consumer came."""
    with FactStore.open(tmp_path / "facts.db", "plant-a") as store:
        store.appends.define([TagDefinition("tag:line1/t1")]).result(20)
        store.appends.append_samples("facts.telemetry", [Sample(1, 1, 1.0, 0)]).result(20)
        store.consumers.register("mes", "plant-a", "facts.telemetry", "oldest").result(20)
        figures, kept = figures_of(store, tmp_path), ConsumerSpace("mes", "facts.telemetry", 100, 72.0, None)
        figures._remembered.space = StoreSpace(0, None, None, None, (), (kept,))
        (consumer,) = figures.snapshot().consumers
        assert consumer.behind_facts == 1
        assert consumer.oldest_unconfirmed_age_s is not None
        assert consumer.oldest_unconfirmed_age_s < 60
        assert consumer.hours_held == 72.0


def test_a_consumer_that_reads_says_how_fast(tmp_path: Path) -> None:
    """From one refresh to the next, by the node's clock."""
    now_s = 100.0
    with with_a_consumer_behind(tmp_path) as store:
        settings = NodeSettings(IdentitySettings("plant-a", tmp_path))
        ingest = Ingest("plant-a", (), {}, store.appends, ())
        figures = Figures(settings, store, {}, (), (), ingest, Telemetry(), clock_s=lambda: now_s)
        figures._look_at_consumers()
        messages = [
            Message(Envelope(f"m{n}", "plant-a", "*", 1), Fact("batch:B-1", "done", b"1")) for n in range(2, 12)
        ]
        store.appends.append_messages(STREAM, messages).result(20)
        store.consumers.confirm("mes", 5).result(20)
        now_s = 102.0
        figures._look_at_consumers()
        (consumer,) = figures.snapshot().consumers
        assert (consumer.facts_per_s, consumer.behind_facts) == (2.5, 6)
        assert consumer.seconds_left is None, "it has more before it than at the first look"


def test_room_that_cannot_be_read_costs_no_node(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A disk in trouble costs the figures of room, said once; the others are told."""
    with with_a_consumer_behind(tmp_path) as store:

        def in_trouble() -> StoreSpace:
            raise StoreUnusable("disk I/O error", "check the disk")

        monkeypatch.setattr(store, "space", in_trouble)
        figures = figures_of(store, tmp_path)
        for _ in range(3):
            assert figures._read_from_disk() is None
        snapshot = figures.snapshot()
        assert (snapshot.store_fill_percent, snapshot.streams[0].end_offset) == (None, 1)
    assert [record.message for record in caplog.records] == ["figure_unreadable"]


def test_what_a_consumer_holds_back_is_told(tmp_path: Path) -> None:
    """Room, fill and hours come from the store's own limits and the stream's own time to live."""
    limits = [StreamSettings(STREAM, keep_hours=1.0, ttl_hours=10.0, bytes_max=1024 * 1024)]
    with_a_consumer_behind(tmp_path).close()
    settings = StoreSettings(disk_free_bytes_min=0, ballast_bytes=0)
    with FactStore.open(tmp_path / "facts.db", "plant-a", settings=settings, streams=limits) as store:
        figures = figures_of(store, tmp_path)
        figures._remembered.space = figures._read_from_disk()
        snapshot = figures.snapshot()
        (stream,), (consumer,) = snapshot.streams, snapshot.consumers
        assert (stream.bytes_max, stream.ttl_hours) == (1024 * 1024, 10.0)
        assert stream.fill_percent == pytest.approx(100 * stream.bytes / 1024 / 1024)
        assert snapshot.store_fill_percent is not None
        assert snapshot.store_fill_percent >= stream.fill_percent
        assert consumer.bytes_held == stream.bytes > 0
        assert consumer.hours_held is not None
        assert consumer.hours_until_ttl_loss == pytest.approx(10.0 - consumer.hours_held)
        assert stream.hours_until_ttl_loss == consumer.hours_until_ttl_loss


def pull_statistics(**some: object) -> PullStatistics:
    """A pull of which only this is known."""
    names = [each.name for each in fields(PullStatistics)]
    return PullStatistics(**(dict.fromkeys(names, 0) | {"peer_zone": "plant-b", "catch_up": None} | some))  # type: ignore[arg-type]


def test_what_keeps_a_pull_is_told(tmp_path: Path) -> None:
    """Its peer's bandwidth, with seconds for milliseconds and whether it waits now, and its own store; nothing where nothing does."""
    with FactStore.open(tmp_path / "facts.db", "plant-a") as store:
        figures = figures_of(store, tmp_path)
        pacing = Pacing(50_000, 8_863, 1_831, 438_602)
        for asking in (Asking.PACED, Asking.WAITING):
            told = figures._peer(pull_statistics(asking=asking, pacing=pacing, page_waits="full"))
            assert told.pacing == PacingFigures(50_000, asking is Asking.PACED, 8.863, 1_831, 438_602)
            assert told.page_waits == "full"
        assert figures._peer(pull_statistics(asking=Asking.WAITING, pacing=None)).pacing is None


def test_what_a_source_lost_is_told(tmp_path: Path) -> None:
    """Every figure of a source that its supervisor keeps reaches the picture, each under its own name."""
    counted = {"tags": 40, "tags_bad": 3, "connects_total": 2, "duplicates_total": 4, "out_of_order_total": 5}
    counted |= {"polls_missed_total": 6, "store_refused_total": 7, "values_total": 8, "errors_total": 9}
    names = [each.name for each in fields(SourceStatistics)]
    source = SourceStatistics(**(dict.fromkeys(names, "") | counted | {"dropped_total": 10, "state": State.CONNECTED}))  # type: ignore[arg-type]
    with FactStore.open(tmp_path / "facts.db", "plant-a") as store:
        figures = figures_of(store, tmp_path)
        figures._ingest.statistics = lambda: [source]  # type: ignore[method-assign]
        (told,) = figures.snapshot().sources
    assert {name: getattr(told, name) for name in counted} == counted
    assert told.lost_total == 10
    assert told.connected


def test_artifacts_at_their_limit_are_told(tmp_path: Path) -> None:
    """What they take, what they may, and what is lacking for the one that was refused."""
    settings = StoreSettings(artifacts_total_bytes_max=100)
    with FactStore.open(tmp_path / "facts.db", "plant-a", settings=settings) as store:
        digests = ["sha256:" + hashlib.sha256(blob).hexdigest() for blob in (b"a" * 80, b"b" * 30)]
        store.artifacts.put_chunk(digests[0], 80, 0, b"a" * 80)
        with pytest.raises(ArtifactsFull, match="artifacts_total_bytes_max reached"):
            store.artifacts.put_chunk(digests[1], 30, 0, b"b" * 30)
        figures = figures_of(store, tmp_path)
        figures._read_from_disk()
        told = figures.snapshot().store
        assert (told.artifact_bytes, told.artifact_bytes_max, told.artifact_bytes_lacking) == (80, 100, 10)


def test_refusals_of_a_full_disk_are_proof_of_work(tmp_path: Path) -> None:
    """The watchdog must not end a node whose disk is full: it serves what it holds."""
    with with_a_consumer_behind(tmp_path) as store:
        (before,) = figures_of(store, tmp_path).progress()
        with pytest.raises(Exception, match="cannot be sealed"):  # counted as a full disk would be
            store.appends.append_samples(STREAM, [Sample(9, 1, 1.0, 0)]).result(20)
        (after,) = figures_of(store, tmp_path).progress()
        assert after.counter > before.counter


def test_samples_nobody_waits_for_are_counted(tmp_path: Path) -> None:
    """They stay out of the latency, not out of the count."""
    with FactStore.open(tmp_path / "facts.db", "plant-a") as store:
        store.appends.define([TagDefinition("tag:line1/t1")]).result(20)
        store.appends.append_samples("facts.telemetry", [Sample(1, 1, 1.0, 0), Sample(1, 2, 2.0, 0)]).result(20)
        counted = store.statistics()
        assert (counted.facts_appended, sum(counted.append_latency.counts)) == (2, 0)


def test_the_figures_of_a_node_that_answers_locally(tmp_path: Path) -> None:
    """An append at the local door moves what the health page tells."""

    async def scenario() -> None:
        with with_a_consumer_behind(tmp_path) as store:
            await local_socket.Door(store).answer(local_socket.ConfirmReceipt("mes", 1))
            assert figures_of(store, tmp_path).snapshot().requests.confirms_total == 1

    asyncio.run(scenario())
