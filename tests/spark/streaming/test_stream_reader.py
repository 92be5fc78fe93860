"""The stream reader as Spark calls it, on a real store and its local socket, without a JVM."""

import asyncio
import logging
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pyspark import cloudpickle
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows

from agent import local_socket
from agent.fact_store import FactStore, StoreReader
from agent.local_socket.serving import RequestHandler, serve
from agent.message import Sample
from agent.settings.store import StreamSettings
from pyspark_bsfg.errors import ConsumerRefused, FactsGone, JobRefused, OptionError, StoreUnreadable, StreamUnknown
from pyspark_bsfg.options import NODE_PARTITIONS
from pyspark_bsfg.ranges import OffsetRange
from pyspark_bsfg.schema import FACTS, projection
from pyspark_bsfg.source import BsfgDataSource
from pyspark_bsfg.streaming import reader as module
from pyspark_bsfg.streaming.checkpoint import read_binding
from pyspark_bsfg.transports import StoreFile, record_batches
from pyspark_bsfg.transports.store_file import StoreFileSource
from tests.fact_store.making import damage
from tests.spark import making
from tests.spark.making import AT_ONCE, DEFINITIONS, NOON_NS, OPERATIONAL, SECOND_NS, TELEMETRY
from tests.waiting import wait_until

