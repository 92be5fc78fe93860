"""The statements: each is one statement, is used, fits the schema, and uses an index where it must."""

import re
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

import agent.fact_store
from agent.fact_store.sqlite import migrations
from agent.fact_store.sqlite.queries import QUERIES, named_statements, statements

FOLDER = Path(agent.fact_store.__file__).parent


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
