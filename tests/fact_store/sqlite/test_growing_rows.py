"""Rows of tables that grow are read when they are needed; all rows have the types that the schema promises."""

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from functools import partial
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent.batch import Origin
from agent.errors import StoreFull
from agent.fact_store import FactStore
from agent.fact_store.sqlite import connect, is_damage, migrate, transaction
from agent.fact_store.sqlite.queries import QUERIES, with_rows
from agent.fact_store.sqlite.transaction import ROWS_AT_ONCE
from agent.fact_store.sqlite.typed_rows import _SCHEMA, ImpossibleValue, _named_types
from agent.pages import HeldRange, HeldSum, count
from tests.fact_store.making import AT_ONCE, IN_MEMORY, TELEMETRY, Elsewhere, chain_is_whole, plant, sealed_in
from tests.fact_store.sqlite.test_migrations import parameters

ZONES = ("mill", "plant")
N = ROWS_AT_ONCE
OTHERS = {"1", "count(*)", "data_version", "page_size", "page_count", "freelist_count", "integrity_check"}
"""Columns that no bit of a row can change."""


def recounted(path: Path) -> dict[tuple[str, bytes], tuple[HeldSum, int]]:
    """By zone and newest life: the sum and the facts of all others, from the ranges themselves."""
    with closing(sqlite3.connect(path)) as found:
        rows = found.execute(
            "SELECT o.zone, o.life, h.first_sequence, h.last_sequence, h.first_previous_digest, h.last_digest"
            " FROM held h JOIN named_origin o ON o.id = h.origin ORDER BY 1, 2, 3"
        ).fetchall()
    newest = {zone: life for zone, life, *_ in rows}
    sums = {(zone, life): (HeldSum(), 0) for zone, life in newest.items()}
    for zone, life, *ends in rows:
        held, at = HeldRange(*ends), (zone, newest[zone])
        if life != newest[zone]:
            sums[at] = sums[at][0].plus(HeldSum.of(life, [held])), sums[at][1] + count([held.span])
    return sums


def kept(path: Path) -> dict[tuple[str, bytes], tuple[HeldSum, int]]:
    """The same from the table."""
    with closing(sqlite3.connect(path)) as found:
        rows = found.execute(
            "SELECT o.zone, o.life, b.ranges, b.digest_sum, b.facts"
            " FROM held_before b JOIN named_origin o ON o.id = b.newest"
        ).fetchall()
    return {(zone, life): (HeldSum(n, int.from_bytes(total)), facts) for zone, life, n, total, facts in rows}


