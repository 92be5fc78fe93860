"""Reads CSV as spreadsheets save it: comma, semicolon or tab, with or without a byte order mark, quoted or not.

The first line names the columns, in any order. Lines before it that begin with # are comments. With semicolons a
decimal comma is accepted, because such a spreadsheet writes it. Core.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Iterator, Sequence

from agent.escaping import cell_text, csv_cell
from agent.ingest.errors import Problem, TagMapError
from agent.ingest.tags.sheet import ROWS_MAX, Row, Sheet, check_size, unknown_names

COMMENT = "#"


def read_csv(file: str, data: bytes, known: Sequence[str], required: Sequence[str]) -> Sheet:
    """The rows of a file whose header has only `known` columns, and all `required` ones. Raises TagMapError if the
    whole file cannot be read. A row that cannot be read is a problem of the sheet."""
    text, notes = decoded(file, data)
    delimiter = _delimiter(text)
    lines = _lines(file, text, delimiter)
    columns = _columns(file, *lines[0], known, required)
    rows: list[Row] = []
    problems: list[Problem] = []
    for line, cells in lines[1:]:
        extra = next((cell for cell in cells[len(columns) :] if cell.strip()), "")
        if extra:
            why = f"has {len(cells)} cells under {len(columns)} columns; quote cells that hold the delimiter"
            problems.append(Problem(file, line, "", extra, why))
            continue
        texts = {
            column: text for column, cell in zip(columns, cells, strict=False) if (text := cell_text(cell.strip()))
        }
        if texts:
            rows.append(Row(line, texts))
    return Sheet(tuple(rows), tuple(problems), decimal_comma=delimiter == ";", notes=notes)


def decoded(file: str, data: bytes) -> tuple[str, tuple[str, ...]]:
    """The text of a file and notes: UTF-8 with or without a byte order mark, UTF-16 with one, otherwise Windows-1252,
    which Western Excel writes. Raises TagMapError if it is no text."""
    check_size(file, data)
    if b"\0" in data and not data.startswith((b"\xff\xfe", b"\xfe\xff")):
        raise TagMapError([Problem(file, 0, "", "", "is not text; save the sheet as CSV, not as a workbook")])
    try:
        if data.startswith((b"\xff\xfe", b"\xfe\xff")):
            return data.decode("utf-16"), (f"{file} was read as UTF-16",)
        return data.decode("utf-8-sig"), ()
    except UnicodeDecodeError:
        note = f"{file} is not UTF-8 and was read as Windows-1252; check units such as °C, or save it as CSV UTF-8"
        return data.decode("cp1252", errors="replace"), (note,)


def write_csv(columns: Sequence[str], rows: Iterable[Sequence[str]], comments: Iterable[str] = ()) -> bytes:
    """Rows as a tag file with a byte order mark, by which spreadsheets recognise UTF-8. Cells beyond the columns are
    left out."""
    text = io.StringIO()
    text.writelines(f"{COMMENT} {comment}\n" for comment in comments)
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(columns)
    for row in rows:
        writer.writerow(map(csv_cell, row[: len(columns)]))
    return text.getvalue().encode("utf-8-sig", "replace")


def _delimiter(text: str) -> str:
    """Semicolon, comma or tab: the most frequent in the header."""
    header = next((line for line in text.splitlines() if line.strip() and not _is_comment(line)), "")
    return max(",;\t", key=header.count)


def _is_comment(line: str) -> bool:
    return line.lstrip(' "').startswith(COMMENT)


def _lines(file: str, text: str, delimiter: str) -> list[tuple[int, list[str]]]:
    """(row number in the spreadsheet, cells) of the header and of all rows below that are not empty."""
    lines: list[tuple[int, list[str]]] = []
    row = 0
    try:
        for row, cells in enumerate(csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True), 1):
            # Comments are only above the header: below it, a tag may begin with #.
            if cells and (lines or not _is_comment(cells[0])):
                lines.append((row, cells))
            if len(lines) > ROWS_MAX + 1:
                raise TagMapError([Problem(file, row, "", "", f"more than {ROWS_MAX} tags; split the source")])
    except csv.Error as error:
        raise TagMapError([Problem(file, row + 1, "", "", f"is not CSV: {error}; check the quotes")]) from error
    if not lines:
        raise TagMapError([Problem(file, 0, "", "", "is empty; its first line must name the columns")])
    return lines


def _columns(file: str, line: int, header: Sequence[str], known: Sequence[str], required: Sequence[str]) -> list[str]:
    """The checked names of the header."""
    columns = [name.strip().lower().replace(" ", "_") for name in header]
    while columns and not columns[-1]:
        columns.pop()  # a spreadsheet may leave empty columns at the end
    problems = list(_header_problems(file, line, columns, known))
    missing = [name for name in required if name not in columns]
    problems += [Problem(file, line, name, "", "is missing; add this column") for name in missing]
    if problems:
        raise TagMapError(problems)
    return columns


def _header_problems(file: str, line: int, columns: Sequence[str], known: Sequence[str]) -> Iterator[Problem]:
    for index, name in enumerate(columns):
        if not name:
            yield Problem(file, line, str(index + 1), "", "has no name; name the column or remove it")
        elif name in known and columns.index(name) != index:
            yield Problem(file, line, name, name, "is there twice; keep one")
    for name, why in unknown_names([name for name in columns if name], known, "column"):
        yield Problem(file, line, name, name, why)
