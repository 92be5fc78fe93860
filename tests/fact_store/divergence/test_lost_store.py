"""A store's file is gone, was quarantined or its opening was interrupted: the store that begins in its place reports
once what was there before, and no log is lost."""

import json
import os
import shutil
import signal
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from click.testing import CliRunner

from agent.batch import parse
from agent.cli import bsfg
from agent.errors import StoreError
from agent.fact_store import FactStore
from agent.fact_store.core.errors import StoreDamaged
from agent.fact_store.divergence import scrubber
from agent.fact_store.divergence.quarantine import mark_suspect, quarantined_files
from agent.fact_store.divergence.witness import read_witness
from agent.fact_store.sqlite.connection import connect
from agent.fact_store.sqlite.queries import QUERIES
from agent.fact_store.sqlite.wal_file import HEADER_BYTES, read_header
from tests.fact_store.making import (
    AT_ONCE,
    EVERYTHING,
    OPERATIONAL,
    TELEMETRY,
    done,
    message,
    messages_in,
    samples,
    tag,
    unattended,
    values_in,
)


def fill(store: FactStore) -> None:
    """Ten samples, and a message in a stream that is quiet from then on."""
    if not store.end_offset(OPERATIONAL):
        done(store.appends.append_message(OPERATIONAL, message("once")))
    done(store.appends.define([tag(1)]))
    done(store.appends.append_samples(TELEMETRY, samples(10, store.end_offset(TELEMETRY) + 1)))


def killed(folder: Path) -> int:
    """Leave the files of a killed node: facts in the database, and twenty more in its log only, with a consumer in the
    last commit. Returns the length of the log without that commit."""
    alive = folder / "alive"
    alive.mkdir()
    with unattended(alive) as store:
        fill(store)
    with unattended(alive) as store:
        fill(store)
        fill(store)
        facts = read_witness(alive / "facts.db")
        done(store.consumers.register("idmz.facts", "idmz", TELEMETRY))
        for part in ("", "-wal", ".witness"):
            shutil.copy(alive / f"facts.db{part}", folder)
    shutil.rmtree(alive)
    header = read_header(folder / "facts.db")
    assert facts is not None
    assert header is not None
    return HEADER_BYTES + facts.log.frames * header.frame_bytes


def notices(store: FactStore) -> dict[str, dict[str, object]]:
    """The operational facts of a store, one of each kind at most."""
    facts = [message.fact for message in messages_in(store)]
    found = [(fact.predicate, json.loads(fact.object_json)) for fact in facts if fact.subject.startswith("store:")]
    assert len(found) == len(dict(found))
    return dict(found)


