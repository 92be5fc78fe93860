"""`bsfg store verify` finds what a disk can change, wherever it is, and names the place; an undamaged store has no
damage. A damaged batch is a named hole, never a changed fact or an error for its neighbours, and is reported once."""

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from click.testing import CliRunner

from agent.cli import bsfg
from agent.errors import StoreBusy
from agent.fact_store import FactStore, StoreReader
from agent.fact_store.append.queue import WriteQueue
from agent.fact_store.core.page_assembly import PageAssembly, parse_row
from agent.fact_store.integrity import damage_registry
from agent.fact_store.integrity.verify import VerifyCounts, verify_store
from agent.pages import Hole, OriginRange
from tests.fact_store.durability.faults import Faults, full_error
from tests.fact_store.making import (
    AT_ONCE,
    EVERYTHING,
    LIFE,
    OPERATIONAL,
    TELEMETRY,
    Elsewhere,
    damages,
    done,
    message,
    past_the_triggers,
    plant,
    samples,
    tag,
)
from tests.waiting import wait_until


def filled(folder: Path) -> Path:
    """A store with own samples and messages, a peer's batches, and three consumers, one with a confirmed range beyond
    its frontier."""
    north = Elsewhere("north", "facts.north", LIFE)
    with plant(folder) as store:
        done(store.appends.define([tag(2), tag(3)]))
        for n in range(4):
            done(store.appends.append_samples(TELEMETRY, samples(10, 1 + 10 * n)))
            done(store.appends.append_message(OPERATIONAL, message(f"id-{n}")))
            north.put(store, [north.seal(5)], n + 1)
        for name in ("first", "idmz", "last"):
            done(store.consumers.register(name, "idmz", TELEMETRY))
        done(store.consumers.confirm("idmz", 10))
        done(store.consumers.confirm("idmz", 30, 21))
    return folder / "facts.db"


def test_a_whole_store_has_no_damage(tmp_path: Path) -> None:
    """Verification of an undamaged store finds nothing and checks everything."""
    counted = VerifyCounts()
    assert not damages(filled(tmp_path), counted)
    assert (counted.batches, counted.facts, counted.streams, counted.definitions) == (12, 64, 3, 5)


AT_11 = "WHERE stream = 1 AND first_offset = 11"


@pytest.mark.parametrize(
    "statement, named",
    [
        ("UPDATE batch SET body = zeroblob(length(body)) WHERE id = 1", "facts.telemetry 1 to 10"),
        ("UPDATE batch SET digest = zeroblob(16) WHERE id = 1", "digest"),
        ("UPDATE batch SET time_max_ns = time_max_ns + 1 WHERE id = 1", "column time_max_ns"),
        ("UPDATE batch SET kind = 2 WHERE id = 1", "column kind"),
        ("UPDATE batch SET bytes_total = bytes_total + 1 WHERE id = 1", "column bytes_total"),
        (f"UPDATE batch SET previous_digest = zeroblob(16) {AT_11}", "column previous_digest"),
        ("UPDATE batch SET origin = 2 WHERE id = 1", "column origin"),
        (f"DELETE FROM batch {AT_11}", "facts.telemetry 11 to 20: the rows are missing"),
        ("DELETE FROM batch WHERE stream = 1 AND first_offset = 31", "facts.telemetry 31 to 40: the rows end at 30"),
        ("UPDATE stream SET name = 'facts.elsewhere' WHERE id = 1", "column stream is facts.elsewhere"),
        (
            "UPDATE definition SET body = CAST(body || ' ' AS BLOB) WHERE zone = 'plant' AND number = 2",
            "tag definition 2",
        ),
        ("DELETE FROM definition WHERE zone = 'plant' AND number = 3", "tag definitions held differ from those"),
        ("UPDATE held SET last_sequence = last_sequence + 1 WHERE origin = 2", "the held ranges end at 21"),
        (
            "UPDATE held SET last_sequence = last_sequence - 5 WHERE origin = 1 AND stream = 1",
            "facts.telemetry 36 to 40: the rows end at 40, the held ranges end at 35",
        ),
        (f"UPDATE batch SET last_offset = 5 {AT_11}", "facts.telemetry 11 to 20 (sequence 11 of plant"),
        (f"UPDATE batch SET last_offset = 5, body = x'00' {AT_11}", "facts.telemetry 11 to 11 (sequence 11 of plant"),
        ("UPDATE held SET last_digest = zeroblob(16) WHERE origin = 2", "another digest than the held range"),
        ("UPDATE consumer SET frontier = 99", "consumer idmz confirmed 99"),
        ("UPDATE confirmed SET first_offset = 9", "consumer idmz confirmed 9 to 30"),
        ("UPDATE origin SET life = zeroblob(16) WHERE id = 2", "column origin"),
    ],
)
def test_every_kind_of_damage_is_named(tmp_path: Path, statement: str, named: str) -> None:
    """One change in one table at a time; verify names it, quick or not, and no range that it names is empty."""
    path = filled(tmp_path)
    with past_the_triggers(path) as connection:
        connection.execute(statement)
    assert any(named in damage for damage in damages(path, is_quick=True)), damages(path)
    found_damages = list(verify_store(path, VerifyCounts(), lambda *_: None, is_quick=False))
    assert found_damages
    assert all(damage.offset <= damage.last_offset for damage in found_damages), damages(path)


