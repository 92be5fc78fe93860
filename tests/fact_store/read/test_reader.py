"""Reading: pages of whole batches, limits, other processes, and no effect on the writer."""

import os
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from agent.fact_store import StoreReader, open_copy
from agent.fact_store.core import catalog, page_assembly
from agent.fact_store.core.errors import StoreClosed, StoreDamaged, StoreForeign, StoreMissing, StoreUnusable
from agent.fact_store.core.records import StreamInfo
from agent.fact_store.sqlite import wal_path
from agent.fact_store.writer import committer
from agent.pages import HeldSum, Hole
from agent.positions import Position
from tests.fact_store.making import EVERYTHING, TELEMETRY, Elsewhere, chain_is_whole, done, plant, samples, values_in
from tests.support.relay_store import ALARMS, HOLES, PLANTS, relay_store

AROUND = ((8, 12), (15, 20), (21, 24))
"""The batches of the relay's telemetry: first and last offset."""


def offsets(reader: StoreReader, after: int, facts: int = EVERYTHING, size: int = EVERYTHING, **more: int) -> list[int]:
    """First offsets of the batches of a page."""
    return [batch.first_offset for batch in reader.read(TELEMETRY, after, facts, size, **more).batches]


@pytest.fixture(scope="module")
def reader(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StoreReader]:
    """A closed store with batches of ten at 1, 11, 21, 31, read by a reader of its own."""
    folder = tmp_path_factory.mktemp("read")
    with plant(folder) as store:
        for n in range(4):
            done(store.appends.append_samples(TELEMETRY, samples(10, 10 * n + 1)))
    with closing(StoreReader(folder / "facts.db")) as found:
        yield found


def test_limits_in_facts(reader: StoreReader) -> None:
    """As many batches as it takes to reach the limit, counted from the first fact asked for."""
    assert offsets(reader, 0, 1) == [1]
    assert offsets(reader, 0, 10) == [1]
    assert offsets(reader, 0, 11) == [1, 11]
    assert offsets(reader, 5, 5) == [1]
    assert offsets(reader, 5, 6) == [1, 11]


def test_limits_in_bytes(reader: StoreReader) -> None:
    """Never more bytes than the limit, except for a first batch that is larger than it."""
    whole = reader.read(TELEMETRY, 0, EVERYTHING, EVERYTHING)
    sizes = [len(batch.sealed) for batch in whole.batches]
    assert offsets(reader, 0, EVERYTHING, 1) == [1]
    assert offsets(reader, 0, EVERYTHING, sizes[0] + sizes[1]) == [1, 11]
    assert offsets(reader, 0, EVERYTHING, sizes[0] + sizes[1] - 1) == [1]


def test_limits_in_batches(reader: StoreReader, monkeypatch: pytest.MonkeyPatch) -> None:
    """A page has no more batches than its limit, also of an origin's sequences. The next page has the
    rest, and no batch is taken for damaged."""
    monkeypatch.setattr(page_assembly, "BATCHES_MAX", 3)
    assert offsets(reader, 0) == [1, 11, 21]
    assert offsets(reader, 30) == [31]
    page = reader.read_sequences(TELEMETRY, *reader.origins(), 1, 40, EVERYTHING, EVERYTHING)
    assert ([batch.first_offset for batch in page.batches], page.holes) == ([1, 11, 21], ())


def test_batches_after_until_offset_are_left_out(reader: StoreReader) -> None:
    """Batches that begin after `until_offset` are left out."""
    assert offsets(reader, 0, until_offset=20) == [1, 11]
    assert offsets(reader, 0, until_offset=21) == [1, 11, 21]
    assert offsets(reader, 20, until_offset=20) == []


def test_other_programs_can_read_the_catalog(reader: StoreReader) -> None:
    """Streams, ends, origins and definitions can be read by other programs."""
    assert reader.zone == "plant"
    (info,) = reader.streams()
    assert (info.name, info.first_offset, info.end_offset) == (TELEMETRY, 1, 40)
    assert info.bytes == sum(len(batch.sealed) for batch in reader.read(TELEMETRY, 0, EVERYTHING, EVERYTHING).batches)
    assert reader.end_offset(TELEMETRY) == 40
    assert reader.end_offset("nothing.here") == 0
    assert [origin.zone for origin in reader.origins()] == ["plant"]
    assert reader.definition_counts() == {"plant": 1}
    assert [(zone, end.count) for zone, end in reader.definition_ends()] == [("plant", 1)]
    assert reader.definitions("plant", Elsewhere().definitions.digest) is None
    assert reader.read("nothing.here", 0, 1, 1).batches == []
    assert (reader.consumers(), reader.incidents()) == ([], [])
    chain_is_whole(reader)


@pytest.mark.parametrize("after, facts, size", [(-1, 1, 1), (0, 0, 1), (0, 1, 0), (0, -5, 1)])
def test_invalid_limits(reader: StoreReader, after: int, facts: int, size: int) -> None:
    """Limits below 1 raise ValueError."""
    with pytest.raises(ValueError, match="facts_max"):
        reader.read(TELEMETRY, after, facts, size)


