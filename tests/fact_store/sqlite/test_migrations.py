"""A store of the previous release, with facts in it, becomes one of this release and keeps every one of them."""

import sqlite3
from contextlib import closing
from pathlib import Path

from agent.fact_store import FactStore
from agent.fact_store.integrity.verify import VerifyCounts, verify_store
from agent.fact_store.sqlite.connection import connect_writer
from agent.fact_store.sqlite.migrations import FILES, check_known
from agent.fact_store.sqlite.queries import statements
from tests.fact_store.making import AT_ONCE, OPERATIONAL, TELEMETRY, done, ids_in, message, plant, samples, values_in


def first_release(path: Path, source: Path) -> None:
    """A file with the first schema only, filled through SQL with what `source` holds."""
    connect_writer(path).close()
    with closing(sqlite3.connect(path, isolation_level=None)) as found:
        for statement in statements(FILES[0].read_text(encoding="utf-8")):
            found.execute(statement)
        found.execute(
            "CREATE TABLE _sqlite_migrations (id INTEGER PRIMARY KEY, migration_set TEXT, name TEXT, applied_at TEXT)"
        )
        found.execute("INSERT INTO _sqlite_migrations (migration_set, name) VALUES ('bsfg', ?)", (FILES[0].stem,))
        found.execute("ATTACH ? AS source", (str(source),))
        for table in (
            "store",
            "origin",
            "stream",
            "batch",
            "definition",
            "held",
            "consumer",
            "confirmed",
            "message_index",
        ):
            columns = ", ".join(row[1] for row in found.execute(f"PRAGMA main.table_info({table})"))
            found.execute(f"INSERT INTO main.{table} ({columns}) SELECT {columns} FROM source.{table}")


def test_steps_are_numbered_one_by_one() -> None:
    """Two steps made side by side would have no order."""
    assert [int(file.stem[:4]) for file in FILES] == list(range(1, len(FILES) + 1))


def test_a_store_of_the_first_release_keeps_everything(tmp_path: Path) -> None:
    """Samples, messages and their ids, consumers and definitions are there after all steps, and nothing is damaged."""
    (tmp_path / "now").mkdir()
    with plant(tmp_path / "now") as store:
        done(store.append_samples(TELEMETRY, samples(100), awaited=True))
        done(store.append_message(OPERATIONAL, message("once")))
        done(store.register_consumer("idmz", "idmz", TELEMETRY))
        done(store.confirm("idmz", 40))
        epoch = store.epoch
    path = tmp_path / "facts.db"
    first_release(path, tmp_path / "now" / "facts.db")
    with FactStore.open(path, "plant", settings=AT_ONCE, unattended=True) as store:
        assert store.epoch == epoch
        assert values_in(store) == list(range(1, 101))
        assert ids_in(store) == ["once"]
        assert done(store.append_message(OPERATIONAL, message("once"))).outcome == "noop_already_applied"
        assert [one.frontier for one in store.consumers()] == [40]
        done(store.append_samples(TELEMETRY, samples(10, 101), awaited=True))
        assert values_in(store) == list(range(1, 111))
    with closing(sqlite3.connect(path)) as found:
        assert check_known(found) == [file.stem for file in FILES]
    assert not list(verify_store(path, VerifyCounts(), lambda *_: None, is_quick=False))
