"""A column of tag values of mixed types as the Arrow columns value, value_int, value_text and value_type. Core: no IO.

Telemetry is mostly numbers, which go through C arrays without a Python step for each. A group with other types costs
one more pass for each requested column.
"""

from __future__ import annotations

import base64
from array import array
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from agent.message import Json, Value

INT64_MAX = 2**63 - 1

# In this order: numbers first, so that "is it a number" and "is it exact" are one comparison each.
TYPE_NAMES = ("int", "bool", "uint", "double", "string", "bytes", "json", "none")
_INT, _BOOL, _UINT, _DOUBLE, _STRING, _BYTES, _JSON, _NONE = range(len(TYPE_NAMES))
_CODES: dict[type, int] = {
    int: _INT,
    bool: _BOOL,
    float: _DOUBLE,
    str: _STRING,
    bytes: _BYTES,
    Json: _JSON,
    type(None): _NONE,
}
_NAMES = pa.array(TYPE_NAMES, pa.string())


class Values:
    """The values of one group of facts; each property makes its column when it is asked for."""

    def __init__(self, values: Sequence[Value]) -> None:
        self._values = values
        kinds = set(map(type, values))
        if len(kinds) == 1:
            self._codes = bytes((_CODES[kinds.pop()],)) * len(values)
        else:
            self._codes = bytes(map(_CODES.__getitem__, map(type, values)))
        self._found = frozenset(self._codes)
        # Every value as a double, where all are numbers: most groups need no more than this one pass.
        self._doubles = doubles(array("d", values)) if max(self._found) <= _DOUBLE else None  # type: ignore[arg-type]
        if _INT in self._found and self._may_reach(2.0**63):
            self._codes = bytes(
                _UINT if code == _INT and value > INT64_MAX else code  # type: ignore[operator]
                for value, code in zip(values, self._codes, strict=True)
            )
            self._found = frozenset(self._codes)

    @property
    def value(self) -> Any:
        """Numbers as doubles, booleans as 0 and 1, NULL for the rest. NaN stays NaN, with its payload."""
        if self._doubles is not None:
            return self._doubles
        if min(self._found) > _DOUBLE:
            return pa.nulls(len(self._values), pa.float64())
        numbers = [
            float(value) if code <= _DOUBLE else None  # type: ignore[arg-type]
            for value, code in zip(self._values, self._codes, strict=True)
        ]
        return pa.array(numbers, pa.float64())

    @property
    def value_int(self) -> Any:
        """Integers and booleans exactly, NULL for the rest and above int64."""
        if max(self._found) <= _BOOL:
            return longs(array("q", self._values))  # type: ignore[arg-type]
        if min(self._found) > _BOOL:
            return pa.nulls(len(self._values), pa.int64())
        if self._doubles is not None:
            exact = pc.if_else(pc.less_equal(self._code_column(), _BOOL), self._doubles, None)
            if not _any(pc.greater_equal(pc.abs(exact), 2.0**53)):  # 2**53 may be what 2**53 + 1 was rounded to
                return exact.cast(pa.int64())
        exact = [
            int(value) if code <= _BOOL else None  # type: ignore[arg-type]
            for value, code in zip(self._values, self._codes, strict=True)
        ]
        return pa.array(exact, pa.int64())

    @property
    def value_text(self) -> Any:
        """Text, JSON, bytes in base64, integers above int64 in decimal; NULL for the rest."""
        if self._found.isdisjoint(_TEXTS):
            return pa.nulls(len(self._values), pa.string())
        texts = [
            _TEXTS[code](value) if code in _TEXTS else None
            for value, code in zip(self._values, self._codes, strict=True)
        ]
        return pa.array(texts, pa.string())

    @property
    def value_type(self) -> Any:
        """The name of each value's type."""
        if len(self._found) == 1:
            return pa.repeat(_NAMES[self._codes[0]], len(self._values))
        return _NAMES.take(self._code_column())

    def _code_column(self) -> Any:
        return pa.Array.from_buffers(pa.uint8(), len(self._codes), [None, pa.py_buffer(self._codes)])

    def _may_reach(self, limit: float) -> bool:
        """Whether some number may be as large as `limit`; only a yes needs a look at each."""
        return self._doubles is None or _any(pc.greater_equal(self._doubles, limit))


def text_bytes(values: Sequence[Value]) -> int:
    """About how many bytes these values take in value_text, every repetition counted; 0 where none has any."""
    if set(map(type, values)).isdisjoint((str, bytes, Json)):
        return 0
    lengths = (len(v.data if isinstance(v, Json) else v) for v in values if isinstance(v, str | bytes | Json))
    return 4 * sum(lengths)  # a character has up to four bytes in UTF-8, base64 a third more than its bytes


def longs(numbers: array[int]) -> Any:
    """An Arrow column over the memory of a C array of int64."""
    return pa.Array.from_buffers(pa.int64(), len(numbers), [None, pa.py_buffer(numbers)])


def doubles(numbers: array[float]) -> Any:
    """An Arrow column over the memory of a C array of doubles."""
    return pa.Array.from_buffers(pa.float64(), len(numbers), [None, pa.py_buffer(numbers)])


def _any(flags: Any) -> bool:
    return bool(pc.any(flags).as_py())


def _json_text(value: Any) -> str:
    return str(value.data, "utf-8")


def _bytes_text(value: Any) -> str:
    return base64.b64encode(value).decode("ascii")


_TEXTS: dict[int, Any] = {_UINT: str, _STRING: str, _BYTES: _bytes_text, _JSON: _json_text}
