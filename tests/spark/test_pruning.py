"""Filters: what they exclude, unopened or fact by fact, and that nothing that matches is ever excluded."""

import operator
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    IsNull,
    LessThan,
    LessThanOrEqual,
    Not,
    StringContains,
    StringEndsWith,
    StringStartsWith,
)

from agent.batch import Batch, Origin
from agent.fact_store import FactStore
from agent.message import Sample
from pyspark_bsfg import FACTS, columns
from pyspark_bsfg.dictionary import Dictionary
from pyspark_bsfg.pruning import Pruning
from pyspark_bsfg.ranges import OffsetRange
from pyspark_bsfg.reader import PruningReader
from pyspark_bsfg.source import BsfgDataSource
from pyspark_bsfg.transports import Asked, StoreFile
from tests.fact_store.making import damage
from tests.spark import making
from tests.spark.making import BAD, DEFINITIONS, NOON_NS, TELEMETRY

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
PLANTS = [Origin("plant-a", b"a" * 16), Origin("plant-b", b"b" * 16)]
HOUR_NS = 3_600_000_000_000


def moment(at_ns: int) -> datetime:
    """As a timestamp of Spark, to the microsecond."""
    return EPOCH + timedelta(microseconds=at_ns // 1000)


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An hour a batch of two plants in turns, each batch with one tag and one bad fact in the second plant; then
    messages in the same stream."""
    made = tmp_path_factory.mktemp("pruning") / "facts.db"
    runs = [
        [
            Sample(1 + hour % 3, NOON_NS + hour * HOUR_NS + n * 1_000_500, float(n), BAD if n == 3 and hour % 2 else 0)
            for n in range(5)
        ]
        for hour in range(6)
    ]
    with FactStore.open(made, "enterprise", settings=making.AT_ONCE) as opened:
        sealed = [making.foreign(plant, runs) for plant in PLANTS]
        for number in range(6):
            for batches in sealed:
                making.put(opened, batches[number : number + 1], 5 * number + 5)
        opened.appends.append_messages(TELEMETRY, [making.message(n) for n in range(4)]).result()
    return made


def read(path: Path, *filters: Filter) -> list[dict[str, Any]]:
    """The rows that a filtered read hands to Spark."""
    pruning = Pruning.of(filters)
    made = making.batches_of(path, pruning=pruning)
    return [row | {"ts": row["ts"].astimezone(UTC)} for record_batch in made for row in record_batch.to_pylist()]


def is_true(condition: Filter, row: dict[str, Any]) -> bool:
    """What SQL says of a filter and a row: the oracle. A comparison with NULL is neither true nor false."""
    return truth(condition, row) is True


COMPARISONS: dict[type, Callable[[Any, Any], bool]] = {
    EqualTo: operator.eq, GreaterThan: operator.gt, GreaterThanOrEqual: operator.ge, LessThan: operator.lt,
    LessThanOrEqual: operator.le, StringStartsWith: str.startswith, StringEndsWith: str.endswith,
    StringContains: operator.contains, In: lambda value, values: value in values,
}  # fmt: skip


def truth(condition: Any, row: dict[str, Any]) -> bool | None:
    """Three-valued logic."""
    if isinstance(condition, Not):
        found = truth(condition.child, row)
        return None if found is None else not found
    value = row[condition.attribute[0]]
    if isinstance(condition, IsNull):
        return value is None
    if isinstance(condition, IsNotNull):
        return value is not None
    if isinstance(condition, EqualNullSafe):
        return bool(value == condition.value)
    return None if value is None else COMPARISONS[type(condition)](value, condition.value)


# At and around the times of facts, to the nanosecond and to the microsecond.
TIMES = st.builds(
    lambda hour, n, beside: NOON_NS + hour * HOUR_NS + n * 1_000_500 + beside,
    st.integers(0, 5),
    st.integers(0, 4),
    st.sampled_from((-1000, -501, -500, -1, 0, 1, 499, 500, 1000)),
)
NUMBERS = {
    "ts": TIMES.map(moment),
    "source_time_ns": TIMES,
    "offset": st.integers(0, 70),
    "quality": st.sampled_from((0, BAD, 1)),
}
WORDS = {
    "tag": [definition.subject for definition in DEFINITIONS] + ["tag:line-1/", "order:4711", ""],
    "predicate": ["value_sampled", "setpoint_changed", "order_released", "set"],
    "unit": ["bar", "°C", "b"],
    "zone": ["plant-a", "plant-b", "enterprise", "plant-"],
    "life": [PLANTS[0].life.hex(), "61"],
}


@st.composite
def filters(draw: st.DrawFn) -> Filter:
    """Any filter that Spark pushes down, on columns that are pruned by and on others."""
    column = draw(st.sampled_from([*NUMBERS, *WORDS, "value", "sequence"]))
    words = st.sampled_from(WORDS[column]) if column in WORDS else st.integers(0, 9)
    constants = NUMBERS.get(column, words)
    kinds: list[Any] = [EqualTo, EqualNullSafe, GreaterThan, GreaterThanOrEqual, LessThan, LessThanOrEqual]
    kinds += [StringStartsWith, StringEndsWith, StringContains] if column in WORDS else []
    condition: Filter = draw(
        st.one_of(
            st.builds(lambda kind, value: kind((column,), value), st.sampled_from(kinds), constants),
            st.builds(lambda values: In((column,), tuple(values)), st.lists(constants, min_size=1, max_size=3)),
            st.sampled_from([IsNull((column,)), IsNotNull((column,))]),
        )
    )
    return Not(condition) if draw(st.booleans()) else condition


@settings(max_examples=250, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(st.lists(filters(), min_size=1, max_size=3))
def test_nothing_that_matches_is_excluded(path: Path, asked: list[Filter]) -> None:
    """Whatever is filtered: the rows that match are those of an unfiltered read that match, in order, each once."""
    everything = read(path)
    assert len(everything) == 64
    found = read(path, *asked)
    offsets = [row["offset"] for row in found]
    assert offsets == sorted(set(offsets))
    wanted = [row for row in everything if all(is_true(condition, row) for condition in asked)]
    assert [row for row in found if all(is_true(condition, row) for condition in asked)] == wanted


@pytest.mark.parametrize(
    "asked, opened, rows",
    [
        ([GreaterThanOrEqual(("ts",), moment(NOON_NS + 5 * HOUR_NS))], 2, 10),
        ([GreaterThan(("ts",), moment(NOON_NS + HOUR_NS)), LessThan(("ts",), moment(NOON_NS + 2 * HOUR_NS))], 2, 8),
        # The second fact of each batch is 500 ns after the microsecond.
        ([LessThanOrEqual(("TS",), moment(NOON_NS + 1_000_500))], 2, 4 + 4),
        ([EqualTo(("zone",), "plant-b")], 6, 30),
        ([Not(EqualTo(("zone",), "plant-b")), In(("source_time_ns",), (NOON_NS, NOON_NS + 1))], 1, 1 + 4),
        ([EqualTo(("tag",), "tag:line-1/count"), EqualTo(("zone",), "plant-a")], 6, 10),
        ([EqualTo(("tag",), "tag:nowhere/none")], 0, 4),
        ([EqualTo(("quality",), BAD)], 12, 6),
        ([EqualTo(("offset",), 12)], 1, 1),
        ([EqualTo(("unit",), "bar"), EqualTo(("zone",), "nowhere")], 0, 0),
    ],
)
def test_batches_are_skipped_unopened(
    path: Path, monkeypatch: pytest.MonkeyPatch, asked: list[Filter], opened: int, rows: int
) -> None:
    """Only batches that may match by time, zone, tag or offset are opened, and of these only the rows that pass leave.
    The four messages are never tested by row."""
    count = 0
    unpatched = columns.open_packed

    def counting(batch: Batch) -> Any:
        nonlocal count
        count += 1
        return unpatched(batch)

    monkeypatch.setattr(columns, "open_packed", counting)
    assert (len(read(path, *asked)), count) == (rows, opened)


def test_tasks_share_what_the_filters_leave(path: Path) -> None:
    """Tasks are planned over the batches that may match, so an hour of a day is no single task's work; every filter is
    handed back to Spark."""
    reader = BsfgDataSource({"path": str(path), "pushfilters": "true", "numpartitions": "2"}).reader(FACTS)
    assert isinstance(reader, PruningReader)
    asked = [EqualTo(("zone",), "plant-a"), LessThan(("ts",), moment(NOON_NS + 2 * HOUR_NS)), EqualTo(("value",), 1.0)]
    assert list(reader.pushFilters(asked)) == asked
    parts = reader.partitions()
    assert [(part.first, part.last) for part in parts] == [(1, 5), (11, 15)]  # type: ignore[attr-defined]
    assert [sum(record_batch.num_rows for record_batch in reader.read(part)) for part in parts] == [5, 5]
    plain = BsfgDataSource({"path": str(path)}).reader(FACTS)
    assert not isinstance(plain, PruningReader), "Spark would refuse it unless its configuration allows filters"


def test_a_lost_row_is_reported_by_a_filtered_read_too(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Offsets that no head covers may have matched, so a filtered read names them as a full one does; a damaged batch
    that the filters exclude is not read."""
    copy = tmp_path / "facts.db"
    making.store(copy, [[Sample(1, NOON_NS + hour * HOUR_NS, 1.0)] for hour in range(4)])
    damage(copy, 1)
    making.lose(copy, 3)
    assert [row["offset"] for row in read(copy, GreaterThan(("ts",), moment(NOON_NS)))] == [2, 4]
    assert ["(3 to 3 damaged)" in record.getMessage() for record in caplog.records] == [True]
    with StoreFile(str(copy)).opened() as source:
        pruning = Pruning.of([GreaterThan(("ts",), moment(NOON_NS + 2 * HOUR_NS))])
        asked = Asked(TELEMETRY, OffsetRange(1, 4), source.bounds(TELEMETRY).life)
        assert list(source.matching(asked, pruning, Dictionary(pruning.wants))) == [OffsetRange(3, 4)]
