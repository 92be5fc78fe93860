"""Print rows as an aligned table, as CSV, or as one JSON object a line.

The first rows of a table determine the widths of its columns; later rows are printed as they come.
"""

from __future__ import annotations

import base64
import csv
import io
import itertools
import json
import math
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Literal

from agent.escaping import csv_cell, printable

ALIGNED_ROWS = 1000
CELL_CHARACTERS_MAX = 80
LAST_CELL_CHARACTERS_MAX = 400  # nothing stands behind it, and it often holds a reason

Form = Literal["table", "csv", "json"]


def lines(columns: Sequence[str], rows: Iterable[Sequence[Any]], form: Form) -> Iterator[str]:
    """The rows as lines of text. A table and CSV begin with the column names; JSON repeats them in each row."""
    match form:
        case "json":
            yield from (
                json.dumps(dict(zip(columns, map(_json, row), strict=True)), ensure_ascii=False) for row in rows
            )
        case "csv":
            yield _csv(columns)
            yield from (_csv(list(map(_plain, row))) for row in rows)
        case "table":
            yield from _aligned(columns, iter(rows))


def _aligned(columns: Sequence[str], rows: Iterator[Sequence[Any]]) -> Iterator[str]:
    first = list(itertools.islice(rows, ALIGNED_ROWS))
    limits = [CELL_CHARACTERS_MAX] * (len(columns) - 1) + [LAST_CELL_CHARACTERS_MAX]
    numbers = [
        bool(first) and all(type(row[n]) in {int, float, type(None)} for row in first) for n in range(len(columns))
    ]
    cells = [list(map(_cell, row, limits)) for row in first]
    widths = [max(map(_width, column)) for column in zip(columns, *cells, strict=True)]

    def line(texts: Sequence[str]) -> str:
        padded = (
            " " * (width - _width(text)) + text if is_number else text + " " * (width - _width(text))
            for text, width, is_number in zip(texts, widths, numbers, strict=True)
        )
        return "  ".join(padded).rstrip()

    yield line(columns)
    yield line(["-" * min(width, CELL_CHARACTERS_MAX) for width in widths])
    yield from map(line, cells)
    yield from (line(list(map(_cell, row, limits))) for row in rows)


def _cell(value: Any, characters_max: int) -> str:
    """A value as one line of limited length."""
    if value is None:
        return ""
    text = f"x'{value.hex()}'" if isinstance(value, bytes) else str(value)
    text = printable(text)
    return text if len(text) <= characters_max else text[: characters_max - 3] + "..."


def _width(text: str) -> int:
    """The width of a text in terminal columns."""
    if text.isascii():
        return len(text)
    return sum(
        0 if unicodedata.combining(character) else 2 if unicodedata.east_asian_width(character) in "WF" else 1
        for character in text
    )


def _csv(row: Sequence[Any]) -> str:
    text = io.StringIO()
    csv.writer(text).writerow(
        [csv_cell(cell) if isinstance(cell, str) else cell for cell in row]
    )  # with its own line end; it quotes values that contain one
    return text.getvalue().removesuffix("\r\n")


def _plain(value: Any) -> Any:
    return base64.b64encode(value).decode() if isinstance(value, bytes) else value


def _json(value: Any) -> Any:
    """A value as in messages: bytes as {"base64": text}, infinities and NaN as text."""
    if isinstance(value, bytes):
        return {"base64": base64.b64encode(value).decode()}
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    return value