@pytest.mark.parametrize("how", ["deleted", "emptied"])
def test_a_missing_file_is_reported(tmp_path: Path, how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The node begins a new store, and reports how far each stream went, once; after a day
    the incident alone remains."""
    with unattended(tmp_path) as store:
        fill(store)
    path = tmp_path / "facts.db"
    path.unlink()
    if how == "emptied":
        path.touch()
    for _ in range(2):
        with unattended(tmp_path) as store:
            (told,) = store.reader.incidents()
            assert (told.kind, told.subject, told.count) == ("missing", "facts.db", 1)
            assert store.integrity().losses == 1, "the verdict shows it for a day, also after a restart"
            assert "facts.operational up to 1, facts.telemetry up to 10" in told.detail
            assert notices(store)["store_missing"]["streams"] == [
                {"stream": OPERATIONAL, "known_end_offset": 1},
                {"stream": TELEMETRY, "known_end_offset": 10},
            ]
    monkeypatch.setattr(scrubber, "LOSSES_MS", 0)
    with unattended(tmp_path) as store:
        assert store.integrity().losses == 0
        assert [incident.kind for incident in store.reader.incidents()] == ["missing"]


def test_an_opening_that_failed_costs_nothing(tmp_path: Path) -> None:
    """The writer was open already and then no reader: the log stays, so the next opening finds all
    facts."""

    def connect_writer_only(uri: str) -> sqlite3.Connection:
        if uri.endswith("mode=ro"):
            raise sqlite3.OperationalError("unable to open database file")
        return connect(uri)

    killed(tmp_path)
    before = read_witness(tmp_path / "facts.db")
    assert before is not None
    with pytest.raises(StoreError, match="unable to open"):
        FactStore.open(tmp_path / "facts.db", "plant", connect_to=connect_writer_only, unattended=True)
    with unattended(tmp_path) as store:
        assert store.end_offset(TELEMETRY) == before.ends[TELEMETRY]
        assert not store.reader.incidents()


def test_a_first_start_reports_nothing(tmp_path: Path) -> None:
    """An empty folder is no loss."""
    for _ in range(2):
        with unattended(tmp_path) as store:
            assert not store.reader.incidents()
            assert store.integrity().losses == 0


@pytest.mark.parametrize("how", ["deleted", "emptied"])
def test_a_log_without_its_database_is_kept(tmp_path: Path, how: str) -> None:
    """SQLite would delete it. It is quarantined byte for byte, and reported. An opening that is not unattended
    raises."""
    killed(tmp_path)
    path, log = tmp_path / "facts.db", (tmp_path / "facts.db-wal").read_bytes()
    path.unlink()
    if how == "emptied":
        path.touch()
    with pytest.raises(StoreDamaged, match="its write-ahead log exists"):
        FactStore.open(path, "plant")
    with unattended(tmp_path) as store:
        (aside,) = quarantined_files(path)
        assert (tmp_path / aside.file).read_bytes() == log
        assert [(told.kind, told.subject) for told in store.reader.incidents()] == [("quarantined", aside.file)]
        assert store.integrity().quarantined == ((aside.file, len(log)),)


@pytest.mark.parametrize("witness", ["with witness", "without"])
def test_a_missing_log_is_said(tmp_path: Path, witness: str) -> None:
    """A store that was not closed, and whose log is gone: an incident and a fact say so once, with what the witness
    knows, and the store goes on with what it has."""
    killed(tmp_path)
    path = tmp_path / "facts.db"
    (tmp_path / "facts.db-wal").unlink()
    if witness == "without":
        (tmp_path / "facts.db.witness").unlink()
    with pytest.raises(StoreDamaged, match="write-ahead log is missing"):
        FactStore.open(path, "plant")
    lost = [{"stream": TELEMETRY, "end_offset": 10, "known_end_offset": 30}] if witness == "with witness" else []
    for _ in range(2):
        with unattended(tmp_path) as store:
            (told,) = store.reader.incidents()
            assert (told.kind, "write-ahead log is missing" in told.detail) == ("log_lost", True)
            assert notices(store)["log_lost"]["streams"] == lost
            assert ("ends at 10, 30 was acknowledged" in told.detail) == bool(lost)
            assert values_in(store) == list(range(1, 11))


def test_a_log_without_its_last_commit_is_said(tmp_path: Path) -> None:
    """The log is cut behind the last fact, so that no stream ends early: that a commit is lost is said all the same,
    once."""
    os.truncate(tmp_path / "facts.db-wal", killed(tmp_path))
    for _ in range(2):
        with unattended(tmp_path) as store:
            (told,) = store.reader.incidents()
            assert (told.kind, "ends before the last commit that was acknowledged" in told.detail) == ("log_lost", True)
            assert notices(store)["log_lost"]["streams"] == []
            assert values_in(store) == list(range(1, 31))


def test_a_checkpoint_of_another_program_is_no_loss(tmp_path: Path) -> None:
    """SQLite then says of no frame that it is in the log. The killed node's log is whole, and nothing is reported."""

    class Busy(sqlite3.Connection):
        def execute(self, sql: str, *parameters: object) -> sqlite3.Cursor:  # type: ignore[override]
            found = super().execute(sql, *parameters)  # type: ignore[arg-type]
            return super().execute("SELECT 1, -1, -1") if sql == QUERIES["checkpoint"] else found

    def connect_busy(uri: str) -> sqlite3.Connection:
        return sqlite3.connect(uri, uri=True, isolation_level=None, check_same_thread=False, factory=Busy)

    killed(tmp_path)
    with FactStore.open(tmp_path / "facts.db", "plant", connect_to=connect_busy, unattended=True) as store:
        assert not store.reader.incidents()
        assert values_in(store) == list(range(1, 31))


def test_an_old_copy_is_said(tmp_path: Path) -> None:
    """A store put back beside its witness: an incident and a fact name what it had acknowledged, once, and its chain
    goes on from its own end under the life of this opening."""
    with unattended(tmp_path) as store:
        fill(store)
    image = (tmp_path / "facts.db").read_bytes()
    with unattended(tmp_path) as store:
        fill(store)
    (tmp_path / "facts.db").write_bytes(image)
    for _ in range(2):
        with unattended(tmp_path) as store:
            (told,) = store.reader.incidents()
            assert (told.kind, told.subject, told.count) == ("restored", "facts.db", 1)
            assert "facts.telemetry ends at 10, 20 was acknowledged" in told.detail
            assert notices(store)["store_restored"]["streams"] == [
                {"stream": TELEMETRY, "end_offset": 10, "known_end_offset": 20}
            ]
            assert store.integrity().losses == 1
            fill(store)
            last = parse(store.read(TELEMETRY, 0, EVERYTHING, EVERYTHING).batches[-1].sealed).header
            assert (last.origin.life, last.last_sequence) == (store.life, store.end_offset(TELEMETRY))


def test_a_damaged_log_is_kept(tmp_path: Path) -> None:
    """The log whose end could not be used stays beside the store, under a name that the incident and the status
    name."""
    killed(tmp_path)
    path, log = tmp_path / "facts.db", bytearray((tmp_path / "facts.db-wal").read_bytes())
    log[40] ^= 1
    (tmp_path / "facts.db-wal").write_bytes(log)
    with unattended(tmp_path) as store:
        (aside,) = quarantined_files(path)
        assert (tmp_path / aside.file).read_bytes() == log
        (told,) = store.reader.incidents()
        assert "commits follow the damage" in told.detail
        assert aside.file in told.detail
        assert store.integrity().quarantined == ((aside.file, len(log)),)


def die_in_opening(path: Path, step: int) -> bool:
    """Open and close a store in a child process that is killed after this many commits, PRAGMAs and changes; False
    where there are fewer. Changes are in the log at once, before their commit, as of a large transaction."""
    left = step

    class Dying(sqlite3.Connection):
        def execute(self, sql: str, *parameters: object) -> sqlite3.Cursor:
            nonlocal left
            if sql.startswith("BEGIN IMMEDIATE"):
                super().execute("PRAGMA cache_size = 1")
            found = super().execute(sql, *parameters)
            if sql.startswith(("COMMIT", "PRAGMA", "INSERT", "UPDATE")):
                left -= 1
                if left == 0:
                    os.kill(os.getpid(), signal.SIGKILL)
            return found

    def connect_dying(uri: str) -> sqlite3.Connection:
        return sqlite3.connect(uri, uri=True, isolation_level=None, check_same_thread=False, factory=Dying)

    child = os.fork()
    if child == 0:
        status = 1
        try:
            FactStore.open(path, "plant", settings=AT_ONCE, connect_to=connect_dying, unattended=True).close()
            status = 0
        finally:
            os._exit(status)
    _, status = os.waitpid(child, 0)
    assert status in {0, signal.SIGKILL}, status
    return status != 0


@pytest.mark.parametrize(
    "loss", ["quarantined", "missing", "log_lost", "log_lost by damage", "log_lost by a cut", "restored"]
)
def test_a_kill_in_the_opening_hides_nothing(memory: Path, loss: str) -> None:
    """kill -9 after each commit and each other step of the opening that reports a loss. It is reported once: by that
    opening, or by the next one."""
    template = memory / "template"
    template.mkdir()
    length, log = killed(template), template / "facts.db-wal"
    if loss == "quarantined":
        mark_suspect(template / "facts.db", "database disk image is malformed")
    elif loss == "missing":
        (template / "facts.db").unlink()
        (template / "facts.db-wal").unlink()
    elif loss == "log_lost by damage":
        log.write_bytes(log.read_bytes()[:40] + b"damage" + log.read_bytes()[46:])
    elif loss == "log_lost by a cut":
        os.truncate(log, length)
    elif loss == "restored":
        unattended(template).close()
        image = (template / "facts.db").read_bytes()
        with unattended(template) as store:
            fill(store)
        (template / "facts.db").write_bytes(image)
    else:
        log.unlink()
    kills = 0
    for step in range(1, 200):
        folder = memory / str(step)
        shutil.copytree(template, folder)
        was_killed = die_in_opening(folder / "facts.db", step)
        with unattended(folder) as store:
            told = [(incident.kind, incident.count) for incident in store.reader.incidents()]
            assert told == [(loss.partition(" ")[0], 1)], f"killed after step {step}: {told}"
            assert len(notices(store)) == 1
        if not was_killed:
            break
        kills += 1
    print(f"{kills} kills")
    assert kills > 10


@pytest.mark.parametrize("ruined", ["first page", "whole file"])
def test_quarantine_leaves_the_log_beside_the_file(tmp_path: Path, ruined: str) -> None:
    """A damaged file and its log are quarantined unchanged, byte for byte: SQLite does not copy one into the other,
    also where an earlier attempt was killed and left a name behind."""
    killed(tmp_path)
    (tmp_path / "facts.db-wal.kept").write_bytes(b"of an earlier attempt")
    path = tmp_path / "facts.db"
    content = path.read_bytes()
    path.write_bytes(b"\xff" * 4096 + content[4096:] if ruined == "first page" else b"\xff" * len(content))
    # A frame of the first page in the log would hide that it is damaged; the last life wrote none.
    parts = {part: (tmp_path / f"facts.db{part}").read_bytes() for part in ("", "-wal")}
    with unattended(tmp_path) as store:
        (aside,) = quarantined_files(path)
        assert [incident.kind for incident in store.reader.incidents()] == ["quarantined"]
    for part, was in parts.items():
        assert (tmp_path / f"{aside.file}{part}").read_bytes() == was, f"facts.db{part}"


def test_migrate_leaves_the_log_of_a_killed_node(tmp_path: Path) -> None:
    """`bsfg store migrate` before the restart removes nothing that the node needs: it opens without an incident, with
    all facts."""
    killed(tmp_path)
    run = CliRunner().invoke(bsfg, ["store", "migrate", "--file", str(tmp_path / "facts.db")])
    assert run.exit_code == 0, run.output
    with unattended(tmp_path) as store:
        assert store.reader.incidents() == []
        assert values_in(store) == list(range(1, 31))


def test_the_database_itself_says_that_it_is_open(tmp_path: Path) -> None:
    """The mark is in the database file before the first append, without its log, and an orderly close removes it."""

    def is_open(path: Path) -> int:
        with closing(sqlite3.connect(path)) as found:
            return int(found.execute("SELECT is_open FROM store").fetchone()[0])

    copy = tmp_path / "copy"
    for _ in range(2):
        with unattended(tmp_path):
            shutil.copy(tmp_path / "facts.db", copy)
            assert is_open(copy) == 1
        assert not (tmp_path / "facts.db-wal").exists()
        assert is_open(tmp_path / "facts.db") == 0