CONSUMER = "local.lake"


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A reader that finds nothing answers at once."""
    monkeypatch.setattr(module, "IDLE_WAIT_S", 0.0)


@contextmanager
def node(folder: Path) -> Iterator[FactStore]:
    """A store that releases what is confirmed, with its local socket, as a running node has both."""
    streams = [StreamSettings(TELEMETRY, keep_hours=0)]
    with FactStore.open(folder / "facts.db", "enterprise", settings=AT_ONCE, streams=streams) as store:
        loop = asyncio.new_event_loop()
        serving = loop.create_task(serve(RequestHandler(store), folder))

        def run() -> None:
            with closing(loop):
                loop.run_until_complete(asyncio.gather(serving, return_exceptions=True))

        thread = threading.Thread(target=run)
        thread.start()
        wait_until((folder / local_socket.SOCKET).exists, "the socket")
        try:
            store.appends.define(DEFINITIONS).result()
            yield store
        finally:
            loop.call_soon_threadsafe(serving.cancel)
            thread.join()


def store_of(folder: Path) -> Any:
    """The store as a transport has it."""
    return StoreFile(str(folder / "facts.db")).opened()


def append(store: FactStore, facts: int) -> None:
    """So many facts, each with its offset as value."""
    end = store.end_offset(TELEMETRY)
    store.appends.append_samples(
        TELEMETRY, [Sample(1, NOON_NS + n * SECOND_NS, float(n)) for n in range(end + 1, end + facts + 1)]
    ).result()


def stream(folder: Path | None, *, durable: bool = False, columns: str = "offset value", **options: object) -> Any:
    """A reader as the process has it that Spark starts for a query; of a store in `folder`, or of what options name."""
    own = {} if folder is None else {"path": folder / "facts.db"}
    if durable and folder is not None:
        own |= {"consumer": CONSUMER, "checkpointLocation": folder / "checkpoint"}
    texts = {name.lower(): str(value) for name, value in (own | options).items()}
    return BsfgDataSource(texts).streamReader(projection(columns.split()))


def values(reader: Any, start: dict[str, Any], end: dict[str, Any]) -> list[float]:
    """What the tasks of a batch read, each from a pickled copy."""
    found = []
    for part in cloudpickle.loads(cloudpickle.dumps(reader.partitions(start, end))):
        for batch in cloudpickle.loads(cloudpickle.dumps(reader)).read(part):
            found += batch.column("value").to_pylist()
    return found


def test_batches_cover_the_log_and_are_repeatable(tmp_path: Path) -> None:
    """Limited batches, in tasks, give each fact once; the same offsets give the same facts however far the log has
    grown meanwhile; nothing new is the same offset."""
    path = tmp_path / "facts.db"
    making.store(path, [[Sample(1, NOON_NS + n, float(n)) for n in range(1, 101)]])
    reader = stream(tmp_path, minPartitions=3)
    start = at = reader.initialOffset()
    found: list[float] = []
    while (end := reader.latestOffset(at, ReadMaxRows(30))) != at:
        assert len(reader.partitions(at, end)) == 3
        found += values(reader, at, end)
        at = end
    assert found == [float(n) for n in range(1, 101)]
    assert reader.reportLatestOffset() == at | {"behind_facts": 0, "behind_bytes": 0, "lost_facts": 0}
    with FactStore.open(path, "enterprise") as store:
        append(store, 50)
    assert values(stream(tmp_path), start, at) == found
    assert reader.latestOffset(at, ReadAllAvailable())["offset"] == 150


def test_an_offset_of_another_stream_is_refused(tmp_path: Path) -> None:
    """A checkpoint goes on with another value of `stream`: that log has the offset, too, and its first facts would be
    left out. An offset that names no stream is of this one."""
    with FactStore.open(tmp_path / "facts.db", "enterprise", settings=AT_ONCE) as store:
        store.appends.append_messages(OPERATIONAL, [making.message(n) for n in range(3)]).result()
        store.appends.define(DEFINITIONS).result()
        append(store, 5)
    before = stream(tmp_path, stream=OPERATIONAL)
    start = before.initialOffset()
    end, reader = before.latestOffset(start, ReadAllAvailable()), stream(tmp_path)
    for planned in (lambda: reader.latestOffset(end, ReadAllAvailable()), lambda: reader.partitions(start, end)):
        with pytest.raises(OptionError, match=f"belongs to stream {OPERATIONAL}, this query reads {TELEMETRY}"):
            planned()
    assert end.pop("stream") == OPERATIONAL
    assert reader.latestOffset(end, ReadAllAvailable()) == end | {"offset": 5, "stream": TELEMETRY}


def test_a_backlog_of_a_node_is_shared_by_as_many_tasks_as_it_gives_connections() -> None:
    """As in a batch read: neither by a task for each core of a large driver, nor by the two of a small one."""
    files = dict.fromkeys(("caFile", "certFile", "keyFile"), "x.pem")
    reader = stream(None, transport="mqtt", host="h", peer="enterprise", **files)
    start, end = ({"life": "ee" * 16, "offset": offset} for offset in (0, 1_000_000))
    assert len(reader.partitions(start, end)) == NODE_PARTITIONS


def test_a_stream_starts_at_a_time(tmp_path: Path) -> None:
    """startingTimestamp goes by when the node has recorded facts: before the first is at the first, later than the last
    is behind it. The cursor begins there, too."""
    with node(tmp_path) as store:
        append(store, 30)
        now_ms = time.time_ns() // 1_000_000
        for at_ms, offset in ((now_ms - 3_600_000, 0), (now_ms + 3_600_000, 30)):
            named = {"consumer": f"local.at{offset}", "checkpointLocation": tmp_path / str(offset)}
            assert stream(tmp_path, startingTimestamp=at_ms, **named).initialOffset()["offset"] == offset
            assert store.consumers.get(f"local.at{offset}").frontier == offset  # type: ignore[union-attr]


@pytest.mark.parametrize("start", ["earliest", "latest", "1"])
@pytest.mark.parametrize("durable", [False, True])
def test_a_stream_waits_for_the_first_fact(tmp_path: Path, start: str, *, durable: bool) -> None:
    """A query that is started before any fact has come waits for it, wherever it starts, and reads each, also if it is
    started again in between; with AvailableNow it ends. A stream that a node does not have as a rule is refused."""
    making.health_only(tmp_path / "facts.db")
    with node(tmp_path) as store:
        begun = stream(tmp_path, durable=durable, startingOffsets=start)
        at = begun.initialOffset()
        assert begun.latestOffset(at, ReadMaxRows(2)) == at
        begun.prepareForTriggerAvailableNow()
        assert begun.latestOffset(at, ReadMaxRows(2)) == at
        append(store, 3)
        assert begun.latestOffset(at, ReadMaxRows(2)) == at
        found, reader = [], stream(tmp_path, durable=durable, startingOffsets=start)
        while (end := reader.latestOffset(at, ReadMaxRows(2))) != at:
            found, at = found + values(reader, at, end), end
            reader.commit(at)
        assert found == [1.0, 2.0, 3.0]
        with pytest.raises(StreamUnknown, match=r"no stream 'facts.alarms'; it holds: facts.telemetry, health"):
            stream(tmp_path, stream="facts.alarms").initialOffset()


def test_available_now_ends_where_it_began(tmp_path: Path) -> None:
    """Facts that arrive after the start of a run with AvailableNow are left to the next."""
    path = tmp_path / "facts.db"
    making.store(path, [[Sample(1, NOON_NS, 1.0)] * 10])
    reader = stream(tmp_path)
    reader.prepareForTriggerAvailableNow()
    with FactStore.open(path, "enterprise") as store:
        append(store, 5)
    at = reader.latestOffset(reader.initialOffset(), ReadMaxRows(100))
    assert at["offset"] == 10
    assert reader.latestOffset(at, ReadMaxRows(100)) == at


def test_only_what_spark_has_finished_is_confirmed(tmp_path: Path) -> None:
    """Reading confirms nothing; `commit` moves the cursor; a restart finds the start in the checkpoint."""
    with node(tmp_path) as store:
        append(store, 40)
        reader = stream(tmp_path, durable=True)
        start = reader.initialOffset()
        assert start["offset"] == 0
        end = reader.latestOffset(start, ReadMaxRows(25))
        assert len(values(reader, start, end)) == 25
        assert store.consumers.get(CONSUMER).frontier == 0  # type: ignore[union-attr]
        assert stream(tmp_path, durable=True).initialOffset() == start
        reader.commit(end)
        assert store.consumers.get(CONSUMER).frontier == 25  # type: ignore[union-attr]
        reader.commit(start)
        assert store.consumers.get(CONSUMER).frontier == 25  # type: ignore[union-attr]
        assert stream(tmp_path, durable=True).initialOffset() == start


@pytest.mark.parametrize("start, first", [("latest", 31), ("12", 12), ("earliest", 1)])
def test_a_start_holds_for_cursor_and_query(tmp_path: Path, start: str, first: int) -> None:
    """Query and cursor begin at the same fact, which is kept in the checkpoint, although the log has grown since."""
    with node(tmp_path) as store:
        append(store, 30)
        assert stream(tmp_path, durable=True, startingOffsets=start).initialOffset()["offset"] == first - 1
        append(store, 10)
        again = stream(tmp_path, durable=True, startingOffsets=start)
        assert again.initialOffset()["offset"] == first - 1
        assert store.consumers.get(CONSUMER).frontier == first - 1  # type: ignore[union-attr]


def test_a_start_at_the_end_holds_for_the_run(tmp_path: Path) -> None:
    """Spark asks for the start again when it plans the first batch: what came since it asked for the end is read, also
    without a file in the checkpoint."""
    making.store(tmp_path / "facts.db", [[Sample(1, NOON_NS, 1.0)] * 10])
    reader = stream(tmp_path, startingOffsets="latest")
    start = reader.initialOffset()
    with FactStore.open(tmp_path / "facts.db", "enterprise") as store:
        append(store, 5)
    end = reader.latestOffset(start, ReadMaxRows(100))
    assert values(reader, reader.initialOffset(), end) == [11.0, 12.0, 13.0, 14.0, 15.0]


def test_a_consumer_belongs_to_one_checkpoint(tmp_path: Path) -> None:
    """A second checkpoint with the same consumer is refused, unless it takes the cursor over on purpose; a checkpoint
    with another consumer or stream is refused in any case. Each says what to do."""
    with node(tmp_path) as store:
        append(store, 30)
        first = stream(tmp_path, durable=True)
        first.commit(first.latestOffset(first.initialOffset(), ReadMaxRows(20)))
        other = {"durable": True, "checkpointLocation": tmp_path / "other"}
        with pytest.raises(ConsumerRefused, match=r"has confirmed up to 20.*startingOffsets=cursor goes on after"):
            stream(tmp_path, **other).initialOffset()
        assert read_binding(tmp_path / "other") is None
        with pytest.raises(JobRefused, match=r"belongs to consumer local.lake, this query reads local.pond"):
            stream(tmp_path, durable=True, consumer="local.pond").initialOffset()
    with closing(StoreReader(tmp_path / "facts.db")) as reader:
        assert {consumer.name for consumer in reader.consumers()} == {CONSUMER}


def test_the_newer_query_takes_a_consumer_only_when_told_to_and_fences_the_older(tmp_path: Path) -> None:
    """A second driver at the cursor of a first one is refused, by the first one's place, and changes nothing. Told to
    take over, it goes on at the cursor; the first one ends at its next confirmation, also when it is started again, and
    has moved no cursor. The second one keeps its lease when it is started again."""
    with node(tmp_path) as store:
        append(store, 30)
        first = stream(tmp_path, durable=True)
        at = first.latestOffset(first.initialOffset(), ReadMaxRows(20))
        first.commit(at)
        other: dict[str, Any] = {"durable": True, "checkpointLocation": tmp_path / "other", "startingOffsets": "cursor"}
        with pytest.raises(ConsumerRefused, match=rf"another query.*{tmp_path}/checkpoint#.*takeOver=true"):
            stream(tmp_path, **other).initialOffset()
        assert read_binding(tmp_path / "other") is None
        first.commit(at)  # it still holds the lease
        second = stream(tmp_path, **other, takeOver="true")
        assert second.initialOffset()["offset"] == 20
        taken = rf"another query has taken over.*{tmp_path}/other#"
        with pytest.raises(ConsumerRefused, match=taken):
            first.commit(at | {"offset": 30})
        for restarted in (
            lambda reader: reader.latestOffset(at, ReadMaxRows(20)),
            lambda reader: reader.partitions(at, at),
        ):
            with pytest.raises(ConsumerRefused, match=taken):
                restarted(stream(tmp_path, durable=True))
        assert store.consumers.get(CONSUMER).frontier == 20  # type: ignore[union-attr]
        stream(tmp_path, **other).commit(at | {"offset": 25})
        assert store.consumers.get(CONSUMER).frontier == 25  # type: ignore[union-attr]


def test_a_consumer_that_was_added_by_hand_or_removed_is_taken_without_being_told(tmp_path: Path) -> None:
    """No query has it: one at the cursor begins there; one whose consumer was removed registers it again, from the
    oldest fact on, also while it runs, and if it had begun at the end of the log."""
    with node(tmp_path) as store:
        append(store, 30)
        store.consumers.register(CONSUMER, "local", TELEMETRY, "end").result()
        reader = stream(tmp_path, durable=True, startingOffsets="cursor")
        at = reader.initialOffset()
        assert at["offset"] == 30
        store.consumers.remove(CONSUMER, force=True, now=True).result()
        stream(tmp_path, durable=True, startingOffsets="latest").latestOffset(at, ReadMaxRows(20))
        assert store.consumers.get(CONSUMER).frontier == 0  # type: ignore[union-attr]
        reader = stream(tmp_path, durable=True)
        reader.commit(reader.latestOffset(at, ReadMaxRows(20)))
        store.consumers.remove(CONSUMER, force=True, now=True).result()
        for _ in range(2):
            reader.commit(at)
            reader.latestOffset(at, ReadMaxRows(20))
        assert store.consumers.get(CONSUMER).frontier == 30  # type: ignore[union-attr]


def test_a_query_waits_while_the_store_is_away(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A store out of reach is no end: the offset stays, Spark's progress says since when, the log has one line for
    going and one for returning; `commit` raises nothing. A query that never reached it is refused."""
    path = tmp_path / "facts.db"
    making.store(path, [[Sample(1, NOON_NS, 1.0)] * 10])
    reader, ending = stream(tmp_path), stream(tmp_path)
    at = reader.latestOffset(reader.initialOffset(), ReadMaxRows(4))
    ending.prepareForTriggerAvailableNow()
    away = path.rename(tmp_path / "away")
    with caplog.at_level(logging.WARNING):
        for _ in range(5):
            assert reader.latestOffset(at, ReadMaxRows(4)) == at
        assert "unreachable_since" in reader.reportLatestOffset()
        with pytest.raises(StoreUnreadable):  # it would end, and exit as if it had read everything
            ending.latestOffset(at, ReadMaxRows(4))
        with pytest.raises(StoreUnreadable):
            stream(tmp_path).initialOffset()
        with pytest.raises(StoreUnreadable):
            stream(tmp_path).prepareForTriggerAvailableNow()
        away.rename(path)
        assert reader.latestOffset(at, ReadMaxRows(4))["offset"] == 8
        assert "unreachable_since" not in reader.reportLatestOffset()
    assert [record.getMessage().partition(":")[0].partition(";")[0] for record in caplog.records] == [
        "the stream waits",
        "the stream goes on",
    ]
    with node(tmp_path):
        bound = stream(tmp_path, durable=True)
        start = bound.initialOffset()
    end = bound.latestOffset(start, ReadMaxRows(4))
    bound.commit(end)  # no node runs

    def lose_line(*_arguments: object) -> None:
        raise ConnectionResetError

    monkeypatch.setattr(StoreFileSource, "confirm", lose_line)
    bound.commit(end)


