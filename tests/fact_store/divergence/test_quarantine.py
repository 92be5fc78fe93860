"""A file that cannot be used is quarantined and a new store begins; no fact held is lost."""

import json
import shutil
import sqlite3
import sys
from contextlib import closing
from pathlib import Path

import pytest

from agent.errors import StoreFull
from agent.fact_store import FactStore
from agent.fact_store.core.errors import StoreDamaged, StoreForeign
from agent.fact_store.divergence import witness
from agent.fact_store.divergence.quarantine import mark_suspect, quarantine, quarantined_files
from agent.fact_store.divergence.witness import LiveWitness, WitnessedEnds, read_witness
from agent.fact_store.sqlite import NO_LOG, LogEnd, read_header
from agent.pages import Page
from agent.positions import Position
from tests.fact_store.durability.faults import Faults, broken_error, full_error
from tests.fact_store.making import (
    AT_ONCE,
    EVERYTHING,
    LIMIT_S,
    TELEMETRY,
    done,
    failed,
    parsed,
    said_in,
    samples,
    tag,
    unattended,
    values_in,
)
from tests.support.received import chains_in, put_page


def fill(store: FactStore, first: int, count: int = 10) -> None:
    """Some samples."""
    done(store.appends.define([tag(1)]))
    done(store.appends.append_samples(TELEMETRY, samples(count, first)))


def pull(source: FactStore, target: FactStore, offset: int = 0) -> int:
    """Copy a stream from one store to another; returns how many facts were new."""
    page = source.read(TELEMETRY, offset, EVERYTHING, EVERYTHING)
    definitions = chains_in(source)
    position = Position(source.life, page.end_offset)
    batches = [batch.sealed for batch in page.batches]
    return done(put_page(target, source.zone, TELEMETRY, parsed(batches), definitions, position)).stored_facts


@pytest.mark.parametrize("ruin", ["not a database" * 400, None], ids=["no SQLite file", "marked suspect"])
def test_a_file_that_cannot_be_used_is_quarantined(tmp_path: Path, ruin: str | None) -> None:
    """The node opens with a new store, and the old file is kept beside it with its reason. The new
    store reports it once. An opening that is not unattended raises instead."""
    with unattended(tmp_path) as store:
        fill(store, 1)
    if ruin is None:
        mark_suspect(tmp_path / "facts.db", "database disk image is malformed")
    else:
        (tmp_path / "facts.db").write_text(ruin)
        (tmp_path / "facts.db-wal").write_text("that of a killed node")
        with pytest.raises(StoreDamaged):
            FactStore.open(tmp_path / "facts.db", "plant")
    for _ in range(2):
        with unattended(tmp_path) as store:
            fill(store, 1)
            (aside,) = quarantined_files(tmp_path / "facts.db")
            (notice,) = said_in(store, "store_quarantined")
            assert (notice["file"], notice["bytes"], notice["because"]) == (aside.file, aside.bytes, aside.why)
            assert [incident.kind for incident in store.reader.incidents()] == ["quarantined"]
            assert store.integrity().quarantined == ((aside.file, aside.bytes),)
    assert not list(tmp_path.glob("*.kept")), "a second name would hold the space of a log that is removed"
    if ruin is None:
        with FactStore.open(tmp_path / aside.file, "plant") as old:
            assert values_in(old) == list(range(1, 11))


def test_a_foreign_store_is_not_quarantined(tmp_path: Path) -> None:
    """The store of another zone is an operator's mistake, and its file is not renamed."""
    with unattended(tmp_path) as store:
        fill(store, 1)
    with pytest.raises(StoreForeign):
        unattended(tmp_path, "elsewhere")
    assert not quarantined_files(tmp_path / "facts.db")


def test_an_interrupted_quarantine_is_completed(tmp_path: Path) -> None:
    """After a power cut between two renames, the same name is used and the parts stay together."""
    with unattended(tmp_path) as store:
        fill(store, 1)
    path = tmp_path / "facts.db"
    (tmp_path / "facts.db.suspect").write_text(json.dumps({"why": "torn", "as": "facts.db.damaged-then"}))
    path.rename(tmp_path / "facts.db.damaged-then")
    with unattended(tmp_path) as store:
        assert [aside.file for aside in quarantined_files(path)] == ["facts.db.damaged-then"]
        assert said_in(store, "store_quarantined")[0]["because"] == "torn"


