"""The schema is made by its migrations, and each statement is prepared against it."""

import re
import sqlite3
from contextlib import closing
from hashlib import sha256
from pathlib import Path

import pytest

import agent.fact_store
from agent.fact_store import FactStore, StoreReader
from agent.fact_store.core.errors import StoreForeign, StoreTooNew
from agent.fact_store.sqlite import migrations
from agent.fact_store.sqlite.queries import QUERIES, named_statements, statements
from agent.fact_store.sqlite.recovery import FORMAT
from tests.fact_store.making import (
    AT_ONCE,
    OPERATIONAL,
    TELEMETRY,
    damages,
    done,
    ids_in,
    message,
    plant,
    samples,
    values_in,
)

SECOND_STEP = "ALTER TABLE stream ADD COLUMN note TEXT NOT NULL DEFAULT '';\n"
FOLDER = Path(agent.fact_store.__file__).parent


@pytest.fixture
def second_step() -> migrations.Migration:
    """A step that no release has."""
    return migrations.Migration("0002_test_note", SECOND_STEP)


def test_steps_are_numbered_one_by_one() -> None:
    """Two steps with one number would have no order."""
    assert [int(file.stem[:4]) for file in migrations.FILES] == list(range(1, len(migrations.FILES) + 1))


def test_tables_that_are_changed_have_another_format() -> None:
    """Until a step is released it is edited in place. A store with the tables of before would then be taken for a
    damaged one, unless its format says that another program made it."""
    script = "".join(file.script for file in migrations.FILES)
    assert (FORMAT, sha256(script.encode()).hexdigest()[:16]) == (9, "84a93b1f9cf2328d"), (
        "raise FORMAT, and note both here"
    )


def test_a_store_of_an_earlier_format_is_refused(tmp_path: Path) -> None:
    """By name, with what to do, for the node and for readers; nothing is changed."""
    path = tmp_path / "facts.db"
    with plant(tmp_path):
        pass
    with closing(sqlite3.connect(path)) as made:
        made.execute("UPDATE store SET format = format - 1")
        made.commit()
    before = path.read_bytes()
    for opening in (lambda: FactStore.open(path, "plant"), lambda: StoreReader(path)):
        with pytest.raises(StoreForeign, match=r"made by a version before 1.0.*move it aside"):
            opening()
    assert path.read_bytes() == before


