"""The rows of a tag file as texts by column, the same for CSV and TOML, and the limits of a file. Core."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache

from agent.ingest.errors import PROBLEMS_MAX, TagFileProblem, TagMapError

ROWS_MAX = 50_000  # five times the tags of the measured node; MemoryMax of the unit allows no more
FILE_BYTES_MAX = 16 * 1024 * 1024  # far above ROWS_MAX rows of usual length; a file is read into memory


class CellError(Exception):
    """One cell cannot be used. Inside this package it becomes a Problem with file and row."""

    def __init__(self, column: str, why: str) -> None:
        super().__init__(why)
        self.column = column
        self.why = why


@dataclass(frozen=True, slots=True)
class Row:
    """The stripped cells of one row that are not empty. `line` is its number in the file, `template_line` that of the
    row of a template from which it was made, 0 if there is none."""

    line: int
    texts: Mapping[str, str]
    template_line: int = 0


@dataclass(frozen=True, slots=True)
class Sheet:
    """The rows of a file, the problems of those that cannot be used, and notes on how it was read."""

    rows: tuple[Row, ...]
    problems: tuple[TagFileProblem, ...] = ()
    decimal_comma: bool = False
    notes: tuple[str, ...] = ()


def check_size(file: str, data: bytes) -> None:
    """Raise TagMapError for a file that is too large or a workbook."""
    if len(data) > FILE_BYTES_MAX:
        raise TagMapError([TagFileProblem(file, 0, "", "", f"is larger than {FILE_BYTES_MAX} bytes")])
    if data.startswith(b"PK\x03\x04"):
        raise TagMapError([TagFileProblem(file, 0, "", "", "is an Excel workbook; save the sheet as CSV")])


def unknown_names(names: Iterable[str], known: Iterable[str], noun: str) -> Iterator[tuple[str, str]]:
    """(name, what to do) for each unknown name."""
    known = tuple(known)
    unknown = (name for name in names if name not in known)
    for place, name in enumerate(unknown):  # a name like it takes a millisecond to find, and only the first are listed
        yield name, f"is not a {noun}" + (_what_to_do(name, known) if place < PROBLEMS_MAX else "")


@lru_cache(PROBLEMS_MAX)  # a mistake is often that of all rows
def _what_to_do(name: str, known: tuple[str, ...]) -> str:
    near = difflib.get_close_matches(name, known, 1)
    return f"; did you mean {near[0]}?" if near else f"; known are {', '.join(known)}"