@pytest.mark.parametrize("kind", ["expired", "damaged"])
def test_a_loss_ends_the_query_or_is_passed(tmp_path: Path, kind: str) -> None:
    """Facts that the store no longer has end the query, naming all of them; with failOnDataLoss=false the rest is read,
    and Spark's progress has how many were released, also when a start repeats the batch or others follow, and how many
    wait."""
    path = tmp_path / "facts.db"
    making.store(path, [[Sample(1, NOON_NS, float(n))] * 5 for n in range(6)])
    start = stream(tmp_path).initialOffset()
    if kind == "expired":
        making.release(path, 10)
        gone = r"10 facts of facts.telemetry \(1 to 10 expired\)"
    else:
        for first_offset in (1, 6, 21):
            damage(path, first_offset)
        gone = r"15 facts of facts.telemetry \(1 to 10 damaged, 21 to 25 damaged\)"
    strict, lenient = stream(tmp_path), stream(tmp_path, failOnDataLoss="false")
    with pytest.raises(FactsGone, match=rf"{path}: {gone} are no longer in the store; failOnDataLoss=false"):
        values(strict, start, strict.latestOffset(start, ReadMaxRows(100)))
    end = lenient.latestOffset(start, ReadMaxRows(25))
    assert len(values(lenient, start, end)) == end["offset"] - (10 if kind == "expired" else 15)
    said = lenient.reportLatestOffset()
    assert (said["offset"], said["behind_facts"]) == (30, 30 - end["offset"])
    assert bool(said["behind_bytes"]) is bool(said["behind_facts"])
    assert said["lost_facts"] == (10 if kind == "expired" else 0)  # what the disk damaged only its task finds
    again = stream(tmp_path, failOnDataLoss="false")
    again.partitions(start, end)  # the batch is repeated after a start
    assert again.reportLatestOffset()["lost_facts"] == said["lost_facts"]
    making.release(path, 30)
    again.latestOffset({**end, "offset": 26}, ReadMaxRows(25))
    assert again.reportLatestOffset()["lost_facts"] == said["lost_facts"] + 4