def test_a_chain_forged_in_itself_is_broken(tmp_path: Path) -> None:
    """A batch with a valid digest that does not attach to the one before it."""
    path = filled(tmp_path)
    forger = Elsewhere("north", "facts.north", LIFE)
    forger.seal(5)
    other = forger.seal(5, salt=7)
    change = "UPDATE batch SET body = ?, digest = ? WHERE first_offset = 6 AND stream = (SELECT id FROM stream WHERE name = 'facts.north')"
    with past_the_triggers(path) as connection:
        connection.execute(change, (other[:-16], other[-16:]))
    assert any("chain is broken" in damage for damage in damages(path))


def test_the_command_names_damage_and_what_to_do(tmp_path: Path) -> None:
    """Status 0 and one line for an undamaged store, 1 with each damage and advice for a damaged one, also as JSON."""
    path = filled(tmp_path)
    run = CliRunner().invoke(bsfg, ["store", "verify", "--file", str(path)])
    assert (run.exit_code, "as they were written" in run.output) == (0, True), run.output
    data = bytearray(path.read_bytes())
    with closing(sqlite3.connect(path)) as found:
        (body,) = found.execute("SELECT body FROM batch WHERE id = 1").fetchone()
    data[data.index(body) + len(body) - 3] ^= 4
    path.write_bytes(bytes(data))
    run = CliRunner().invoke(bsfg, ["store", "verify", "--quick", "--file", str(path)])
    assert run.exit_code == 1
    assert "damaged: facts.telemetry 1 to 10 (sequence 1 of plant/" in run.output
    assert "check the disk" in run.output
    run = CliRunner().invoke(bsfg, ["store", "verify", "--json", "--file", str(path)])
    assert (run.exit_code, '"offset": 1' in run.output) == (1, True)


def test_migrate_prints_both_versions(tmp_path: Path) -> None:
    """A store that is up to date is reported as such; a running node keeps its store locked."""
    path = filled(tmp_path)
    run = CliRunner().invoke(bsfg, ["store", "migrate", "--file", str(path)])
    assert (run.exit_code, "already" in run.output) == (0, True), run.output
    with plant(tmp_path):
        run = CliRunner().invoke(bsfg, ["store", "migrate", "--file", str(path)])
    assert run.exit_code != 0


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
        for stream in ("facts.other", TELEMETRY):
            done(store.appends.append_samples(stream, samples(10)))
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
