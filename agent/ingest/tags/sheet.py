"""The rows of a tag file as texts by column, the same for CSV and TOML, and the limits of a file. Core."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from agent.ingest.errors import Problem, TagMapError

ROWS_MAX = 50_000  # five times the tags a node is measured with; the unit's MemoryMax is made for no more
FILE_BYTES_MAX = 16 * 1024 * 1024  # far above ROWS_MAX rows of the usual length; read whole, so it costs memory


class CellError(Exception):
    """One cell cannot be used. Never leaves this package: it becomes a Problem with file and row."""

    def __init__(self, column: str, why: str) -> None:
        super().__init__(why)
        self.column = column
        self.why = why


@dataclass(frozen=True, slots=True)
class Row:
    """The cells of one row that are not empty, stripped. `line` is its number in the file; `template_line` that of the
    template's row from which it was made, 0 for a row that stands in the file as it is."""

    line: int
    texts: Mapping[str, str]
    template_line: int = 0


@dataclass(frozen=True, slots=True)
class Sheet:
    """The rows of a file, the problems of those that could not be taken, and how it was read."""

    rows: tuple[Row, ...]
    problems: tuple[Problem, ...] = ()
    decimal_comma: bool = False
    notes: tuple[str, ...] = ()


def check_size(file: str, data: bytes) -> None:
    """Raise TagMapError for a file that is too large, or that is a workbook."""
    if len(data) > FILE_BYTES_MAX:
        raise TagMapError([Problem(file, 0, "", "", f"is larger than {FILE_BYTES_MAX} bytes")])
    if data.startswith(b"PK\x03\x04"):
        raise TagMapError([Problem(file, 0, "", "", "is an Excel workbook; save the sheet as CSV")])


def unknown_names(names: Iterable[str], known: Iterable[str], noun: str) -> Iterator[tuple[str, str]]:
    """(name, what to do) of each name that is not known."""
    known = list(known)
    for name in names:
        if name not in known:
            near = difflib.get_close_matches(name, known, 1)
            yield name, f"is not a {noun}; " + (f"did you mean {near[0]}?" if near else f"known are {', '.join(known)}")
