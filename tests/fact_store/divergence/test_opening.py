"""Opening a store: the PRAGMAs that durability needs are set and read back, and a file of another program is refused
unchanged."""

import os
import re
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from agent.fact_store import FactStore, StoreReader
from agent.fact_store.core.errors import (
    StoreDamaged,
    StoreForeign,
    StoreLocked,
    StoreMissing,
    StoreUnusable,
)
from agent.fact_store.sqlite import connection, migrations
from agent.fact_store.sqlite.queries import statements
from agent.settings.store import StoreSettings
from tests.fact_store.making import AT_ONCE, TELEMETRY, done, plant, samples, values_in


@contextmanager
def by_hand(path: Path) -> Iterator[sqlite3.Connection]:
    """A plain connection to a closed store, as another program opens it."""
    with closing(sqlite3.connect(path, isolation_level=None)) as found:
        yield found


def shape(found: sqlite3.Connection) -> dict[str, str]:
    """Every table, index and trigger of a database by name, without those of the migrations and without line breaks."""
    rows = found.execute("SELECT name, sql FROM sqlite_schema WHERE sql IS NOT NULL")
    return {name: re.sub(r"\s*([,()])\s*", r"\1", sql) for name, sql in rows if "_sqlite_migrations" not in name}


def test_settings_are_read_back(tmp_path: Path) -> None:
    """The writer runs with synchronous=FULL, WAL and no mmap, and REPLACE does not evade the triggers that keep facts
    as they are; readers can only read. The library that makes the tables sets some of it for a new file, so the file is
    opened a second time."""
    with plant(tmp_path) as store:
        done(store.appends.append_samples(TELEMETRY, samples(1)))
    with plant(tmp_path) as store:
        asked = ("synchronous", "journal_mode", "wal_autocheckpoint", "cache_size", "mmap_size", "foreign_keys")
        writer = store._writer.committer._connection
        assert [writer.execute(f"PRAGMA {name}").fetchone()[0] for name in asked] == [2, "wal", 1000, -8192, 0, 1]
        with pytest.raises(sqlite3.IntegrityError, match="append-only"):
            writer.execute("REPLACE INTO batch SELECT * FROM batch")
        with store.reader._reading() as reader, pytest.raises(sqlite3.OperationalError, match="readonly"):
            reader.execute("DELETE FROM held")


def test_a_setting_that_does_not_hold_is_refused(tmp_path: Path) -> None:
    """SQLite ignores an unknown setting silently; the store refuses to open."""

    class Stubborn(sqlite3.Connection):
        def execute(self, sql: str, *parameters: object) -> sqlite3.Cursor:
            if sql == "PRAGMA synchronous = FULL":
                sql = "PRAGMA synchronous = NORMAL"
            return super().execute(sql, *parameters)

    def stubborn(uri: str) -> sqlite3.Connection:
        return sqlite3.connect(uri, uri=True, isolation_level=None, check_same_thread=False, factory=Stubborn)

    with pytest.raises(StoreUnusable, match="synchronous = 1 after it was set to 2"):
        FactStore.open(tmp_path / "facts.db", "plant", connect_to=stubborn)
    with plant(tmp_path):
        pass


def test_a_clean_close_leaves_one_file(tmp_path: Path) -> None:
    """After an orderly close all data is in the database file, and the WAL is checkpointed."""
    with plant(tmp_path) as store:
        done(store.appends.append_samples(TELEMETRY, samples(100)))
        store.read(TELEMETRY, 0, 1, 1)
    assert sorted(file.name for file in tmp_path.iterdir()) == ["facts.db", "facts.db.ballast", "facts.db.lock"]