def test_the_witness_follows_each_commit(tmp_path: Path) -> None:
    """Ends, new streams and the end of the log are in the witness at once. A damaged line of it is left out."""
    path = tmp_path / "facts.db"
    with closing(sqlite3.connect(path, isolation_level=None)) as database:
        database.execute("PRAGMA journal_mode = WAL")
        database.execute("CREATE TABLE log (body)")
        live = LiveWitness(path, 1, {"a": 1}, database.execute("PRAGMA wal_checkpoint").fetchone()[1])
        database.execute("INSERT INTO log VALUES (1)")
        live.record({})
        header, (_, frames, _) = read_header(path), database.execute("PRAGMA wal_checkpoint").fetchone()
        assert header is not None
        assert read_witness(path) == WitnessedEnds(1, {"a": 1}, LogEnd(header.salts, frames))
    path.unlink()
    live.close()
    live = LiveWitness(path, 1, {"a": 1}, None)
    live.record({"a": 5, "b": 7})
    assert read_witness(path) == WitnessedEnds(1, {"a": 5, "b": 7})
    live.record({"b": 8})
    live.close()
    live.record({"a": 9})
    assert read_witness(path) == WitnessedEnds(1, {"a": 5, "b": 8})
    content = bytearray((tmp_path / "facts.db.witness").read_bytes())
    content[3 * 128 + 70] ^= 1
    (tmp_path / "facts.db.witness").write_bytes(content)
    assert read_witness(path) == WitnessedEnds(1, {"a": 5})


def test_the_witness_leaves_out_a_log_in_which_a_commit_has_failed(tmp_path: Path) -> None:
    """A full disk may leave frames of it there. What is committed after it is acknowledged all the same."""
    faults, path = Faults(), tmp_path / "facts.db"
    with FactStore.open(path, "plant", settings=AT_ONCE, connect_to=faults.connect, unattended=True) as store:
        done(store.appends.define([tag(1)]))
        before = read_witness(path)
        assert before is not None
        assert before.log.frames
        faults.arm("COMMIT", 1, full_error)
        with pytest.raises(StoreFull):
            done(store.appends.append_samples(TELEMETRY, samples(1)))
        done(store.appends.append_samples(TELEMETRY, samples(1)))
        after = read_witness(path)
        assert after is not None
        assert (after.ends, after.log) == ({TELEMETRY: 1}, NO_LOG)


def test_what_a_peer_has_read_further_is_no_loss_of_this_store(tmp_path: Path) -> None:
    """A gateway whose disk was replaced begins a new store, and hears from the zone above that the one before went
    further. That is expected, and stays so after the next start."""
    with unattended(tmp_path) as store:
        store.peer_reads_more("idmz", "it has read offset 9")
    with unattended(tmp_path) as store:
        assert [incident.kind for incident in store.reader.incidents(kinds=["restored"])] == ["restored"]
        assert store.integrity().losses == 0


def test_losses_are_shown_for_a_day(tmp_path: Path) -> None:
    """The status names facts that an opening found missing, for a day: later the incident remains."""
    with unattended(tmp_path) as store:
        store.note_incident("missing", "facts.db", "a new store began").result(LIMIT_S)
        store.note_incident("log_lost", "facts.db", "gone").result(LIMIT_S)
    with closing(sqlite3.connect(tmp_path / "facts.db")) as outside:
        outside.execute("UPDATE incident SET last_unix_ms = last_unix_ms - 86401000 WHERE kind = 'missing'")
        outside.commit()
    with unattended(tmp_path) as store:
        assert store.integrity().losses == 1
        assert sorted(incident.kind for incident in store.reader.incidents()) == ["log_lost", "missing"]


def test_the_scrub_reads_all_batches_and_reports_damage(tmp_path: Path) -> None:
    """A scrub pass over all streams counts batches, finds the damaged one, and starts again; the witness is written at
    the end."""
    with unattended(tmp_path) as store:
        fill(store, 1)
        fill(store, 11)
        done(store.appends.append_samples("facts.shorter", samples(1)))
        while store._watch.scrubber.step(1):
            pass
        assert store.integrity().batches_verified == 3
        assert store.integrity().last_full_pass_unix_ms is not None
    witness = read_witness(tmp_path / "facts.db")
    assert witness is not None
    assert witness.ends == {TELEMETRY: 20, "facts.shorter": 1}


