"""Several nodes as one stream: real stores, no JVM and no broker."""

import json
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from pyspark import cloudpickle
from pyspark.sql.streaming.datasource import ReadMaxRows

from agent.fact_store import FactStore
from pyspark_bsfg.errors import JobRefused, OptionError, StoreUnreadable
from pyspark_bsfg.jobs import land
from pyspark_bsfg.jobs.land import Order
from pyspark_bsfg.jobs.settings import Settings
from pyspark_bsfg.landing.lander import Totals
from pyspark_bsfg.options import NODE_PARTITIONS
from pyspark_bsfg.source import BsfgDataSource
from pyspark_bsfg.streaming import reader as reading
from pyspark_bsfg.streaming import several as module
from pyspark_bsfg.streaming.checkpoint import last_committed
from pyspark_bsfg.streaming.options import StreamOptions
from pyspark_bsfg.streaming.receipts import Receipts, confirming
from pyspark_bsfg.streaming.several import SeveralReader
from tests.spark.making import AT_ONCE, DEFINITIONS
from tests.spark.streaming.test_stream_reader import append, stream

FILES = {"caFile": "ca.pem", "certFile": "own.pem", "keyFile": "own.key"}
NODES = {"transport": "mqtt", "nodes": "south=b:1883, north=a"} | FILES


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    for owner in (reading, module):
        monkeypatch.setattr(owner, "IDLE_WAIT_S", 0.0)
    monkeypatch.setattr(module, "ASK_AGAIN_S", 0.0)


def grown(folder: Path, facts: int) -> None:
    """A store with so many facts more; fact n has the value n."""
    folder.mkdir(exist_ok=True)
    with FactStore.open(folder / "facts.db", folder.name, settings=AT_ONCE) as store:
        store.appends.define(DEFINITIONS).result()
        append(store, facts)


def several(folder: Path, *names: str) -> SeveralReader:
    """As the process has it that Spark starts for a query."""
    return SeveralReader({name: stream(folder / name, minPartitions=2, columns="offset zone value") for name in names})


def batch(reader: Any, start: dict[str, Any], limit: int = 100) -> tuple[dict[str, Any], list[tuple[str, float]]]:
    """The end of the next batch, and its facts, from pickled copies."""
    end = reader.latestOffset(json.loads(json.dumps(start)), ReadMaxRows(limit))
    found = []
    for part in cloudpickle.loads(cloudpickle.dumps(reader.partitions(start, end))):
        for rows in cloudpickle.loads(cloudpickle.dumps(reader)).read(part):
            found += [(row["zone"], row["value"]) for row in rows.to_pylist()]
    return end, sorted(found)


def facts(zone: str, first: int, last: int) -> list[tuple[str, float]]:
    """So many facts of a zone."""
    return [(zone, float(n)) for n in range(first, last + 1)]


def test_each_node_has_its_offset_and_delays_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A batch has facts of all nodes, shared out; a node that is away keeps its offset while the others go on, and
    gives every fact when it is back; one that is added begins at its first fact, and the offset of one that is taken
    out stays. Spark's progress has each."""
    for name, count in (("south", 30), ("north", 20)):
        grown(tmp_path / name, count)
    reader = several(tmp_path, "south", "north")
    start = reader.initialOffset()
    assert list(start) == ["north", "south"]
    at, found = batch(reader, start, 20)
    assert found == facts("north", 1, 10) + facts("south", 1, 10)
    away = (tmp_path / "north").rename(tmp_path / "away")
    monkeypatch.setattr(module, "ASK_AGAIN_S", 60.0)
    at, found = batch(reader, at, 20)
    assert found == facts("south", 11, 20)
    monkeypatch.setattr(module, "ASK_AGAIN_S", 0.0)
    assert {name for name, said in reader.reportLatestOffset().items() if "unreachable_since" in said} == {"north"}  # type: ignore[union-attr]
    away.rename(tmp_path / "north")
    assert reader.latestOffset(at, ReadMaxRows(20))["north"] == at["north"], "it is asked again after a while"
    grown(tmp_path / "west", 5)
    reader = several(tmp_path, "west", "north")
    reader.commit(at)  # in which the new node has no offset
    with monkeypatch.context() as hasty:  # nor does a new one that is away: it is asked once, not as often as by a task
        for of_node in reader.readers.values():
            hasty.setattr(of_node, "place", None)
        assert "west" in reader.latestOffset(at, ReadMaxRows(1))
    at, found = batch(reader, at)
    assert found == facts("north", 11, 20)
    assert list(at) == ["north", "south", "west"]
    at, found = batch(reader, at)
    assert found == facts("west", 1, 5)
    at, found = batch(several(tmp_path, "north", "south", "west"), at)
    assert found == facts("south", 21, 30)
    assert batch(reader, at) == (at, [])
    (tmp_path / "west").rename(tmp_path / "gone")
    with pytest.raises(StoreUnreadable):  # it would read the others alone, and look complete
        several(tmp_path, "west", "north").initialOffset()
    ending = several(tmp_path, "north", "south")
    ending.prepareForTriggerAvailableNow()
    (tmp_path / "south").rename(tmp_path / "gone-too")
    with pytest.raises(StoreUnreadable):
        ending.latestOffset(at, ReadMaxRows(9))


def test_a_checkpoint_of_one_node_is_refused(tmp_path: Path) -> None:
    """A query that went on with more nodes would begin at the first fact of each, and a batch of before be empty."""
    for name in ("north", "south"):
        grown(tmp_path / name, 5)
    one = stream(tmp_path / "north")
    start = one.initialOffset()
    end, reader = one.latestOffset(start, ReadMaxRows(3)), several(tmp_path, "north", "south")
    for planned in (lambda: reader.latestOffset(end, ReadMaxRows(9)), lambda: reader.partitions(start, end)):
        with pytest.raises(OptionError, match="the checkpoint belongs to a query of one node"):
            planned()


