"""Pruning: which batches and facts a query's filters exclude, so that they need not be opened or built. Core: no IO.

Spark passes simple comparisons of one column with a constant. A batch's summary excludes by offset, time, zone, life
and kind; the definitions of an origin by tag, predicate and unit; an opened batch by quality; then its facts one by
one. Only what cannot match is excluded, and Spark checks every filter again, so this module may ignore filters that it
does not understand.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
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

from agent.batch import Kind, Origin
from agent.columns import Unpacked
from agent.fact_store import BatchSummary
from agent.message import INT64_MIN, TagDefinition

INT64_MAX = 2**63 - 1
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
_NS_PER_US = 1000

Span = tuple[int, int]  # least and greatest, both included; empty where least > greatest
ANY: Span = (INT64_MIN, INT64_MAX)


@dataclass(frozen=True, slots=True)
class Pruning:
    """The usable filters of a query; without any, nothing is excluded."""

    offsets: Span = ANY
    times_ns: Span = ANY
    of_origin: tuple[tuple[str, Filter], ...] = ()  # on zone and life
    of_definition: tuple[tuple[str, Filter], ...] = ()  # on tag, predicate and unit
    of_quality: tuple[Filter, ...] = ()

    @classmethod
    def of(cls, filters: Iterable[Filter]) -> Pruning:
        """The pruning by the filters that Spark pushes down."""
        offsets = times_ns = ANY
        origin, definition, quality = list[tuple[str, Filter]](), list[tuple[str, Filter]](), list[Filter]()
        for condition in filters:
            column = _column(condition)
            match column:
                case "offset":
                    offsets = _both(offsets, _span(condition, 1))
                case "source_time_ns":
                    times_ns = _both(times_ns, _span(condition, 1))
                case "ts":
                    times_ns = _both(times_ns, _span(condition, _NS_PER_US))
                case "zone" | "life" if _is_usable(condition, str):
                    origin.append((column, condition))
                case "tag" | "predicate" | "unit" if _is_usable(condition, str):
                    definition.append((column, condition))
                case "quality" if _is_usable(condition, int):
                    quality.append(condition)
        return cls(offsets, times_ns, tuple(origin), tuple(definition), tuple(quality))

    @property
    def skips_batches(self) -> bool:
        """Whether summaries may exclude batches."""
        return self != Pruning()

    @property
    def names_tags(self) -> bool:
        """Whether tags are restricted."""
        return bool(self.of_definition)

    @property
    def tests_rows(self) -> bool:
        """Whether facts of an opened batch are tested one by one."""
        return self.times_ns != ANY or self.names_tags or bool(self.of_quality)

    def may_hold(self, summary: BatchSummary) -> bool:
        """Whether a batch may hold a matching fact, by its summary."""
        return (
            summary.first_offset <= self.offsets[1]
            and summary.last_offset >= self.offsets[0]
            and summary.time_min_ns <= self.times_ns[1]
            and summary.time_max_ns >= self.times_ns[0]
            and (not self.of_origin or self._wants_origin(summary.origin))
            and (summary.kind == Kind.SAMPLES or self._wants_messages())
        )

    def may_match(self, samples: Unpacked) -> bool:
        """Whether an opened batch may hold a matching fact; decided before any column of it is built."""
        least, above = samples.qualities
        return above is not None or all(passes(condition, least) for condition in self.of_quality)

    def wants(self, definition: TagDefinition) -> bool:
        """Whether facts of a tag may match."""
        values = {"tag": definition.subject, "predicate": definition.predicate, "unit": definition.unit or None}
        return all(passes(condition, values[column]) for column, condition in self.of_definition)

    def row_tests(self) -> Iterator[tuple[str, Callable[[Any], Any]]]:
        """Columns, each with a test from an Arrow column to flags. For tags see `wants`."""
        if self.times_ns != ANY:
            least, greatest = (pa.scalar(bound, pa.int64()) for bound in self.times_ns)
            yield (
                "source_time_ns",
                lambda times: pc.and_(pc.greater_equal(times, least), pc.less_equal(times, greatest)),
            )
        if self.of_quality:
            yield "quality", self._wanted_qualities

    def _wanted_qualities(self, qualities: Any) -> Any:
        # A column of thousands has a handful of distinct qualities.
        wanted = [
            quality
            for quality in pc.unique(qualities).to_pylist()
            if all(passes(test, quality) for test in self.of_quality)
        ]
        return pc.is_in(qualities, pa.array(wanted, pa.int64()))

    def _wants_origin(self, origin: Origin) -> bool:
        values = {"zone": origin.zone, "life": origin.life.hex()}
        return all(passes(condition, values[column]) for column, condition in self.of_origin)

    def _wants_messages(self) -> bool:
        """Messages have neither quality nor unit."""
        is_without_unit = all(passes(condition, None) for column, condition in self.of_definition if column == "unit")
        return is_without_unit and all(passes(condition, None) for condition in self.of_quality)


def passes(condition: Filter, value: Any) -> bool:
    """Whether a filter is true of a value, None being NULL. As in SQL a comparison with NULL is not true, nor is its
    negation."""
    match condition:
        case IsNull():
            return value is None
        case IsNotNull():
            return value is not None
        case EqualNullSafe():
            return bool(value == condition.value)
        case Not():
            is_of_null = isinstance(condition.child, IsNull | IsNotNull | EqualNullSafe)
            return (value is not None or is_of_null) and not passes(condition.child, value)
    if value is None:
        return False
    match condition:
        case In():
            return value in condition.value
        case EqualTo():
            return bool(value == condition.value)
        case GreaterThan():
            return bool(value > condition.value)
        case GreaterThanOrEqual():
            return bool(value >= condition.value)
        case LessThan():
            return bool(value < condition.value)
        case LessThanOrEqual():
            return bool(value <= condition.value)
        case StringStartsWith():
            return bool(value.startswith(condition.value))
        case StringEndsWith():
            return bool(value.endswith(condition.value))
        case StringContains():
            return condition.value in value
    raise AssertionError(f"{condition} was not checked by _is_usable")


def _column(condition: Filter) -> str:
    """The column that a filter is about, in lower case."""
    path: Sequence[str] = _column_path(condition.child if isinstance(condition, Not) else condition)
    return path[0].lower() if len(path) == 1 else ""


def _column_path(condition: Filter) -> Sequence[str]:
    path: Sequence[str] = getattr(condition, "attribute", ())
    return path


_OF_ONE = (EqualTo, EqualNullSafe, GreaterThan, GreaterThanOrEqual, LessThan, LessThanOrEqual)
_OF_TEXT = (StringStartsWith, StringEndsWith, StringContains)


def _is_usable(condition: Filter, kind: type) -> bool:
    """Whether `passes` can decide this filter about values of one type, or NULL."""
    match condition:
        case Not():
            return not isinstance(condition.child, Not) and _is_usable(condition.child, kind)
        case IsNull() | IsNotNull():
            return True
        case In():
            return all(type(value) is kind for value in condition.value)
    if isinstance(condition, _OF_TEXT):
        return kind is str and type(condition.value) is str
    return isinstance(condition, _OF_ONE) and type(condition.value) is kind


def _span(condition: Filter, unit: int) -> Span:
    """The numbers that a filter allows, `unit` of them for one of the filter's; all if the filter is not understood."""
    if isinstance(condition, In):
        spans = [_span(EqualTo(condition.attribute, value), unit) for value in condition.value]
        return (min(span[0] for span in spans), max(span[1] for span in spans)) if spans else ANY
    if not isinstance(condition, _OF_ONE) or (number := _number(condition.value)) is None:
        return ANY
    match condition:
        case EqualTo() | EqualNullSafe():
            return number * unit, number * unit + unit - 1
        case GreaterThan():
            return (number + 1) * unit, INT64_MAX
        case GreaterThanOrEqual():
            return number * unit, INT64_MAX
        case LessThan():
            return INT64_MIN, number * unit - 1
        case _:
            return INT64_MIN, number * unit + unit - 1


def _number(value: Any) -> int | None:
    """An integer, or a time with a zone in microseconds since 1970."""
    if isinstance(value, datetime):
        return None if value.tzinfo is None else (value - _EPOCH) // _MICROSECOND
    return value if type(value) is int else None


def _both(first: Span, second: Span) -> Span:
    """The intersection, within int64."""
    return min(max(first[0], second[0]), INT64_MAX), max(min(first[1], second[1]), INT64_MIN)