def test_another_reader_sees_commits(tmp_path: Path) -> None:
    """A reader in another process sees every commit, consumers included."""
    origin = Elsewhere("north")
    with plant(tmp_path) as store:
        reader = StoreReader(tmp_path / "facts.db")
        assert reader.streams() == []
        done(store.appends.append_samples(TELEMETRY, samples(3)))
        assert values_in(reader) == [1, 2, 3]
        origin.put(store, [origin.seal(2)], 9)
        done(store.consumers.register("x", "idmz", TELEMETRY))
        assert reader.read(TELEMETRY, 3, 10, EVERYTHING).batches[0].origin == origin.origin
        assert store.inbound.peer_position("north", TELEMETRY) == Position(origin.origin.life, 9)
        assert [consumer.name for consumer in reader.consumers()] == ["x"]
        assert reader.streams() == store.streams() == [StreamInfo(TELEMETRY, 1, 5, store.streams()[0].bytes)]
        reader.close()
        with pytest.raises(StoreClosed):
            reader.streams()


@pytest.fixture(params=["tail", "file"])
def read_from(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pages come from the tail cache, as in these short logs, or from the file, as further back in a long one."""
    if request.param == "file":
        monkeypatch.setattr(catalog, "TAIL_BYTES_MAX", 0)


@pytest.mark.usefixtures("read_from")
def test_no_fact_is_served_before_its_commit_is_published(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between a commit and the publication of its catalog, a page ends at the published end. Otherwise a peer that
    confirms at once would be beyond the end, and the store would take itself for an old copy."""
    pages, settle = list[tuple[int, int]](), committer.Committer._settle
    with plant(tmp_path) as store:
        done(store.appends.append_samples(TELEMETRY, samples(3)))

        def look(self: committer.Committer, *, is_durable: bool) -> None:
            settle(self, is_durable=is_durable)
            page = store.read(TELEMETRY, 0, EVERYTHING, EVERYTHING)
            pages.append((page.batches[-1].last_offset, page.end_offset))

        monkeypatch.setattr(committer.Committer, "_settle", look)
        done(store.appends.append_samples(TELEMETRY, samples(2, 4)))
        assert store.end_offset(TELEMETRY) == 5
        page = store.read(TELEMETRY, 0, EVERYTHING, EVERYTHING)
        assert (page.batches[-1].last_offset, page.end_offset) == (5, 5)
    assert pages[0] == (3, 3)


@pytest.mark.usefixtures("read_from")
def test_many_threads_read_while_one_writes(tmp_path: Path) -> None:
    """Readers in many threads always see a dense prefix of the log, with at least the facts acknowledged before they
    read."""
    with plant(tmp_path) as store:
        problems = list[str]()
        finished = threading.Event()

        def look() -> None:
            while not finished.is_set():
                before = store.end_offset(TELEMETRY)
                page = store.read(TELEMETRY, 0, EVERYTHING, EVERYTHING)
                ends = [0, *(batch.last_offset for batch in page.batches)]
                starts = [batch.first_offset - 1 for batch in page.batches]
                if ends[:-1] != starts or ends[-1] < before:
                    problems.append(f"{before} was acknowledged, read {ends}")

        readers = [threading.Thread(target=look) for _ in range(4)]
        for thread in readers:
            thread.start()
        for n in range(100):
            done(store.appends.append_samples(TELEMETRY, samples(3, 3 * n + 1)))
        finished.set()
        for thread in readers:
            thread.join()
        assert problems == []
        assert values_in(store) == list(range(1, 301))


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    """A file that is missing, foreign or too new is refused by name, and not created."""
    with pytest.raises(StoreMissing, match="does not exist"):
        StoreReader(tmp_path / "nothing.db")
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(StoreForeign, match="is not a file"):
        StoreReader(tmp_path / "pipe")
    assert not (tmp_path / "nothing.db").exists()
    (tmp_path / "text.db").write_text("this is no database" * 100)
    with pytest.raises(StoreDamaged, match="not a database"):
        StoreReader(tmp_path / "text.db")
    with closing(sqlite3.connect(tmp_path / "other.db")) as other:
        other.execute("CREATE TABLE something (x)")
    with pytest.raises(StoreForeign, match="not a fact store"):
        StoreReader(tmp_path / "other.db")


def test_a_read_that_the_disk_failed_is_no_damage(tmp_path: Path) -> None:
    """SQLite ends a read transaction when the disk fails. The disk's error is raised, not damage."""
    with plant(tmp_path) as store:
        done(store.appends.append_samples(TELEMETRY, samples(10)))

    class Failing(sqlite3.Connection):
        is_armed = False

        def execute(self, sql: str, *parameters: object) -> sqlite3.Cursor:  # type: ignore[override]
            if self.is_armed and "CAST(body AS BLOB)" in sql:
                super().execute("ROLLBACK").close()
                error = sqlite3.OperationalError("disk I/O error")
                error.sqlite_errorname = "SQLITE_IOERR_READ"
                raise error
            return super().execute(sql, *parameters)  # type: ignore[arg-type]

    def connect_failing(uri: str) -> sqlite3.Connection:
        return sqlite3.connect(uri, uri=True, isolation_level=None, check_same_thread=False, factory=Failing)

    with closing(StoreReader(tmp_path / "facts.db", connect_to=connect_failing)) as reader:
        Failing.is_armed = True
        with pytest.raises(StoreUnusable, match="SQLITE_IOERR_READ") as raised:
            reader.read(TELEMETRY, 0, EVERYTHING, EVERYTHING)
        assert not isinstance(raised.value, StoreDamaged)


def test_pages_of_two_streams_and_plants_lead_around_two_holes(tmp_path: Path) -> None:
    """From each offset, at once and page by page: the batches behind it, and what is left of the holes. The other
    stream has none. Of a plant, the holes are in its own sequences."""
    with closing(StoreReader(relay_store(tmp_path))) as reader:
        for after in range(25):
            page = reader.read(TELEMETRY, after, EVERYTHING, EVERYTHING)
            assert [batch.first_offset for batch in page.batches] == [at for at, end in AROUND if end > after]
            left = [replace(hole, first_offset=max(hole.first_offset, after + 1)) for hole in HOLES]
            assert [*page.holes] == [hole for hole in left if hole.last_offset > after]
        assert [batch.first_offset for batch in reader.read(ALARMS, 0, EVERYTHING, EVERYTHING).batches] == [1, 3, 6]
        assert not reader.read(ALARMS, 0, EVERYTHING, EVERYTHING).holes
        after, batches, holes = 0, list[int](), list[Hole]()
        while after < 24:
            page = reader.read(TELEMETRY, after, 1, 1)
            batches += [batch.first_offset for batch in page.batches]
            holes += page.holes
            after = max(batch.last_offset for batch in (*page.batches, *page.holes))
        assert (batches, holes) == ([8, 15, 21], [*HOLES])
        of_plants = {
            (stream, node): reader.read_sequences(
                stream, origin, 1, 3 if stream == ALARMS else 9, EVERYTHING, EVERYTHING
            )
            for stream in (TELEMETRY, ALARMS)
            for node, origin in PLANTS.items()
        }
        assert {key: [batch.first_offset for batch in page.batches] for key, page in of_plants.items()} == {
            (TELEMETRY, "plant-a"): [5],
            (TELEMETRY, "plant-a-2"): [1],
            (TELEMETRY, "plant-b"): [6],
            (ALARMS, "plant-a"): [1],
            (ALARMS, "plant-a-2"): [],
            (ALARMS, "plant-b"): [1, 3],
        }
        assert {key: page.holes for key, page in of_plants.items() if page.holes} == {
            (TELEMETRY, "plant-a"): (Hole(1, 4, "expired"),),
            (TELEMETRY, "plant-a-2"): (Hole(7, 9, "absent"),),
            (TELEMETRY, "plant-b"): (Hole(1, 3, "expired"), Hole(4, 5, "damaged")),
            (ALARMS, "plant-a-2"): (Hole(1, 3, "absent"),),
        }


def test_a_sum_is_of_one_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A page that is stored between the two reads of a sum is in both or in neither: here in neither."""
    old, new = (Elsewhere("north", life=bytes([0, 0, 0, 0, 0, at, *range(10)])) for at in (1, 2))
    read = StoreReader.earlier_lives
    with plant(tmp_path) as store:
        for origin in (old, new):
            origin.put(store, [origin.seal(10)])
        before = store.reader.held_below(TELEMETRY, "north", old.origin.life)

        def put_first(reader: StoreReader, *asked: Any) -> Any:
            old.put(store, [old.seal(10)])
            return read(reader, *asked)

        monkeypatch.setattr(StoreReader, "earlier_lives", put_first)
        assert store.reader.held_below(TELEMETRY, "north", old.origin.life) == before == (HeldSum(), 0)


def test_a_copy_on_a_read_only_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is read without the shared memory that SQLite would make beside it, if the store was closed; with a log beside
    it, facts could be missing, and SQLite decides."""
    with plant(tmp_path) as store:
        done(store.appends.append_samples(TELEMETRY, samples(1)))
        path = store.path
    monkeypatch.setattr(os, "statvfs", lambda _: SimpleNamespace(f_flag=os.ST_RDONLY))
    before = {*tmp_path.iterdir()}
    with closing(open_copy(path)) as reader:
        assert offsets(reader, 0) == [1]
        assert {*tmp_path.iterdir()} == before
    wal_path(path).touch()
    with closing(open_copy(path)) as reader:
        assert offsets(reader, 0) == [1]
        assert {*tmp_path.iterdir()} > before
