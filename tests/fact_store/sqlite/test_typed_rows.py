"""Rows: a value that the schema does not allow is damage, and every statement says which values it allows."""

import sqlite3
from collections.abc import Iterator
from contextlib import closing

import pytest

from agent.fact_store.sqlite import QUERIES, connect, is_damage, migrate
from agent.fact_store.sqlite.typed_rows import _SCHEMA, ImpossibleValue, _named_types
from tests.fact_store.sqlite.test_queries import parameters

OTHERS = {"1", "count(*)", "data_version", "page_size", "page_count", "freelist_count", "integrity_check"}
"""Columns that no bit of a row can change."""


@pytest.fixture
def connection() -> Iterator[sqlite3.Connection]:
    """A connection as the store makes it."""
    with closing(connect("file::memory:")) as found:
        yield found


@pytest.mark.parametrize(
    "name", [name for name in QUERIES if "SELECT" in QUERIES[name] or "RETURNING" in QUERIES[name]]
)
def test_every_column_has_a_type(connection: sqlite3.Connection, name: str) -> None:
    """A column is one of the schema or states its type, unless the statement leaves the check to its caller."""
    migrate(connection)
    try:
        described = connection.execute(QUERIES[name], parameters(QUERIES[name])).description or ()
    except sqlite3.IntegrityError:  # an INSERT of NULLs
        return
    columns = [column[0] for column in described]
    if not any(column.startswith("CAST(") for column in columns):
        assert {column for column in columns if not _named_types(column)} <= {*_SCHEMA, *OTHERS}


@pytest.mark.parametrize(
    "columns", ["x'07' AS first_offset", "NULL AS first_offset", "1.5 AS first_offset", "'a' AS \"kind INTEGER\""]
)
def test_a_value_that_the_schema_does_not_allow(connection: sqlite3.Connection, columns: str) -> None:
    """It is an error of SQLite that means damage, also where a row with right types was read before."""
    assert connection.execute('SELECT 1 AS first_offset, 2 AS "kind INTEGER"').fetchone() == (1, 2)
    with pytest.raises(ImpossibleValue, match="impossible value") as caught:
        connection.execute(f"SELECT {columns}").fetchone()
    assert is_damage(caught.value)


@pytest.mark.parametrize(
    "columns",
    ["NULL AS writer", 'NULL AS "first_offset INTEGER"', "NULL AS first_offset, CAST('a' AS BLOB)", "1.5 + 1"],
)
def test_values_that_are_allowed(connection: sqlite3.Connection, columns: str) -> None:
    """NULL where the schema or the statement allows it; anything where the caller checks; an expression."""
    assert connection.execute(f"SELECT {columns}").fetchone() is not None


def test_no_statement_stays_open(connection: sqlite3.Connection) -> None:
    """The error keeps no statement open, which would keep the write-ahead log from being reused."""
    connection.execute("CREATE TABLE found (first_offset)")
    connection.execute("INSERT INTO found VALUES (NULL), (1)")
    with pytest.raises(ImpossibleValue):
        connection.execute("SELECT first_offset FROM found").fetchall()
    connection.execute("DROP TABLE found")  # locked as long as a statement reads it