def test_the_scrub_passes_over_a_stream_that_cannot_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A stream with an unreadable index does not stop the scrub of the others, and such a pass does not count as
    complete."""
    with unattended(tmp_path) as store:
        done(store.appends.define([tag(1)]))
        for stream in ("facts.first", "facts.last"):
            done(store.appends.append_samples(stream, samples(1)))
        whole = store._watch.scrubber._read

        def read(stream: str, *asked: int) -> Page:
            if stream == "facts.first":
                raise StoreDamaged("its index is broken")
            return whole(stream, *asked)

        with monkeypatch.context() as broken:
            broken.setattr(store._watch.scrubber, "_read", read)
            with pytest.raises(StoreDamaged):
                store._watch.scrubber.step(1)
            while store._watch.scrubber.step(1):
                pass
        assert store.integrity().batches_verified == 1
        assert store.integrity().last_full_pass_unix_ms is None
        while store._watch.scrubber.step(1):
            pass
        assert store.integrity().last_full_pass_unix_ms is not None


def test_a_quarantined_file_is_reported_without_room_for_the_mark(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a disk without room for the mark a damaged file is quarantined all the same, the node starts with a new store,
    and both are reported."""
    path = tmp_path / "facts.db"
    unattended(tmp_path).close()
    path.write_bytes(b"no database" * 1000)
    for module in (sys.modules[quarantine.__module__], witness):
        monkeypatch.setattr(module, "write_json", lambda *_: None)
    with unattended(tmp_path) as store:
        (aside,) = quarantined_files(path)
        assert [(told.kind, told.subject) for told in store.reader.incidents()] == [("quarantined", aside.file)]
        assert store.integrity().quarantined == ((aside.file, aside.bytes),)


def test_the_newest_quarantined_file_is_reported_also_with_a_wrong_clock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A gateway with its clock in 1970 gives the file a name before that of an older one. The right one is reported all
    the same."""
    path = tmp_path / "facts.db"
    for now_ns in (1_800_000_000 * 10**9, 3600 * 10**9):
        unattended(tmp_path).close()
        path.write_bytes(b"no database" * 1000)
        with monkeypatch.context() as clock:
            clock.setattr("agent.fact_store.store.time.time_ns", lambda now_ns=now_ns: now_ns)
            with unattended(tmp_path) as store:
                (told,) = store.reader.incidents()
    assert told.subject == "facts.db.damaged-19700101T010000Z"
    assert len(quarantined_files(path)) == 2


def test_a_quarantined_file_keeps_its_write_ahead_log(tmp_path: Path) -> None:
    """A file is quarantined with its -wal: commits that SQLite has not checkpointed can still be read."""
    alive, dead = tmp_path / "alive", tmp_path / "dead"
    alive.mkdir()
    dead.mkdir()
    with unattended(alive) as store:
        fill(store, 1)
        for part in ("", "-wal"):  # as a process that was killed leaves them
            shutil.copy(alive / f"facts.db{part}", dead)
    mark_suspect(dead / "facts.db", "database disk image is malformed")
    with unattended(dead):
        (aside,) = quarantined_files(dead / "facts.db")
    with FactStore.open(dead / aside.file, "plant") as old:
        assert values_in(old) == list(range(1, 11))


def test_files_set_aside_in_one_second_have_two_names(tmp_path: Path) -> None:
    """A file quarantined in the same second does not replace the first."""
    path = tmp_path / "facts.db"
    for why in ("first", "second"):
        path.write_text(why)
        quarantine(path, why, 1_000)
    assert [(tmp_path / aside.file).read_text() for aside in quarantined_files(path)] == ["first", "second"]


def test_damage_met_while_writing_sets_the_file_aside(tmp_path: Path) -> None:
    """A node whose commit met a malformed page quarantines the file when it starts again, and begins a new store."""
    faults = Faults()
    with FactStore.open(
        tmp_path / "facts.db", "plant", settings=AT_ONCE, connect_to=faults.connect, unattended=True
    ) as store:
        faults.arm("COMMIT", 1, broken_error)
        assert isinstance(failed(store.appends.define([tag(1)])), StoreDamaged)
        assert isinstance(store.ended.exception(LIMIT_S), StoreDamaged)
    with unattended(tmp_path) as store:
        (aside,) = quarantined_files(tmp_path / "facts.db")
        assert "malformed" in aside.why