def test_a_second_process_is_refused(tmp_path: Path) -> None:
    """A second process is refused with the pid of the first; when the first has ended, however, the store can be
    opened."""
    program = (
        "import sys; from pathlib import Path; from agent.fact_store import FactStore\n"
        "store = FactStore.open(Path(sys.argv[1]), 'plant'); print('open', flush=True); sys.stdin.read()\n"
    )
    path = tmp_path / "facts.db"
    with subprocess.Popen(
        [sys.executable, "-c", program, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "open\n"
        with pytest.raises(StoreLocked, match=f"pid {other.pid}"):
            FactStore.open(path, "plant")
        other.kill()
    with plant(tmp_path) as store, pytest.raises(StoreLocked, match=f"pid {os.getpid()}"):
        FactStore.open(store.path, "plant")


def test_missing_and_unwritable_folders(tmp_path: Path) -> None:
    """A folder that is missing or cannot be written is named, and no file is made."""
    with pytest.raises(StoreMissing, match="create it, or correct state_dir"):
        FactStore.open(tmp_path / "nowhere" / "facts.db", "plant")
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(StoreUnusable, match="/proc cannot be written"):
        FactStore.open(Path("/proc/facts.db"), "plant")


def test_another_zones_store(tmp_path: Path) -> None:
    """The store of another zone is refused with both names, and still opens for its own."""
    with plant(tmp_path):
        pass
    with pytest.raises(StoreForeign, match="zone 'plant', this node is 'idmz'"):
        FactStore.open(tmp_path / "facts.db", "idmz")
    with plant(tmp_path):
        pass


def test_other_programs_files(tmp_path: Path) -> None:
    """Another program's database, or a file that is no database, is refused and not changed by a byte."""
    other = tmp_path / "other.db"
    with by_hand(other) as found:
        found.execute("CREATE TABLE something (x)")
    text = tmp_path / "text.db"
    text.write_bytes(b"no database at all" * 1000)
    for path, error in ((other, StoreForeign), (text, StoreDamaged)):
        before = path.read_bytes()
        with pytest.raises(error, match=path.name):
            FactStore.open(path, "plant")
        assert path.read_bytes() == before


def test_a_newer_format_is_refused(tmp_path: Path) -> None:
    """Tables of the right shape whose meaning is unknown are not interpreted."""
    with plant(tmp_path):
        pass
    with by_hand(tmp_path / "facts.db") as found:
        found.execute("UPDATE store SET format = 99")
    with pytest.raises(StoreForeign, match="format 99"):
        FactStore.open(tmp_path / "facts.db", "plant")


@pytest.mark.parametrize(
    "damage, why",
    [
        ("UPDATE held SET last_sequence = last_sequence - 1", "the last batch differs from the held range"),
        ("UPDATE held SET last_digest = zeroblob(16)", "the last batch differs from the held range"),
        ("INSERT INTO held SELECT stream, origin, 2, 2, last_digest, last_digest FROM held", "overlap"),
        ("UPDATE consumer SET frontier = 100", "beyond the log"),
        ("UPDATE origin SET id = 2", "but the origin is missing"),
        ("DELETE FROM store", "the record of its zone is missing"),
    ],
)
def test_tables_that_contradict_each_other(tmp_path: Path, damage: str, why: str) -> None:
    """A store whose tables contradict each other is refused."""
    with plant(tmp_path) as store:
        done(store.appends.append_samples(TELEMETRY, samples(3)))
        done(store.consumers.register("x", "idmz", TELEMETRY))
    with by_hand(tmp_path / "facts.db") as found:
        found.execute(damage)
    with pytest.raises(StoreUnusable, match=why):
        FactStore.open(tmp_path / "facts.db", "plant")


def test_a_value_that_no_program_wrote(tmp_path: Path) -> None:
    """A flipped bit makes a number NULL in spite of NOT NULL. The store is refused as damaged, so a node quarantines
    it; it does not count as a mistake of the program."""
    with plant(tmp_path) as store:
        done(store.appends.append_samples(TELEMETRY, samples(3)))
    promised, dropped = "count INTEGER NOT NULL CHECK (count > 0)", "count INTEGER"
    change = "UPDATE sqlite_schema SET sql = replace(sql, ?, ?) WHERE name = 'batch'"
    with by_hand(tmp_path / "facts.db") as found:
        trigger = found.execute("SELECT sql FROM sqlite_schema WHERE name = 'batch_update_refused'").fetchone()[0]
        found.execute("DROP TRIGGER batch_update_refused")
        found.execute("PRAGMA writable_schema = ON")
        found.execute(change, (promised, dropped))
    with by_hand(tmp_path / "facts.db") as found:
        found.execute("PRAGMA ignore_check_constraints = ON")
        found.execute("UPDATE batch SET count = NULL")
        found.execute(trigger)
        found.execute("PRAGMA writable_schema = ON")
        found.execute(change, (dropped, promised))
    with pytest.raises(StoreDamaged, match="holds an impossible value"):
        FactStore.open(tmp_path / "facts.db", "plant")


@pytest.mark.parametrize("table, column", [("stream", "name"), ("zone", "name"), ("store", "zone")])
def test_text_that_no_program_wrote(tmp_path: Path, table: str, column: str) -> None:
    """A flipped bit makes text invalid UTF-8, for which Python raises an error without SQLite's name. It is damage, so
    a node quarantines the file; otherwise it would not start until an operator comes."""
    with plant(tmp_path) as store:
        done(store.appends.append_samples(TELEMETRY, samples(3)))
    with by_hand(tmp_path / "facts.db") as found:
        found.execute(f"UPDATE {table} SET {column} = CAST(x'66ff' AS TEXT)")
    with pytest.raises(StoreDamaged, match=r"UTF-8|origin is missing"):
        FactStore.open(tmp_path / "facts.db", "plant")
    with FactStore.open(tmp_path / "facts.db", "plant", unattended=True) as store:
        assert [incident.kind for incident in store.reader.incidents()] == ["quarantined"]


def broken(path: Path, table: str, promised: str, dropped: str, update: str) -> None:
    """Change rows against a promise of their table."""
    change = "UPDATE sqlite_schema SET sql = replace(sql, ?, ?) WHERE name = ?"
    for asked, given, first in ((promised, dropped, "SELECT 1"), (dropped, promised, update)):
        with by_hand(path) as found:
            found.execute(first)
            found.execute("PRAGMA writable_schema = ON")
            found.execute(change, (asked, given, table))


def test_a_stream_without_a_name(tmp_path: Path) -> None:
    """Damage, not a mistake of the program: a stream whose name is NULL. A power cut amid a checkpoint leaves such
    pages of two states where the log is lost as well."""
    with plant(tmp_path) as store:
        done(store.appends.append_samples(TELEMETRY, samples(3)))
    update = "UPDATE stream SET name = NULL"
    broken(tmp_path / "facts.db", "stream", "name TEXT NOT NULL UNIQUE", "name TEXT UNIQUE", update)
    with pytest.raises(StoreDamaged, match="impossible value: name is NoneType"):
        FactStore.open(tmp_path / "facts.db", "plant")


@pytest.mark.parametrize(
    "table, column", [("stream", "released_offset"), ("stream", "released_bytes"), ("mark", "unix_ms")]
)
def test_a_number_of_a_stream_that_is_none(tmp_path: Path, table: str, column: str) -> None:
    """A changed bit in the header of a row makes a number bytes, whatever the column promises. The store says so when
    it opens, and not with an error of Python at the first page."""
    with plant(tmp_path) as store:
        done(store.appends.append_samples(TELEMETRY, samples(3)))
    update = f"UPDATE {table} SET {column} = x'07'"
    broken(tmp_path / "facts.db", table, f"{column} INTEGER", f"{column} ANY", update)
    with pytest.raises(StoreDamaged, match="impossible value"):
        FactStore.open(tmp_path / "facts.db", "plant")


def test_an_end_of_a_stream_that_is_no_number(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A reader without the node names it as damage, too, also in a page that is not the last one."""
    with plant(tmp_path) as store:
        for first in (1, 4):
            done(store.appends.append_samples(TELEMETRY, samples(3, first)))
    monkeypatch.setattr(StoreReader, "_end_of", lambda *_, **__: b"\r")
    with closing(StoreReader(tmp_path / "facts.db")) as reader, pytest.raises(StoreDamaged, match="impossible value"):
        reader.read(TELEMETRY, 0, 1, 1000)


def test_a_broken_constraint_at_the_opening_is_damage() -> None:
    """Pages of two states, as above: the row that an opening inserts is missing in the table and present in its index.
    The file is quarantined, as with other damage. If the node ended there, it would not start again."""
    with closing(sqlite3.connect(":memory:")) as found:
        found.execute("CREATE TABLE stream (name TEXT UNIQUE)")
        found.execute("INSERT INTO stream VALUES ('a')")
        with pytest.raises(sqlite3.IntegrityError) as caught:
            found.execute("INSERT INTO stream VALUES ('a')")
    assert isinstance(connection.reading_error(Path("facts.db"), caught.value), StoreDamaged)


def test_a_first_start_cut_short_is_repeated(tmp_path: Path) -> None:
    """A first start killed at any of its steps leaves a file that the next start can use."""
    path = tmp_path / "facts.db"
    path.touch()
    with plant(tmp_path) as store:
        assert store.zone == "plant"
    path.unlink()
    with by_hand(path) as found:  # a power cut after the first of the settings that SQLite writes one by one
        found.executescript("PRAGMA auto_vacuum = INCREMENTAL; CREATE TABLE x (y); DROP TABLE x;")
        assert found.execute("PRAGMA application_id").fetchone()[0] == 0
    assert path.stat().st_size > 0
    with plant(tmp_path):
        pass
    path.unlink()
    connection.connect_writer(path).close()
    with plant(tmp_path):
        pass
    path.unlink()
    with closing(connection.connect_writer(path)) as found:
        migrations.migrate(found)
    with plant(tmp_path) as store:
        done(store.appends.append_samples(TELEMETRY, samples(2)))
        assert values_in(store) == [1, 2]


def test_migrations_lead_to_the_schema(tmp_path: Path) -> None:
    """Migrating takes each step once, whole and in order. The tables, indexes and triggers are those of the files, also
    after a second call."""
    with by_hand(tmp_path / "migrated.db") as migrated, by_hand(tmp_path / "written.db") as written:
        migrations.migrate(migrated)
        migrations.migrate(migrated)
        for file in sorted(Path(migrations.__file__).parent.glob("*.sql")):
            for statement in statements(file.read_text()):
                written.execute(statement)
        assert shape(migrated) == shape(written)
        assert migrations.applied(migrated) == [file.stem for file in migrations.FILES]


@pytest.mark.parametrize(
    "sql",
    [
        "UPDATE batch SET body = x'00'",
        "UPDATE batch SET last_offset = last_offset",
        "DELETE FROM batch",
        "REPLACE INTO batch SELECT * FROM batch",
        "UPDATE definition SET body = x'00'",
        "DELETE FROM definition",
        "REPLACE INTO definition SELECT * FROM definition",
    ],
)
def test_invariant_14_nothing_is_changed_in_place(tmp_path: Path, sql: str) -> None:
    """Stored facts and definitions are never updated or deleted, not even by a mistake in our own SQL."""
    with plant(tmp_path) as store:
        done(store.appends.append_samples(TELEMETRY, samples(3)))
    with closing(connection.connect_writer(tmp_path / "facts.db")) as found:
        with pytest.raises(sqlite3.IntegrityError, match="append-only"):
            found.execute(sql)
        found.execute("UPDATE stream SET released_offset = 3")
        found.execute("DELETE FROM batch")


def test_settings_name_their_problems() -> None:
    """Each invalid setting is named with its reason; the defaults have none."""
    assert list(StoreSettings().problems()) == []
    wrong = StoreSettings(commit_interval_ms=-1, batch_facts_target=0, queue_facts_max=-1, queue_bytes_max=1)
    names = [name for name, _ in wrong.problems()]
    assert names == ["commit_interval_ms", "batch_facts_target", "queue_facts_max", "queue_bytes_max"]
    assert AT_ONCE.commit_interval_ms == 0