def test_a_restored_store_is_refused_or_read_again(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A restored store ends the query; with onRestored=reread one empty batch leads to where its log is the one that
    was read, a batch planned before is empty, and the rest is what the store has now."""
    path = tmp_path / "facts.db"
    making.store(path, [[Sample(1, NOON_NS, float(n)) for n in range(10)]])
    image = path.read_bytes()
    with FactStore.open(path, "enterprise") as store:
        append(store, 10)
    reader = stream(tmp_path, onRestored="reread")
    start = reader.initialOffset()
    at = reader.latestOffset(start, ReadMaxRows(16))
    path.write_bytes(image)
    with FactStore.open(path, "enterprise") as store:
        append(store, 3)
    with pytest.raises(FactsGone, match=r"the store of enterprise was restored.*onRestored=reread"):
        stream(tmp_path).latestOffset(at, ReadMaxRows(6))
    assert values(reader, start, at) == []
    turned = reader.latestOffset(at, ReadMaxRows(6))
    assert f"{path} was restored: it is read again after offset 0" in caplog.messages
    assert (at["offset"], turned["offset"]) == (16, 0)
    assert values(reader, at, turned) == []
    end = reader.latestOffset(turned, ReadMaxRows(100))
    assert values(reader, turned, end) == [float(n) for n in range(10)] + [11.0, 12.0, 13.0]


def test_a_store_that_is_restored_while_a_task_reads_ends_the_task(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A node says so at any page, after the look at its log: with onRestored=reread the rest of the batch is left out
    as where it was restored before, and the query goes on."""
    making.store(tmp_path / "facts.db", [[Sample(1, NOON_NS, 1.0)] * 10])
    gone = FactsGone("the life is not in this log", "plan the read again")

    def put_back(source: Any, asked: Any, *others: Any) -> Iterator[Any]:
        yield from record_batches(source, replace(asked, offsets=OffsetRange(1, 4)), *others)
        raise gone

    monkeypatch.setattr(module, "record_batches", put_back)
    reader = stream(tmp_path, onRestored="reread")
    start = reader.initialOffset()
    end = reader.latestOffset(start, ReadMaxRows(10))
    assert values(reader, start, end) == [1.0] * 4
    with pytest.raises(FactsGone, match="not in this log"):
        values(stream(tmp_path), start, end)


def test_columns_are_checked_when_planning(tmp_path: Path) -> None:
    """All columns by default."""
    making.store(tmp_path / "facts.db", [[Sample(1, NOON_NS, 1.0)]])
    reader = stream(tmp_path, columns=" ".join(FACTS.fieldNames()))
    end = reader.latestOffset(reader.initialOffset(), ReadAllAvailable())
    [batch] = [batch for part in reader.partitions(reader.initialOffset(), end) for batch in reader.read(part)]
    assert batch.schema.names == FACTS.fieldNames()
