"""One statement inserts several batches: however many there are, all of them are stored, once, in order."""

from pathlib import Path

import pytest

from agent.fact_store.sqlite.queries import QUERIES, with_rows
from agent.fact_store.sqlite.transaction import ROWS_AT_ONCE
from tests.fact_store.making import Elsewhere, chain_is_whole, plant, sealed_in

N = ROWS_AT_ONCE


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
