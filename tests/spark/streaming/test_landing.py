"""What tasks write and tables take, without a JVM: each fact once, and everything that is missing has a row."""

import json
from itertools import chain, product
from pathlib import Path
from typing import Any

import deltalake
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.batch import Origin
from agent.fact_store import FactStore
from agent.fact_store.core import operational_facts
from agent.ingest import gap
from agent.ingest.opcua.events import EVENTS_LOST
from agent.message import Sample
from pyspark_bsfg.errors import JobRefused
from pyspark_bsfg.landing import tables
from pyspark_bsfg.landing.files import FilesSink, FileWriter
from pyspark_bsfg.landing.identities import Identities
from pyspark_bsfg.landing.lander import FACTS_SCHEMA, Lander, incidents_of
from pyspark_bsfg.landing.manifest import DECLARING, UNREAD, File, Format, Incident, Manifest, missing, runs, unread
from pyspark_bsfg.landing.tables import Table, paths, table, table_files
from pyspark_bsfg.ranges import OffsetRange
from pyspark_bsfg.schema import LANDED, TABLE
from pyspark_bsfg.source import BsfgDataSource
from pyspark_bsfg.streaming.checkpoint import Binding, write_binding
from pyspark_bsfg.streaming.offsets import StreamOffset
from pyspark_bsfg.transports import StoreFile
from tests.fact_store.making import damage
from tests.spark import making
from tests.spark.making import NOON_NS, SECOND_NS
from tests.spark.streaming.rows import gap as gap_of
from tests.spark.streaming.rows import landed_rows
from tests.support.disk_calls import DiskCalls

HALF_DAY_NS = 12 * 3600 * SECOND_NS
COLUMNS = ("zone", "date", "sequence", "value", "offset")
FORMATS = pytest.mark.parametrize("kind", ["delta", "parquet"])


def record_batches(path: Path) -> list[Any]:
    """All facts of a store, as a task gets them."""
    reader = BsfgDataSource({"path": str(path)}).reader(TABLE)
    return [batch for part in reader.partitions() for batch in reader.read(part)]


def written(root: Path, batches: list[Any], after: int = 0, known: Identities | None = None) -> Manifest:
    """What a task reports."""
    lines = FileWriter(str(root), "", TABLE, after, known or Identities()).write(iter(batches)).lines
    return Manifest.of(json.loads(json.dumps(lines)))


def facts_table(folder: Path, kind: Format) -> Table:
    """The table as the job makes it."""
    return table(folder, kind, FACTS_SCHEMA, ("date", "zone"))