def test_each_node_has_its_part_of_the_checkpoint(tmp_path: Path) -> None:
    """What is confirmed to a node follows from its own offset in Spark's logs, and its lease is in a file of its own; a
    node that a batch does not have yet has nothing confirmed."""
    given = NODES | {"consumer": "analytics.lake", "checkpointLocation": str(tmp_path)}
    by_node = StreamOptions.of(given).by_node()
    assert {
        name: (reader.read.nodes[0].host, reader.read.nodes[0].port, reader.checkpoint)
        for name, reader in by_node.items()
    } == {
        "south": ("b", 1883, f"{tmp_path}/bsfg-nodes/south"),
        "north": ("a", 8883, f"{tmp_path}/bsfg-nodes/north"),
    }
    with pytest.raises(OptionError, match="of several nodes; each has its own"):
        StreamOptions.of(given | {"startingOffsets": "7"})
    reader = BsfgDataSource(given).streamReader(BsfgDataSource(given).schema())
    assert isinstance(reader, SeveralReader)
    for name in ("offsets", "commits"):
        (tmp_path / name).mkdir()
        logged = json.dumps({"north": {"life": "ab", "offset": 7}})
        (tmp_path / name / "0").write_text(f"v1\n{{}}\n{logged}\n")
    assert last_committed(tmp_path, "north") == ("ab", 7)
    assert last_committed(tmp_path, "west") == ("", 0)
    told: dict[str, list[int]] = {"north": [], "south": []}
    confirmed = SeveralReader({name: SimpleNamespace(commit=said.append) for name, said in told.items()})  # type: ignore[misc]
    confirmed.commit({"north": 7, "south": 9, "west": 3})
    assert told == {"north": [7], "south": [9]}
    confirmed._asked_again_s["north"] = float("inf")  # it is away: its attempt would delay each batch of the others
    confirmed.commit({"north": 8, "south": 10})  # type: ignore[dict-item]
    assert told == {"north": [7], "south": [9, 10]}


def test_each_node_is_confirmed_by_a_listener_of_its_own(tmp_path: Path) -> None:
    """What each of several nodes may release follows from its part of the checkpoint; at the end none listens."""
    listening = list[Receipts]()
    spark: Any = SimpleNamespace(streams=SimpleNamespace(addListener=listening.append, removeListener=listening.remove))
    with confirming(spark, NODES | {"consumer": "analytics.lake", "checkpointLocation": str(tmp_path)}) as receipts:
        assert listening == receipts
        places = [(receipt._place.at.peer, receipt._binding.name) for receipt in receipts]  # type: ignore[union-attr]
    assert places == [(name, name) for name in ("south", "north")]
    assert listening == []


def test_the_land_job_has_a_query_for_each_node() -> None:
    """Each at its own address and with a checkpoint of its own, into one table."""
    source = "".join(f"{name} = '{value}'\n" for name, value in NODES.items())
    settings = Settings.of(f"[source]\n{source}[land]\ntable = '/t/facts'\ncheckpoint = '/t/cp'\n")
    orders = Order.all_of(settings, is_available_now=True)
    said = [
        (*map(order.options.get, ("peer", "host", "port")), str(order.checkpoint), str(order.folder))
        for order in orders
    ]
    assert said == [
        ("south", "b", "1883", "/t/cp_south", "/t/facts"),
        ("north", "a", "8883", "/t/cp_north", "/t/facts"),
    ]
    assert all("nodes" not in order.options for order in orders)


def test_an_error_of_the_other_jobs_ends_the_land_job(monkeypatch: pytest.MonkeyPatch) -> None:
    """With several nodes as with one: with --follow their streams have no end of their own to wait for."""
    order, stop = Order({"peer": "north"}, Path("/t"), Path("/c")), threading.Event()

    def follow(_: Any, __: Order, stop: threading.Event, ___: Any) -> tuple[Totals, int]:
        assert stop.wait(10), "it is told to end"
        return Totals(), 0

    def refresh(_: Totals) -> None:
        raise JobRefused("a table is damaged", "remove it")

    monkeypatch.setattr(land, "run", follow)
    with pytest.raises(JobRefused, match="a table is damaged"):
        land.run_all(SimpleNamespace(), [order, order], stop, refresh)  # type: ignore[arg-type]
    assert stop.is_set()


def test_a_node_that_is_landed_no_longer_is_told_at_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """With --follow the others have no end after which it could be told."""
    north, south = (Order({"peer": peer}, Path("/t"), Path(f"/c-{peer}")) for peer in ("north", "south"))
    stop = threading.Event()

    def follow(_: Any, order: Order, stop: threading.Event, __: Any) -> tuple[Totals, int]:
        if order is south:
            raise JobRefused("no stream", "name another")
        assert stop.wait(10), "it goes on"
        return Totals(), 0

    def end_when_told(_: Totals) -> None:
        if "south is not landed any more: no stream; name another" in caplog.messages:
            stop.set()

    monkeypatch.setattr(land, "run", follow)
    with pytest.raises(JobRefused, match="south: no stream"):
        land.run_all(SimpleNamespace(), [north, south], stop, end_when_told)  # type: ignore[arg-type]
    assert stop.is_set()


def test_a_batch_read_of_several_nodes_has_tasks_for_each() -> None:
    """As many as all of them give connections."""
    reader: Any = BsfgDataSource(NODES).reader(BsfgDataSource(NODES).schema())
    assert reading.usual_tasks(reader.options) == 2 * NODE_PARTITIONS
