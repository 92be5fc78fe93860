"""A damaged batch is a named hole, never a changed fact or an error for its neighbours, and is reported once."""

from pathlib import Path

import pytest

from agent.errors import StoreBusy
from agent.fact_store import FactStore, StoreReader
from agent.fact_store.append.queue import WriteQueue
from agent.fact_store.core.page_assembly import PageAssembly, parse_row
from agent.fact_store.integrity import damage_registry
from agent.pages import Hole, OriginRange
from tests.fact_store.durability.faults import Faults, full_error
from tests.fact_store.making import AT_ONCE, EVERYTHING, TELEMETRY, Elsewhere, done, plant, samples, tag
from tests.waiting import wait_until


def three_batches(folder: Path) -> Path:
    """A store with batches at offsets 1-10, 11-20 and 21-30, the middle one with a flipped bit."""
    with plant(folder) as store:
        for n in range(3):
            done(store.appends.append_samples(TELEMETRY, samples(10, 1 + 10 * n)))
        middle = store.read(TELEMETRY, 10, 1, 1).batches[0].sealed
    path = folder / "facts.db"
    data = bytearray(path.read_bytes())
    data[data.index(middle[:-16]) + len(middle) // 2] ^= 1
    path.write_bytes(bytes(data))
    return path


def test_batches_around_a_damaged_one_are_served(tmp_path: Path) -> None:
    """The batches before and after it are served, the offsets between are a hole, and a page that begins there
    continues."""
    reader = StoreReader(three_batches(tmp_path))
    page = reader.read(TELEMETRY, 0, EVERYTHING, EVERYTHING)
    assert [batch.first_offset for batch in page.batches] == [1, 21]
    assert page.holes == (Hole(11, 20, "damaged"),)
    assert reader.read(TELEMETRY, 14, 1, 1).holes == (Hole(15, 20, "damaged"),)
    assert reader.read(TELEMETRY, 10, 10, 10, until_offset=20).holes == (Hole(11, 20, "damaged"),)
    reader.close()


def test_damage_is_reported_once(tmp_path: Path) -> None:
    """However often it is read: one incident with offsets, origin and sequences, and one fact in the log."""
    three_batches(tmp_path)
    for _ in range(2):
        with FactStore.open(tmp_path / "facts.db", "plant", settings=AT_ONCE) as store:
            for _ in range(3):
                assert store.read(TELEMETRY, 0, EVERYTHING, EVERYTHING).holes == (Hole(11, 20, "damaged"),)
            wait_until(lambda: store.end_offset(TELEMETRY) == 31, "the notice")
            (incident,) = [incident for incident in store.reader.incidents() if incident.kind == "damaged"]
            assert incident.subject == f"{TELEMETRY} 11 to 20"
            assert f"{store.reader.origins()[0]} 11 to 20" in incident.detail


def test_a_hole_that_grows_is_reported_again(tmp_path: Path) -> None:
    """Damage next to a hole makes one larger hole, which is reported, so that it can be repaired. A part of a hole, cut
    by the end of a page, is not reported again."""
    with plant(tmp_path) as store:
        done(store.appends.append_samples(TELEMETRY, samples(30)))
        ranges = [OriginRange("plant", store.life, *ends) for ends in ((11, 20), (21, 30))]

        def find(first: int, last: int, origins: list[OriginRange]) -> list[tuple[int, int]]:
            """Report a hole; returns what is listed as damaged afterwards."""
            store._watch.damages.report(TELEMETRY, Hole(first, last, "damaged"), "why", origins)
            return [(part.first_sequence, part.last_sequence) for part in done(store.inbound.damaged(TELEMETRY))]

        assert find(11, 20, ranges[:1]) == [(11, 20)]
        assert find(11, 30, ranges) == [(11, 20), (21, 30)]
        assert store.end_offset(TELEMETRY) == 32, "a notice for each"
        for part in ((11, 30), (11, 20), (21, 30), (15, 24)):
            find(*part, ranges)
        assert (store.end_offset(TELEMETRY), store.integrity().damages) == (32, 1)
        store._watch.damages.remove_repaired(TELEMETRY, 21, 30)
        assert store.integrity().damages == 0
        find(11, 20, ranges[:1])
        assert store.integrity().damages == 1


@pytest.mark.parametrize("is_busy", [True, False])
def test_damage_that_could_not_be_recorded_is_reported_again(tmp_path: Path, *, is_busy: bool) -> None:
    """The writer has no room for the report, or the disk none for its commit: the next read of the place reports it.
    Otherwise it would not be repaired in this life."""
    faults = Faults()
    with FactStore.open(tmp_path / "facts.db", "plant", settings=AT_ONCE, connect_to=faults.connect) as store:
        done(store.appends.define([tag(1)]))
        done(store.appends.append_samples(TELEMETRY, samples(10)))
        found = Hole(1, 10, "damaged"), "why", [OriginRange("plant", store.life, 1, 10)]
        if is_busy:
            with pytest.MonkeyPatch.context() as patched:
                patched.setattr(WriteQueue, "_reserve", busy)
                store._watch.damages.report(TELEMETRY, *found)
        else:
            faults.arm("COMMIT", 1, full_error)
            store._watch.damages.report(TELEMETRY, *found)
        wait_until(lambda: store.integrity().damages == 0, "the report to be withdrawn")
        assert done(store.inbound.damaged(TELEMETRY)) == []
        store._watch.damages.report(TELEMETRY, *found)
        assert done(store.inbound.damaged(TELEMETRY)) == [OriginRange("plant", store.life, 1, 10)]
        assert store.integrity().damages == 1


def busy(*_: object) -> None:
    """Refuse work as a full queue does."""
    raise StoreBusy("10000 calls wait for the disk")


def test_a_repair_of_one_stream_hides_no_damage_of_another(tmp_path: Path) -> None:
    """The same offsets are damaged in two streams, and those of one are repaired."""
    with plant(tmp_path) as store:
        for stream in (TELEMETRY, "facts.other"):
            done(store.appends.append_samples(stream, samples(10)))
            store._watch.damages.report(stream, Hole(1, 10, "damaged"), "why", [])
        store._watch.damages.remove_repaired(TELEMETRY, 1, 10)
        assert store.integrity().damages == 1
        store._watch.damages.report(TELEMETRY, Hole(1, 10, "damaged"), "why", [])
        assert store.integrity().damages == 2


def test_reports_of_damage_are_limited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A disk that loses thousands of places costs neither memory nor the log without end."""
    monkeypatch.setattr(damage_registry, "REPORTED_MAX", 2)
    with plant(tmp_path) as store:
        done(store.appends.append_samples(TELEMETRY, samples(40)))
        for first in (1, 11, 21, 31):
            store._watch.damages.report(TELEMETRY, Hole(first, first + 9, "damaged"), "why", [])
        assert store.integrity().damages == 2
        done(store.inbound.damaged(TELEMETRY))
        assert len([incident for incident in store.reader.incidents() if incident.kind == "damaged"]) == 2


def test_rows_become_batches_and_holes() -> None:
    """A row is accepted by its bytes alone. Gaps are holes, and released offsets are no damage. A row in another's
    place, of another stream, or with other offsets is skipped."""
    chain = Elsewhere()
    sealed = [chain.seal(10) for _ in range(4)]
    rows = [(1 + 10 * n, 10 + 10 * n, batch[:-16], batch[-16:]) for n, batch in enumerate(sealed)]
    page = PageAssembly(TELEMETRY, 0, EVERYTHING, EVERYTHING, EVERYTHING, released_offset=10)
    for row in (rows[1], (15, 24, *rows[2][2:]), (22, 30, *rows[2][2:]), (b"", 30, *rows[2][2:]), rows[3]):
        assert not page.add_row(row)
    page.finish(45)
    assert [(batch.first_offset, batch.last_offset) for batch in page.batches] == [(11, 20), (31, 40)]
    assert page.holes == [Hole(1, 10, "expired"), Hole(21, 30, "damaged"), Hole(41, 45, "damaged")]
    assert "of stream" in str(parse_row("facts.other", rows[0]))
    assert "bytes" in str(parse_row(TELEMETRY, (1, 10, None, 7)))
