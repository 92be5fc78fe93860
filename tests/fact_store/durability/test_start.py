"""Where a consumer begins that starts at a time: never later than asked, and no more than a mark too early."""

import sqlite3
import time
from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.fact_store.sqlite import migrations
from agent.fact_store.sqlite.queries import QUERIES
from tests.fact_store.making import TELEMETRY, done, plant, samples

MINUTE = 60_000
T0 = 1_700_000_000_000


def set_marks(file: Path, marks: list[tuple[int, int]]) -> None:
    """Write marks as if the facts from each offset on had been recorded at that time."""
    with closing(sqlite3.connect(file)) as connection:
        connection.execute("DELETE FROM mark")
        rows = [(offset, index * MINUTE, unix_ms) for index, (offset, unix_ms) in enumerate(marks)]
        connection.executemany("INSERT INTO mark VALUES (1, ?, 0, ?, ?, 0)", rows)
        connection.commit()


def first_offset(folder: Path, marks: list[tuple[int, int]], start: int) -> int:
    """The first offset that a consumer of thirty facts with these marks reads."""
    with plant(folder) as store:
        done(store.appends.append_samples(TELEMETRY, samples(30)))
    set_marks(folder / "facts.db", marks)
    with plant(folder) as store:
        return done(store.consumers.register("x", "idmz", TELEMETRY, start)).frontier + 1


MARKS = [(1, T0), (11, T0 + MINUTE), (21, T0 + 2 * MINUTE)]
JUMPED = [(1, T0), (11, T0 + 5 * MINUTE), (21, T0 + 2 * MINUTE)]


@pytest.mark.parametrize(
    "marks, at, first",
    [
        (MARKS, T0 - 1, 1),
        (MARKS, T0, 1),
        (MARKS, T0 + MINUTE - 1, 1),
        (MARKS, T0 + MINUTE, 11),
        (MARKS, T0 + 2 * MINUTE, 21),
        (MARKS, T0 + 20 * MINUTE, 21),
        (MARKS, 0, 1),
        # the clock was set back by three minutes after offset 11: what was recorded twice at one time is read twice
        (JUMPED, T0 + 3 * MINUTE, 1),
        (JUMPED, T0 + 5 * MINUTE, 11),
        (JUMPED, T0 + 6 * MINUTE, 21),
        ([], T0, 1),
    ],
)
def test_start_at_a_time(tmp_path: Path, marks: list[tuple[int, int]], at: int, first: int) -> None:
    """Rounded down to the mark; before all marks it is the oldest fact; a clock that jumped makes it earlier."""
    assert first_offset(tmp_path, marks, at) == first


def test_a_future_start_time_is_the_end(tmp_path: Path) -> None:
    """Nothing that is there was recorded after it."""
    tomorrow = time.time_ns() // 1_000_000 + 24 * 60 * MINUTE
    assert first_offset(tmp_path, MARKS, tomorrow) == 31


def test_a_start_in_the_first_minute_is_the_first_fact(tmp_path: Path) -> None:
    """With nothing made by hand: the first minute of a store is one mark, so any time since then starts with its first
    fact."""
    with plant(tmp_path) as store:
        before = time.time_ns() // 1_000_000
        done(store.appends.append_samples(TELEMETRY, samples(5)))
        assert done(store.consumers.register("x", "idmz", TELEMETRY, before)).frontier == 0
        assert done(store.consumers.register("y", "idmz", TELEMETRY, before - MINUTE)).frontier == 0


@pytest.mark.parametrize("wrong", ["noon", -1, 1.5, True])
def test_invalid_starts_are_refused(tmp_path: Path, wrong: object) -> None:
    """Only the two names and milliseconds since 1970 are a start."""
    with plant(tmp_path) as store, pytest.raises(ValueError, match="is neither"):
        store.consumers.register("x", "idmz", TELEMETRY, wrong)  # type: ignore[arg-type]


@given(
    st.lists(st.tuples(st.integers(1, 5), st.integers(-90, 300)), min_size=1, max_size=12),
    st.integers(-100, 2000),
)
def test_a_start_at_a_time_is_never_too_late(steps: list[tuple[int, int]], at: int) -> None:
    """Whatever the clock does from mark to mark: no mark at or after the time lies before the start, whole or in
    part."""
    marks, offset, clock = [], 1, 0
    for facts, passed in steps:
        marks.append((offset, clock))
        offset, clock = offset + facts, clock + passed
    with closing(sqlite3.connect(":memory:")) as connection:
        migrations.migrate(connection)
        connection.execute("INSERT INTO stream (id, name) VALUES (1, 's')")
        connection.executemany("INSERT INTO mark VALUES (1, ?, 0, 0, ?, 0)", marks)
        asked = {"stream": 1, "unix_ms": at}
        start = connection.execute(QUERIES["select_start_at"], asked).fetchone()[0] or 1
    assert all(first >= start for first, unix_ms in marks if unix_ms >= at)
    assert start in {first for first, _ in marks}
    if all(passed > 0 for _, passed in steps):  # with an honest clock not a mark too early either
        assert start == max((first for first, unix_ms in marks if unix_ms <= at), default=1)