@pytest.fixture(scope="module")
def two_plants(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Facts of two plants around midnight, 40 in all, and a gap that one has declared."""
    path = tmp_path_factory.mktemp("store") / "facts.db"
    with FactStore.open(path, "enterprise") as store:
        for zone in ("plant-a", "plant-b"):
            run = [Sample(1, NOON_NS + HALF_DAY_NS + n * SECOND_NS, float(n)) for n in range(-10, 10)]
            making.put(store, making.foreign(Origin(zone, zone.encode().ljust(16)), [run[:7], run[7:]]), 2)
        store.appends.append_messages(making.TELEMETRY, [gap_of(7)]).result()
    return path


@FORMATS
def test_a_table_has_each_fact_in_its_partition(tmp_path: Path, two_plants: Path, kind: Format) -> None:
    """By date of source time and zone, read back by pyarrow alone and, for Delta, by delta-rs; nothing is missing."""
    target = facts_table(tmp_path / "facts", kind)
    span = OffsetRange(1, 41)
    found = written(target.root("k", span), record_batches(two_plants))
    assert (found.rows, found.seen, missing(span, found.seen)) == (41, [span], [])
    target.commit("k", span, found.files)
    rows = landed_rows(target.paths(), COLUMNS)
    expected = [
        (zone, f"2026-01-0{1 if n < 0 else 2}", sequence, float(n), sequence + 20 * (zone == "plant-b"))
        for zone in ("plant-a", "plant-b")
        for sequence, n in enumerate(range(-10, 10), 1)
    ]
    assert rows == [*expected, ("enterprise", "2026-01-01", 1, None, 41)]
    assert target.landed("k") == 41
    assert tables.paths(tmp_path / "facts") == target.paths()
    if kind == "delta":
        foreign = deltalake.DeltaTable(tmp_path / "facts").to_pyarrow_table(filters=[("zone", "=", "plant-a")])
        assert sorted(foreign.column("sequence").to_pylist()) == list(range(1, 21))
        assert set(foreign.column_names) == set(LANDED.fieldNames())
        kept = deltalake.DeltaTable(tmp_path / "facts").schema().fields
        assert {field.name for field in kept if not field.nullable} == {
            field.name for field in TABLE if not field.nullable
        } | {"date"}
    else:
        assert ds.dataset(tmp_path / "facts", partitioning="hive").count_rows() == 41
    [declared] = found.declared
    assert (declared.what, declared.offset, declared.zone, declared.detail) == (
        "samples_lost", 41, "enterprise", '{"count":7}',
    )  # fmt: skip


def test_the_bounds_of_a_file_are_those_of_all_its_rows(tmp_path: Path, two_plants: Path) -> None:
    """By them a query skips files; times and offsets that come later may be lower."""
    rows = [batch.slice(row, 1) for batch in record_batches(two_plants) for row in range(batch.num_rows)]
    for file in written(tmp_path, rows[::-1]).files:
        facts = pq.read_table(tmp_path / file.path)
        columns = facts["offset"], facts["sequence"], facts["ts"].cast("int64")
        bounds = [(min(values), max(values)) for values in (column.to_pylist() for column in columns)]
        assert [file.offsets, file.sequences, file.times_us] == bounds


@FORMATS
def test_what_is_landed_is_durable(
    tmp_path: Path, two_plants: Path, kind: Format, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The consumer is confirmed next, and the node may release the facts: each file, its name and the names of its
    folders are synced, and so is what names them in the table."""
    target, calls = facts_table(tmp_path / "facts", kind), DiskCalls(monkeypatch)
    span = OffsetRange(1, 41)
    root = target.root("k", span)
    found = written(root, record_batches(two_plants))
    for file in found.files:
        calls.check_synced(root / file.path, root, *[root / where for where in Path(file.path).parents])
    stray = root / "date=2020-01-01" / "zone=plant-a" / "part-0.parquet"
    stray.parent.mkdir(parents=True)
    stray.touch()
    target.commit("k", span, found.files)
    if kind == "parquet":
        calls.check_synced(stray.parent)  # without the file of a task that ran twice
        (landed,) = [path for path in (tmp_path / "facts").iterdir() if path.name.startswith("batch=")]
        calls.check_durable(landed)
    else:
        log = tmp_path / "facts" / "_delta_log"
        calls.check_synced(log / f"{1:020}.json", log, tmp_path / "facts")


@FORMATS
def test_a_range_is_taken_once(tmp_path: Path, two_plants: Path, kind: Format) -> None:
    """A second commit of a range, by a job that was thought dead, is refused and changes nothing; files that no commit
    names are no part of the table; another writer has a count of its own."""
    target, late = facts_table(tmp_path / "facts", kind), facts_table(tmp_path / "facts", kind)
    span, batches = OffsetRange(1, 41), record_batches(two_plants)
    assert late.landed("k") == 0
    orphans = written(late.root("k", span), batches)
    done = written(target.root("k", span), batches) if kind == "delta" else orphans
    target.commit("k", span, done.files)
    with pytest.raises(JobRefused, match="one land job for each checkpoint"):
        late.commit("k", span, orphans.files)
    assert late.landed("k") == 41
    again = facts_table(tmp_path / "facts", kind)
    assert len(landed_rows(again.paths(), COLUMNS)) == 41
    assert (again.landed("k"), again.landed("other")) == (41, 0)


def test_a_table_may_be_compacted_meanwhile(tmp_path: Path, two_plants: Path) -> None:
    """delta-rs, or another program, merges files between two steps of the job: the job's commit succeeds, and every
    fact is in the table once."""
    target, batches = facts_table(tmp_path / "facts", "delta"), record_batches(two_plants)
    cut = [batch.slice(n, 3) for batch in batches for n in range(0, batch.num_rows, 3)]
    for number, part in enumerate(cut):
        offsets = part.column("offset").to_pylist()
        span = OffsetRange(offsets[0], offsets[-1])
        assert target.landed("k") == span.first - 1
        found = written(target.root("k", span), [part])
        if number == 5:
            merged = deltalake.DeltaTable(tmp_path / "facts").optimize.compact()
            assert merged["numFilesRemoved"] > 0
        target.commit("k", span, found.files)
    assert [row[-1] for row in landed_rows(target.paths(), COLUMNS)] == list(range(1, 42))


@FORMATS
def test_small_files_are_merged(tmp_path: Path, two_plants: Path, kind: Format) -> None:
    """Many batches become one file for each date and zone, with the same facts in order; what came after goes on, and
    what is merged is not merged again for nothing."""
    target, batches = facts_table(tmp_path / "facts", kind), record_batches(two_plants)
    cut = [batch.slice(n, 3) for batch in batches for n in range(0, batch.num_rows, 3)]
    for number, part in enumerate(cut):
        offsets = part.column("offset").to_pylist()
        span = OffsetRange(offsets[0], offsets[-1])
        target.commit("k", span, written(target.root("k", span), [part]).files)
        if number == len(cut) - 2:
            before = landed_rows(target.paths(), COLUMNS)
            assert target.compact(100) == 0
            assert target.compact(3) > 4
            assert landed_rows(target.paths(), COLUMNS) == before
            assert len(target.paths()) <= 5
            assert target.compact(3) == 0
    again = facts_table(tmp_path / "facts", kind)
    assert (len(landed_rows(again.paths(), COLUMNS)), again.landed("k")) == (41, 41)
    assert sum(rows for _, rows in tables.table_files(tmp_path / "facts")) == 41
    if kind == "delta":
        assert deltalake.DeltaTable(tmp_path / "facts").to_pyarrow_table().num_rows == 41


@FORMATS
def test_ranges_without_a_file_are_merged_too(tmp_path: Path, kind: Format) -> None:
    """Batches whose facts the table has already, as after a new checkpoint, have no file; the end that they record
    stays."""
    target = facts_table(tmp_path / "facts", kind)
    for first in (1, 11, 21):
        span = OffsetRange(first, first + 9)
        target.commit("k", span, written(target.root("k", span), []).files)
    assert target.compact(2) == 0
    assert (target.landed("k"), target.paths()) == (30, [])
    assert len(list((tmp_path / "facts").glob("batch=*"))) == (kind == "parquet")


def test_a_merge_that_was_killed_counts_no_fact_twice(
    tmp_path: Path, two_plants: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed between the name of the merged folder and the end of the old ones, the table has each fact once; the next
    program removes the old ones. Killed before, nothing has changed."""
    target, batches = facts_table(tmp_path / "facts", "parquet"), record_batches(two_plants)
    for at in range(0, batches[0].num_rows, 5):
        part = batches[0].slice(at, 5)
        span = OffsetRange(part.column("offset")[0].as_py(), part.column("offset")[-1].as_py())
        target.commit("k", span, written(target.root("k", span), [part]).files)
    before = landed_rows(target.paths(), COLUMNS)

    def killed(*_: Any) -> None:
        raise KeyboardInterrupt

    for place, name in ((tables, "merge"), (tables._Folders, "_remove")):
        with monkeypatch.context() as broken:
            broken.setattr(place, name, killed)
            with pytest.raises(KeyboardInterrupt):
                target.compact(2)
        assert landed_rows(target.paths(), COLUMNS) == before
    folders = list((tmp_path / "facts").glob("batch=*"))
    again = facts_table(tmp_path / "facts", "parquet")
    assert landed_rows(again.paths(), COLUMNS) == before
    assert len(folders) > 1
    assert len(list((tmp_path / "facts").glob("batch=*"))) == 1


def test_a_table_is_not_written_over(tmp_path: Path, two_plants: Path) -> None:
    """A folder that holds a table of the other format, or something else, is refused, with what to do."""
    facts_table(tmp_path / "facts", "delta")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "letter.txt").write_text("dear")
    for folder, kind in (("facts", "parquet"), ("mine", "delta")):
        with pytest.raises(JobRefused, match="name another folder"):
            facts_table(tmp_path / folder, kind)  # type: ignore[arg-type]
    assert two_plants.exists()


@FORMATS
def test_a_job_that_is_killed_while_it_makes_a_table_leaves_no_table(tmp_path: Path, kind: Format) -> None:
    """The folder of a Delta table's log is there before its first entry: a reader finds no file, and the next job makes
    the table, in whatever format."""
    (tmp_path / "facts" / "_delta_log").mkdir(parents=True)
    assert paths(tmp_path / "facts") == []
    assert table_files(tmp_path / "facts") == []
    assert facts_table(tmp_path / "facts", kind).paths() == []


def test_what_is_there_is_left_out(tmp_path: Path, two_plants: Path) -> None:
    """Of a batch that is partly in the table only the rest is written, wherever in the batch the table ends; of facts
    that come again at other offsets none. Both count as seen."""
    batches = record_batches(two_plants)
    for after in {
        place for batch in batches for place in (batch["offset"][0].as_py(), batch["offset"][-1].as_py() - 1)
    } - {41}:
        assert written(tmp_path / f"{after}", batches, after).seen == [OffsetRange(after + 1, 41)]
    rest = written(tmp_path / "rest", batches, after=30)
    assert (rest.rows, rest.seen, rest.known) == (11, [OffsetRange(31, 41)], 0)
    known = tables.identities((str(tmp_path / "rest" / file.path) for file in rest.files), Identities())
    found = written(tmp_path / "new", batches, known=Identities.of(known.to_json()))
    assert (found.rows, found.seen, found.known) == (30, [OffsetRange(1, 41)], 11)


def test_streams_and_lives_of_one_file_are_told_apart(tmp_path: Path) -> None:
    """Two jobs land two streams of a node in one table, and small files are merged."""
    file = tmp_path / "zone=plant-a" / "part.parquet"
    file.parent.mkdir()
    pq.write_table(pa.table({"stream": list("sst"), "life": list("efe"), "sequence": [1, 2, 3]}), file)
    known = tables.identities([str(file)], Identities())
    asked = list(product("st", ["plant-a"], "ef", [1, 2, 3]))
    assert [place for place, held in enumerate(known.has(*zip(*asked, strict=True))) if held] == [0, 4, 8]


def test_losses_are_found_by_their_offsets(tmp_path: Path) -> None:
    """What the disk has damaged is seen by nobody, so it is missing, whether or not the source has said so."""
    path = tmp_path / "facts.db"
    making.store(path, [[Sample(1, NOON_NS, float(n))] * 5 for n in range(4)])
    damage(path, 6)
    found = written(tmp_path / "out", record_batches(path))
    holes = missing(OffsetRange(1, 20), found.seen)
    assert (found.rows, holes) == (15, [OffsetRange(6, 10)])


class Frame:
    """In the place of a DataFrame: this process writes its facts, as a task does."""

    def __init__(self, path: Path, last_offset: int) -> None:
        found = [pa.table(batch) for batch in record_batches(path)]
        self._batches = [
            landed.filter(pc.field("offset") <= last_offset).combine_chunks().to_batches() for landed in found
        ]

    write = property(lambda self: self)

    def format(self, _: str) -> "Frame":
        return self

    def mode(self, _: str) -> "Frame":
        return self

    def options(self, **asked: Any) -> "Frame":
        self._writer = FilesSink(asked).writer(TABLE, overwrite=False)
        return self

    def save(self) -> None:
        self._writer.commit([self._writer.write(iter(chain(*self._batches)))])


@FORMATS
def test_incidents_land_once_though_a_job_dies_before_their_facts(
    tmp_path: Path, kind: Format, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The job dies between its two commits, or after them, and is planned with a longer batch each time, under another
    life of the store; the last batch is planned once more when it has landed. Each of the four losses has one row, and
    each fact is in the table once."""
    path, folder, checkpoint = tmp_path / "facts.db", tmp_path / "lake" / "facts", tmp_path / "checkpoint"
    lives = list[str]()
    for number in (1, 2, 3, 4):
        with FactStore.open(path, "enterprise", settings=making.AT_ONCE) as store:
            store.appends.define(making.DEFINITIONS).result()
            store.appends.append_samples(making.TELEMETRY, [Sample(1, NOON_NS, float(number))] * 9).result()
            store.appends.append_messages(making.TELEMETRY, [gap_of(number)]).result()
            lives.append(store.life.hex())
    start = StreamOffset(lives[0], 0)
    write_binding(checkpoint, Binding("app", "store", making.TELEMETRY, "", start))

    def run(last_offset: int) -> None:
        planned = json.dumps(StreamOffset(lives[last_offset // 10 - 1], last_offset).to_json())
        (checkpoint / "offsets").mkdir(exist_ok=True)
        (checkpoint / "offsets" / "0").write_text(f"v1\n{{}}\n{planned}")
        lander = Lander(checkpoint, StoreFile(str(path)), making.TELEMETRY, folder, kind)
        lander(Frame(path, last_offset), 0)  # type: ignore[arg-type]

    def dying(target: Any, *given: Any) -> None:
        if target._folder == folder:
            raise JobRefused("killed")
        commit(target, *given)

    sink: Any = tables._Delta if kind == "delta" else tables._Folders
    commit = sink.commit
    with monkeypatch.context() as broken:
        broken.setattr(sink, "commit", dying)
        for last_offset in (10, 20):
            with pytest.raises(JobRefused, match="killed"):
                run(last_offset)
    for last_offset in (30, 40, 40):
        run(last_offset)
    incidents = landed_rows(tables.paths(incidents_of(folder)), ("what", "offset"))
    writers = json.loads((folder / tables.WRITERS).read_text())
    assert len(writers) == 1, "after a restart no identities are compared"
    assert incidents == [("samples_lost", 10), ("samples_lost", 20), ("samples_lost", 30), ("samples_lost", 40)]
    assert [offset for (offset,) in landed_rows(tables.paths(folder), ("offset",))] == [*range(1, 41)]


def test_a_batch_without_offsets_is_no_restored_store(tmp_path: Path) -> None:
    """Spark's first batch is empty where there is nothing to read yet: no identities are compared from then on. They
    are where the store is another one, although its log has released more than was read."""
    path, folder, checkpoint = tmp_path / "facts.db", tmp_path / "lake" / "facts", tmp_path / "checkpoint"
    life = making.store(path, [[Sample(1, NOON_NS, float(n))] * 5 for n in range(2)]).life.hex()
    write_binding(checkpoint, Binding("app", "store", making.TELEMETRY, "", StreamOffset(life, 5)))
    (checkpoint / "offsets").mkdir()
    lander = Lander(checkpoint, StoreFile(str(path)), making.TELEMETRY, folder, "parquet")

    def run(batch: int, end: StreamOffset) -> int:
        (checkpoint / "offsets" / str(batch)).write_text(f"v1\n{{}}\n{json.dumps(end.to_json())}")
        lander(Frame(path, end.offset), batch)  # type: ignore[arg-type]
        return len(json.loads((folder / tables.WRITERS).read_text()))

    assert run(0, StreamOffset(life, 5)) == 1
    path.unlink()
    other = making.store(path, [[Sample(1, NOON_NS, float(n))] * 5 for n in range(4)]).life.hex()
    making.release(path, 10)
    assert run(1, StreamOffset(other, 10)) == 2


def test_a_range_that_grew_is_in_the_incidents_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The job dies between its two commits, and is planned with a longer batch, whose damage goes on: the offsets
    beyond those that have a row have one, too."""
    path, folder, checkpoint = tmp_path / "facts.db", tmp_path / "lake" / "facts", tmp_path / "checkpoint"
    life = making.store(path, [[Sample(1, NOON_NS, float(n))] * 5 for n in range(4)]).life.hex()
    write_binding(checkpoint, Binding("app", "store", making.TELEMETRY, "", StreamOffset(life, 0)))
    (checkpoint / "offsets").mkdir()

    def run(last_offset: int) -> Lander:
        planned = json.dumps(StreamOffset(life, last_offset).to_json())
        (checkpoint / "offsets" / "0").write_text(f"v1\n{{}}\n{planned}")
        lander = Lander(checkpoint, StoreFile(str(path)), making.TELEMETRY, folder, "parquet")
        lander(Frame(path, last_offset), 0)  # type: ignore[arg-type]
        return lander

    commit, writers = tables._Folders.commit, [folder]

    def dying(target: Any, *given: Any) -> None:
        if target._folder in writers:
            raise JobRefused("killed")
        commit(target, *given)

    monkeypatch.setattr(tables._Folders, "commit", dying)
    damage(path, 6)
    with pytest.raises(JobRefused, match="killed"):
        run(10)
    damage(path, 11)
    writers.clear()
    assert run(20).totals.facts_missing == 10
    rows = landed_rows(tables.paths(incidents_of(folder)), ("what", "offset", "last_offset"))
    assert rows == [(UNREAD, 6, 10), (UNREAD, 11, 15)]


@given(st.integers(1, 50), st.integers(0, 50), st.lists(st.integers(1, 60), unique=True))
def test_missing_and_seen_are_the_whole(first: int, count: int, seen: list[int]) -> None:
    """Every offset of a range is either in a run that was seen or in one that is missing."""
    whole = OffsetRange(first, first + count - 1)
    found = missing(whole, runs(sorted(seen)))
    assert [n for hole in found for n in range(hole.first, hole.last + 1)] == [
        n for n in range(whole.first, whole.last + 1) if n not in seen
    ]
    assert all(hole.facts for hole in found)  # each is a row of the incidents


def test_what_a_task_reports_arrives() -> None:
    """Files, runs, declared losses and the count of facts that were there already, as the texts that Spark collects of
    several tasks."""
    file = File("zone=a/x.parquet", "2026-01-31", "a", 5, 700, (1, 9), (3, 7), (10, 20))
    loss = Incident("samples_lost", "s", 4, 4, 15, "tag:a/b", "a", "e", 5, '{"count": 2}')
    ours = Manifest([file], [OffsetRange(1, 4), OffsetRange(6, 9)], [loss], 3)
    theirs = Manifest(seen=[OffsetRange(5, 5)], known=2)
    assert Manifest.of([*ours.lines(), *Manifest().lines(), *theirs.lines()]) == Manifest(
        [file], [*ours.seen, *theirs.seen], [loss], 5
    )


def test_a_missing_range_has_its_reason() -> None:
    """What lies before the first offset held was released; what lies behind is damaged; without the store it is not
    known. Released and damaged offsets of one range are two rows."""
    rows = unread("s", [OffsetRange(5, 12), OffsetRange(20, 20)], 9, 77)
    assert [
        (incident.what, incident.offset, incident.last_offset, json.loads(incident.detail)["reason"])
        for incident in rows
    ] == [
        (UNREAD, 5, 8, "expired"),
        (UNREAD, 9, 12, "damaged"),
        (UNREAD, 20, 20, "damaged"),
    ]
    [row] = unread("s", [OffsetRange(5, 12)], None, 77, "restored")
    assert json.loads(row.detail)["reason"] == "restored"
    [row] = unread("s", [OffsetRange(5, 12)], None, 77)
    assert json.loads(row.detail) == {"reason": "unknown", "count": 8}


@given(st.lists(st.tuples(st.sampled_from("ab"), st.integers(1, 52), st.integers(1, 9)), max_size=40))
def test_identities_are_those_that_were_added(runs: list[tuple[str, int, int]]) -> None:
    """In runs in any order, one within another, also over the text that goes to the tasks."""
    known, facts = Identities(), list[tuple[str, int]]()
    for zone, first, count in runs:
        known.add(("s", zone, "e"), range(first, first + count))
        facts += [(zone, first + n) for n in range(count)]
    known = Identities.of(known.sealed().to_json())
    asked = [(zone, sequence) for zone in "ab" for sequence in range(1, 62)]
    zones, sequences = zip(*asked, strict=True)
    held = known.has(["s"] * len(asked), zones, ["e"] * len(asked), sequences)
    assert [place for place, is_held in zip(asked, held, strict=True) if is_held] == sorted(set(facts))
    sequence = [facts[0][1] if facts else 1]
    assert not any(known.has(["s"], ["a"], ["other"], sequence))
    assert not any(known.has(["other"], ["a"], ["e"], sequence))


def test_every_declared_loss_becomes_an_incident() -> None:
    """The predicates are those that the agent uses for losses: of the store, but for its daily checkpoint of heads, and
    of sources."""
    text = operational_facts.__doc__ or ""
    lines = [line.split() for line in text.splitlines() if "stream:<zone>" in line or "store:<zone>" in line]
    of_store = {words[0] for words in lines} - {"heads_checkpointed"}
    assert of_store | {gap.GAP_PREDICATE, EVENTS_LOST, gap.FILL_PREDICATE} == DECLARING
