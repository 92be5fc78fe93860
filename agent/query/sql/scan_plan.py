"""Turns the conditions of an SQL statement into bounds of a scan, and estimates its cost for SQLite. Core: no IO.

SQLite offers each simple condition on a column of `facts` (`offset > ?`, `subject = ?`). The plan accepts conditions
that can exclude batches or tags, with their operators; their values come when the scan begins. SQLite checks each
accepted condition again on every row. So a plan may return too many rows but must never miss one: a value of another
type, an unknown collation or an unreadable time is not used.

A plan is passed through SQLite as text, as its interface requires.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from agent.batch import Kind
from agent.message import INT64_MIN
from agent.query.scan import COLUMNS, INT64_MAX, OFFSET_MAX, Bounds, parse_time_ns

FACTS_COST = 1e9  # about the most that a store holds; only the order of the costs below matters
_RANGES = ("eq", "gt", "ge", "lt", "le")
# The operators that are useful on a column, and the share of the store that remains.
_USEFUL: dict[str, tuple[tuple[str, ...], float]] = {
    "stream": (("eq",), 0.5),
    "zone": (("eq",), 0.5),
    "kind": (("eq",), 0.5),
    "offset": (_RANGES, 0.1),
    "source_time": (_RANGES, 0.1),
    "source_time_ns": (_RANGES, 0.1),
    "tag": (("eq",), 0.01),
    "subject": (("eq", "glob", "like"), 0.01),
    "predicate": (("eq",), 0.5),
}
_COLLATIONS = {"source_time": "moment"}
_KINDS = {"sample": int(Kind.SAMPLES), "message": int(Kind.MESSAGES)}


@dataclass(frozen=True, slots=True)
class Plan:
    """The accepted conditions as (column, operator) in the order of their values, the needed columns, and the order of
    rows. The operator `in` is `eq` with a set of values."""

    terms: tuple[tuple[str, str], ...]
    used: tuple[int, ...]
    newest_first: bool = False

    @property
    def cost(self) -> float:
        """An estimate with which SQLite chooses among plans."""
        return FACTS_COST * math.prod(_USEFUL[column][1] for column, _ in self.terms)

    def text(self) -> str:
        """The plan as SQLite carries it."""
        return json.dumps([self.terms, self.used, self.newest_first])

    @classmethod
    def of(cls, text: str) -> Plan:
        """The inverse of `text`."""
        terms, used, newest_first = json.loads(text)
        return cls(tuple((column, operator) for column, operator in terms), tuple(used), newest_first)

    def bounds(self, values: Sequence[Any]) -> Bounds:
        """The bounds that the conditions give with these values; for IN a value is a set."""
        found = _Narrowing()
        for (column, operator), value in zip(self.terms, values, strict=True):
            found.narrow(column, operator, value)
        return found.bounds()


def is_useful(column: str, operator: str, collation: str) -> bool:
    """Whether a condition can exclude batches before they are opened."""
    operators, _ = _USEFUL.get(column, ((), 1.0))
    return operator in operators and collation == _COLLATIONS.get(column, "BINARY")


def order_kept(terms: Sequence[tuple[str, str]], order: Sequence[tuple[str, bool]]) -> bool | None:
    """The direction in which a scan returns this order by itself: False forwards, True backwards (newest first), None
    neither.

    `order` has (column, descending) for each term. A scan goes by stream, then by offset.
    """
    if not order:
        return None
    columns, descending = [column for column, _ in order], {is_descending for _, is_descending in order}
    one_stream = ("stream", "eq") in terms
    if len(descending) == 1 and (columns == ["stream", "offset"] or (columns == ["offset"] and one_stream)):
        return descending.pop()
    return None


class _Narrowing:
    """Bounds that conditions narrow one by one."""

    def __init__(self) -> None:
        self._texts: dict[str, frozenset[str]] = {}
        self._numbers: frozenset[int] | None = None
        self._subject_tests: list[Callable[[str], bool]] = []
        self._spans = {"offset": (1, OFFSET_MAX), "source_time_ns": (INT64_MIN, INT64_MAX)}

    def narrow(self, column: str, operator: str, value: Any) -> None:
        """Apply one condition."""
        match column:
            case "stream" | "zone" | "kind" | "predicate" | "subject":
                self._narrow_text(column, operator, value)
            case "offset" | "source_time_ns":
                self._narrow_span(column, operator, value)
            case "source_time":
                times_ns = {parse_time_ns(item) if isinstance(item, str) else None for item in _each(value)}
                self._narrow_span("source_time_ns", operator, times_ns)
            case "tag":
                if (numbers := _integers(value)) is not None:
                    self._numbers = numbers if self._numbers is None else self._numbers & numbers

    def bounds(self) -> Bounds:
        """The bounds of all conditions."""
        kinds = self._texts.get("kind")
        (offset_min, offset_max), (time_min_ns, time_max_ns) = self._spans["offset"], self._spans["source_time_ns"]
        return Bounds(
            streams=self._texts.get("stream"),
            zones=self._texts.get("zone"),
            kinds=None if kinds is None else frozenset(_KINDS[kind] for kind in kinds if kind in _KINDS),
            offset_min=offset_min,
            offset_max=offset_max,
            time_min_ns=time_min_ns,
            time_max_ns=time_max_ns,
            numbers=self._numbers,
            subject_tests=tuple(self._subject_tests),
            predicates=self._texts.get("predicate"),
        )

    def _narrow_text(self, column: str, operator: str, value: Any) -> None:
        if operator in {"eq", "in"}:
            texts = _each(value)
            if not all(isinstance(text, str) for text in texts):
                return
            if column == "subject":
                self._subject_tests.append(texts.__contains__)
            else:
                self._texts[column] = texts & self._texts.get(column, texts)
        elif isinstance(value, str):
            wild = re.search(r"[*?\[]" if operator == "glob" else r"[%_]", value)
            prefix = value[: wild.start()] if wild else value
            starts = _starts_with if operator == "glob" else _starts_like
            self._subject_tests.append(partial(starts, prefix))

    def _narrow_span(self, column: str, operator: str, value: Any) -> None:
        numbers = [item for item in _each(value) if isinstance(item, int | float) and math.isfinite(item)]
        if not numbers or len(numbers) < len(_each(value)):
            return
        least, greatest = self._spans[column]
        lowest, highest = min(numbers), max(numbers)  # only IN has more than one number
        if operator in {"eq", "in", "ge", "gt"}:
            least = max(least, math.floor(lowest) + 1 if operator == "gt" else math.ceil(lowest))
        if operator in {"eq", "in", "le", "lt"}:
            greatest = min(greatest, math.ceil(highest) - 1 if operator == "lt" else math.floor(highest))
        self._spans[column] = least, greatest


def _each(value: Any) -> frozenset[Any]:
    """The values of IN, or the one value of any other condition."""
    return frozenset(value) if isinstance(value, set | frozenset) else frozenset((value,))


def _integers(value: Any) -> frozenset[int] | None:
    """The integers that a value or a set of values can equal; None if a value is not a number."""
    if not all(isinstance(item, int | float) for item in _each(value)):
        return None
    return frozenset(int(item) for item in _each(value) if math.isfinite(item) and item == int(item))


def _starts_with(prefix: str, subject: str) -> bool:
    return subject.startswith(prefix)


def _starts_like(prefix: str, subject: str) -> bool:
    return subject.lower().startswith(prefix.lower())


assert set(_USEFUL) <= set(COLUMNS)