def test_a_migrated_store_keeps_everything(
    tmp_path: Path, second_step: migrations.Migration, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Samples, messages and their ids, consumers and definitions are there after a step, the log goes on, and nothing
    is damaged. The program without the step then refuses the store and changes nothing."""
    path = tmp_path / "facts.db"
    with plant(tmp_path) as store:
        done(store.appends.append_samples(TELEMETRY, samples(100)))
        done(store.appends.append_message(OPERATIONAL, message("once")))
        done(store.consumers.register("idmz", "idmz", TELEMETRY))
        done(store.consumers.confirm("idmz", 40))
    with monkeypatch.context() as newer:
        newer.setattr(migrations, "FILES", (*migrations.FILES, second_step))
        with FactStore.open(path, "plant", settings=AT_ONCE, unattended=True) as store:
            assert values_in(store) == list(range(1, 101))
            assert ids_in(store) == ["once"]
            assert done(store.appends.append_message(OPERATIONAL, message("once"))).outcome == "noop_already_applied"
            assert [consumer.frontier for consumer in store.consumers.all()] == [40]
            done(store.appends.append_samples(TELEMETRY, samples(10, 101)))
            assert values_in(store) == list(range(1, 111))
        with closing(sqlite3.connect(path)) as found:
            assert migrations.check_known(found) == [file.stem for file in migrations.FILES]
            assert found.execute("SELECT DISTINCT note FROM stream").fetchall() == [("",)]
        assert not damages(path)
    before = path.read_bytes()
    for opening in (lambda: FactStore.open(path, "plant"), lambda: StoreReader(path)):
        with pytest.raises(StoreTooNew, match=r"0002_test_note, this program knows up to 0.*install that version"):
            opening()
    assert path.read_bytes() == before


def test_a_step_that_fails_changes_nothing(
    tmp_path: Path, second_step: migrations.Migration, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A step is one transaction: when its last statement fails, the statements before it are undone and the step is not
    recorded. The next attempt, which does not fail, takes it."""
    good = second_step
    second_step = second_step._replace(script=SECOND_STEP + "INSERT INTO no_such_table VALUES (1);\n")
    with closing(sqlite3.connect(tmp_path / "facts.db")) as found:
        migrations.migrate(found)
        before = found.execute("SELECT * FROM sqlite_schema").fetchall()
        with monkeypatch.context() as newer:
            newer.setattr(migrations, "FILES", (*migrations.FILES, second_step))
            with pytest.raises(sqlite3.OperationalError, match="no_such_table"):
                migrations.migrate(found)
        assert found.execute("SELECT * FROM sqlite_schema").fetchall() == before
        assert migrations.applied(found) == [file.stem for file in migrations.FILES]
        monkeypatch.setattr(migrations, "FILES", (*migrations.FILES, good))
        migrations.migrate(found)
        assert migrations.applied(found)[-1] == good.stem


def parameters(sql: str) -> dict[str, None] | list[None]:
    """As many NULLs as the statement asks for."""
    if named := re.findall(r":([a-z_]+)", sql):
        return dict.fromkeys(named)
    return [None] * sql.count("?")


def plan(sql: str) -> str:
    """SQLite's plan for it."""
    with closing(sqlite3.connect(":memory:")) as connection:
        migrations.migrate(connection)
        return "\n".join(row[3] for row in connection.execute(f"EXPLAIN QUERY PLAN {sql}", parameters(sql)))


def test_every_statement_is_used_and_every_name_exists() -> None:
    """Every statement is used, and every name used is in the file."""
    code = "\n".join(file.read_text() for file in FOLDER.rglob("*.py"))
    used = set(re.findall(r'QUERIES\["([a-z_]+)"\]', code)) | set(re.findall(r'_rows\(connection, "([a-z_]+)"\)', code))
    used |= set(re.findall(r'_rows\(\s*(?:f?"[^"]*"|what), "([a-z_]+)"', code))
    assert used == set(QUERIES)


@pytest.mark.parametrize("name", QUERIES)
def test_every_statement_fits_the_schema(name: str) -> None:
    """Every statement can be prepared against the schema."""
    if name not in {"begin", "begin_read", "commit", "rollback"}:
        plan(QUERIES[name])


@pytest.mark.parametrize(
    "name",
    [
        *("select_page", "select_batch_at_sequence", "select_message", "select_definition_chain"),
        *("select_end_offset", "select_zone_held"),
    ],
)
def test_hot_look_ups_use_an_index(name: str) -> None:
    """What runs per page or per batch never scans a table or sorts: a store of 100 million facts answers like a new
    one."""
    found = plan(QUERIES[name])
    assert "SCAN" not in found.replace("SCAN chain", ""), found
    assert "TEMP B-TREE" not in found, found


READ_WHOLE = {
    "select_last_row": "finds the end of a stream whose index is damaged",
    "select_batch_streams": "`bsfg store verify`",
    "select_held": "`bsfg store verify`",
    "select_origins": "`bsfg store verify`; a reader that is asked for all origins",
    "select_lives_held": "`bsfg store lives`",
    "select_held_in": "a reader that is asked for all that is held in a stream",
}
"""Statements that read a table which grows with the years, and for whom."""


@pytest.mark.parametrize("name", sorted({*QUERIES} - {*READ_WHOLE, "begin", "begin_read", "commit", "rollback"}))
def test_nothing_scans_a_table_that_grows_with_the_years(name: str) -> None:
    """Batches, ranges and lives: no statement reads all of them, those at opening included."""
    found = plan(QUERIES[name])
    assert re.search(r"SCAN (batch|held|held_before|before|origin)\b", found) is None
    assert "SEARCH held USING PRIMARY KEY (stream=?)" not in found, "all zones of a stream"


def test_triggers_stay_whole() -> None:
    """A script is cut into statements at the right semicolons."""
    script = "CREATE TABLE a (b);\n\nCREATE TRIGGER t BEFORE DELETE ON a\nBEGIN\n    SELECT 1;\n    SELECT 2;\nEND;\n-- end\n"
    found = list(statements(script))
    assert len(found) == 2
    assert found[1].endswith("END;")


def test_named_statements() -> None:
    """Names, texts and order are as in the file."""
    found = list(named_statements("-- a: first\nSELECT 1;\n\n-- b_c: second\nSELECT\n    2;\n"))
    assert found == [("a", "SELECT 1"), ("b_c", "SELECT\n    2")]