def test_the_lowest_lives_without_a_fact_are_forgotten(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a zone with more lives than are kept. A life with a fact here stays, and so does another zone; the zone keeps
    the highest life that was forgotten."""
    monkeypatch.setattr(transaction, "LIVES_OF_ZONE_MAX", 3)
    lives, other = [Elsewhere("plant", life=bytes([number]) * 16) for number in range(1, 8)], Elsewhere("mill")
    path = tmp_path / "idmz.db"
    with FactStore.open(path, "idmz", settings=AT_ONCE) as store:
        other.put(store, [other.seal(2)], 1)
        lives[1].put(store, [lives[1].seal(2, salt=7)], 1)

        def release_all(change: transaction.Transaction, number: int) -> None:
            """As if the facts of a life had come and been released."""
            held = HeldRange(1, 9, bytes(16), bytes([number]) * 16)
            change.set_held(change.stream(TELEMETRY).id, change.origin(lives[number].origin), (held,))

        for number in (0, 2, 3, 4, 5, 6):
            store._writer.submit("life", partial(release_all, number=number)).result()
        kept_lives = sorted(origin.life[0] for origin in store.reader.origins_of("plant"))
        assert (kept_lives, store.reader.forgotten("plant")[0], store.reader.forgotten("mill")) == ([2, 6, 7], 5, b"")
        assert store.reader.held_of(TELEMETRY, other.origin) != ()
    assert {at: total for at, total in kept(path).items() if at[0] != "idmz"} == recounted(path)


def test_a_life_that_just_comes_is_not_forgotten(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a zone with as many lives with facts as are kept, a lower life comes, and two in one page: all are stored, and
    the store goes on."""
    monkeypatch.setattr(transaction, "LIVES_OF_ZONE_MAX", 3)
    lives = [Elsewhere("plant", life=bytes([number]) * 16) for number in range(1, 8)]
    with FactStore.open(tmp_path / "idmz.db", "idmz", settings=AT_ONCE) as store:
        for number in (4, 5, 6):
            lives[number].put(store, [lives[number].seal(2, salt=number)], number)
        lives[3].put(store, [lives[3].seal(2, salt=3)], 10)
        lives[2].put(store, [lives[2].seal(2, salt=2), lives[1].seal(2, salt=1)], 11)
        lives[6].put(store, [lives[6].seal(2, salt=9)], 12)
        assert [len(store.reader.held_of(TELEMETRY, life.origin)) for life in lives] == [0, 1, 1, 1, 1, 1, 1]


@settings(max_examples=20)
@given(st.lists(st.tuples(st.sampled_from(ZONES), st.integers(1, 4), st.integers(0, 4)), max_size=20))
def test_the_sums_are_those_of_what_is_held(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[str, int, int]]
) -> None:
    """In whatever order batches of the origins of two zones come, with gaps that are filled later: each change of a
    range changes the sum in the same transaction."""
    path = tmp_path_factory.mktemp("sums") / "idmz.db"
    origins = {(zone, life): Elsewhere(zone, life=bytes([life]) * 16) for zone in ZONES for life in range(1, 5)}
    sealed = {name: [origin.seal(2) for _ in range(5)] for name, origin in origins.items()}
    with FactStore.open(path, "idmz", settings=IN_MEMORY) as store:
        for offset, (zone, life, batch) in enumerate(steps, 1):
            origins[zone, life].put(store, [sealed[zone, life][batch]], offset)
        end_offset = store.end_offset(TELEMETRY)
    assert {at: total for at, total in kept(path).items() if at[0] != "idmz"} == recounted(path)
    with FactStore.open(path, "idmz", settings=IN_MEMORY) as store:  # which compares the end with the sums
        assert (
            store.end_offset(TELEMETRY)
            == end_offset
            == sum(count(part.span for part in ranges) for ranges in store.reader.held(TELEMETRY).values())
        )


def test_what_a_rolled_back_commit_wrote_is_not_taken_for_held(tmp_path: Path) -> None:
    """The disk is full after the rows of a new life are written: the next commit does not find them in memory, and
    stores the same life whole."""
    mill, path = Elsewhere("mill"), tmp_path / "idmz.db"
    with FactStore.open(path, "idmz", settings=AT_ONCE) as store:
        mill.put(store, [mill.seal(2)], 1)

        def fill_disk(change: transaction.Transaction) -> None:
            held = HeldRange(1, 9, bytes(16), bytes(16))
            change.set_held(change.stream(TELEMETRY).id, change.origin(mill.origin), (held,))
            change.set_held(change.stream(TELEMETRY).id, change.origin(Origin("plant", bytes(16))), (held,))
            error = sqlite3.OperationalError("database or disk is full")
            error.sqlite_errorname = "SQLITE_FULL"
            raise error

        with pytest.raises(StoreFull):
            store._writer.submit("full", fill_disk).result()
        assert mill.put(store, [mill.seal(2)], 2).stored_facts == 2
        plant = Elsewhere("plant", life=bytes(16))
        assert plant.put(store, [plant.seal(2)], 3).stored_facts == 2
    with closing(sqlite3.connect(path)) as found:
        rows = found.execute(
            "SELECT o.zone, h.first_sequence, h.last_sequence FROM held h JOIN named_origin o ON o.id = h.origin"
        ).fetchall()
    assert sorted(rows) == [("mill", 1, 4), ("plant", 1, 2)]


@pytest.mark.parametrize("count", [1, N - 1, N, N + 1, 2 * N, 3 * N - 1])
def test_a_page_of_any_size_is_stored_whole(tmp_path: Path, count: int) -> None:
    """Pages around the number of rows of a statement arrive byte for byte."""
    elsewhere = Elsewhere("idmz")
    page = [elsewhere.seal(1 + number % 3) for number in range(count)]
    with plant(tmp_path) as store:
        elsewhere.put(store, page)
        assert sealed_in(store) == page
        chain_is_whole(store)


def test_a_statement_for_several_rows_is_the_one_for_a_row_repeated() -> None:
    """Nothing but the tuple of values is repeated."""
    statement = QUERIES["insert_batch"]
    assert with_rows(statement, 1).split() == statement.split()
    assert with_rows(statement, 3).count("INSERT") == 1
    assert with_rows(statement, 3).count("?") == 3 * statement.count("?")


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
