"""The values of opened batches, of mixed types, as the Arrow columns value, value_int, value_text and value_type. Core:
no IO.

A batch stores its values separated by kind. Each kind becomes one Arrow column over the joined bytes, and a mask puts
it in its places, so numbers need no Python step each. Text, JSON, bytes and integers above int64 need one.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from agent.columns import BOOL, FLOAT, INT, OTHER, Unpacked
from agent.message import Json, Value
from pyspark_bsfg import packed

# The first three in the order of their kinds in a batch.
TYPE_NAMES = ("double", "int", "bool", "uint", "string", "bytes", "json", "none")
assert (FLOAT, INT, BOOL, OTHER) == (0, 1, 2, 3), "names and kinds share their numbers"
_CODES: dict[type, int] = {int: 3, str: 4, bytes: 5, Json: 6, type(None): 7}
_NAMES = pa.array(TYPE_NAMES, pa.string())
_TEXTS: dict[type, Any] = {
    int: str,
    str: str,
    bytes: lambda value: base64.b64encode(value).decode("ascii"),
    Json: lambda value: str(value.data, "utf-8"),
}


class Values:
    """The values of one group of batches; each property makes its column when it is read."""

    def __init__(self, samples: Sequence[Unpacked]) -> None:
        self._samples = samples
        self._count = sum(batch.frame.facts for batch in samples)
        self._counts = [[batch.kinds.count(kind) for batch in samples] for kind in (FLOAT, INT, BOOL, OTHER)]
        self._found = [kind for kind in (FLOAT, INT, BOOL, OTHER) if any(self._counts[kind])]

    @property
    def value(self) -> Any:
        """Numbers as doubles, booleans as 0 and 1, NULL for the rest. NaN stays NaN, with its payload."""
        makers: dict[int, Callable[[], Any]] = {
            FLOAT: lambda: packed.doubles(self._samples, self._counts[FLOAT]),
            INT: lambda: self._integers.cast(pa.float64(), safe=False),
            BOOL: lambda: self._bools.cast(pa.float64()),
            OTHER: lambda: pa.array([float(v) if type(v) is int else None for v in self._others], pa.float64()),
        }
        return self._placed({kind: makers[kind]() for kind in self._found}, pa.float64())

    @property
    def value_int(self) -> Any:
        """Integers and booleans exactly, NULL for the rest and above int64."""
        columns = {}
        if INT in self._found:
            columns[INT] = self._integers
        if BOOL in self._found:
            columns[BOOL] = self._bools.cast(pa.int64())
        return self._placed(columns, pa.int64())

    def texts(self, places: Any) -> Any:
        """Text, JSON, bytes in base64, integers above int64 in decimal, NULL for the rest, of the facts at some places;
        None for all."""
        wanted = self._count if places is None else len(places)
        if not any(type(value) in _TEXTS for value in self._others):
            return pa.nulls(wanted, pa.string())
        spread: list[Value] = [None] * self._count
        at = -1
        for value in self._others:
            at = self._kinds.find(OTHER, at + 1)
            spread[at] = value
        chosen = spread if places is None else [spread[place] for place in places.to_pylist()]
        return pa.array([None if value is None else _TEXTS[type(value)](value) for value in chosen], pa.string())

    @property
    def value_type(self) -> Any:
        """The name of each value's type."""
        if OTHER not in self._found:
            if len(self._found) == 1:
                return pa.repeat(_NAMES[self._found[0]], self._count)
            return _NAMES.take(self._kind_column)
        codes = bytes(_CODES[type(value)] for value in self._others)
        if self._found == [OTHER] and codes.count(codes[0]) == len(codes):
            return pa.repeat(_NAMES[codes[0]], self._count)
        columns = {OTHER: packed.over(pa.uint8(), codes, len(codes))}
        return _NAMES.take(self._placed(columns, pa.uint8(), self._kind_column))

    @cached_property
    def _kinds(self) -> bytes:
        return b"".join(batch.kinds for batch in self._samples)

    @cached_property
    def _kind_column(self) -> Any:
        return packed.over(pa.uint8(), self._kinds, self._count)

    @cached_property
    def _integers(self) -> Any:
        return packed.integers(self._samples, self._counts[INT])

    @cached_property
    def _bools(self) -> Any:
        data = b"".join(batch.bools for batch in self._samples)
        return packed.over(pa.uint8(), data, len(data))

    @cached_property
    def _others(self) -> list[Value]:
        found: list[Value] = []
        for batch, count in zip(self._samples, self._counts[OTHER], strict=True):
            found += batch.others if len(batch.others) == count else batch.others * count
        return found

    def _placed(self, columns: dict[int, Any], kind: Any, base: Any = None) -> Any:
        """The facts of each kind in their places; the others are NULL, or as in `base`."""
        if len(self._found) == 1 and self._found[0] in columns:
            return columns[self._found[0]]
        base = pa.nulls(self._count, kind) if base is None else base
        for code, column in columns.items():
            base = pc.replace_with_mask(base, pc.equal(self._kind_column, code), column)
        return base


def text_bytes(samples: Unpacked) -> int:
    """About how many bytes the texts of a batch take in value_text, every repetition counted; 0 if it has none."""
    lengths = sum(
        len(value.data if isinstance(value, Json) else value)
        for value in samples.others
        if isinstance(value, str | bytes | Json)
    )
    repeats = samples.kinds.count(OTHER) if len(samples.others) == 1 else 1
    return 4 * lengths * repeats  # a character has up to four bytes in UTF-8, base64 a third more than its bytes
