"""Reads CSV as spreadsheets save it: comma, semicolon or tab, with or without a byte order mark, quoted or not.

The first line names the columns, in any order. Lines before it that begin with # are comments. With semicolons a
decimal comma is accepted, because such a spreadsheet writes it. A text that is neither UTF-8 nor UTF-16 is refused
unless the caller names its code page: read in a wrong one, it would have wrong units and names without a sign of it.
Core.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterable, Iterator, Sequence

from agent.escaping import cell_text, csv_cell
from agent.ingest.errors import TagFileProblem, TagMapError
from agent.ingest.tags.sheet import ROWS_MAX, Row, Sheet, check_size, unknown_names

COMMENT = "#"
DELIMITER_LINE = re.compile(r'"?sep=(?P<delimiter>[,;\t|])"?[,;\t|]*\r?\n', re.IGNORECASE)  # Excel's first line
DECIMAL = re.compile(r"[0-9]([.,])[0-9]")
DECIMAL_COMMA = re.compile(r"[+-]?[0-9]*,[0-9]*(?:[eE][+-]?[0-9]+)?")
GROUPED = re.compile(r"[+-]?[1-9][0-9]{0,2}[.,][0-9]{3}")  # 1.000 is a thousand in one country, one in another


def read_csv(file: str, data: bytes, known: Sequence[str], required: Sequence[str]) -> Sheet:
    """The rows of a file whose header has only `known` columns, and all `required` ones. Raises TagMapError if the
    whole file cannot be read. A row that cannot be read is a problem of the sheet."""
    text, notes = decoded(file, data)
    text, delimiter = delimited(text)
    lines = _lines(file, text, delimiter)
    columns = _columns(file, *lines[0], known, required)
    rows: list[Row] = []
    problems: list[TagFileProblem] = []
    for line, cells in lines[1:]:
        extra = next((cell for cell in cells[len(columns) :] if cell.strip()), "")
        if extra:
            why = f"has {len(cells)} cells under {len(columns)} columns; quote cells that hold the delimiter"
            problems.append(TagFileProblem(file, line, "", extra, why))
            continue
        texts = {
            column: text for column, cell in zip(columns, cells, strict=False) if (text := cell_text(cell.strip()))
        }
        if texts:
            rows.append(Row(line, texts))
    return Sheet(tuple(rows), tuple(problems), decimal_comma=delimiter == ";", notes=notes)


def decoded(file: str, data: bytes, code_page: str = "") -> tuple[str, tuple[str, ...]]:
    """The text of a file and notes: in the named code page, or UTF-8 with or without a byte order mark, or UTF-16 with
    one. Raises TagMapError if it is no such text."""
    check_size(file, data)
    is_utf16 = data.startswith((b"\xff\xfe", b"\xfe\xff"))
    if not code_page and not is_utf16 and b"\0" in data:
        raise TagMapError([TagFileProblem(file, 0, "", "", "is not text; save the sheet as CSV, not as a workbook")])
    encoding = code_page or ("utf-16" if is_utf16 else "utf-8-sig")
    try:
        text = data.decode(encoding)
    except UnicodeDecodeError as error:
        why = f"is not text in {encoding}: {error.reason}"
        if encoding == "utf-8-sig":
            line = data.count(b"\n", 0, error.start) + 1
            why = (
                f"is not UTF-8 (line {line}), and its code page is not known; save it as CSV UTF-8, or convert it with the"
                " right name in iconv -f NAME -t UTF-8 (bsfg tags import: --encoding NAME)"
            )
        raise TagMapError([TagFileProblem(file, 0, "", "", why)]) from error
    return text, () if encoding == "utf-8-sig" else (f"{file} was read as {encoding.upper()}; check units such as °C",)


def delimited(text: str) -> tuple[str, str]:
    """The text without Excel's line `sep=;`, which spreadsheets do not count as a row, and its delimiter: the one of
    this line, or the most frequent of comma, semicolon and tab in the header."""
    if found := DELIMITER_LINE.match(text):
        return text[found.end() :], found["delimiter"]
    header = next((line for line in text.splitlines() if line.strip() and not _is_comment(line)), "")
    return text, max(",;\t", key=header.count)


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


def decimal_marks(texts: Iterable[str]) -> str:
    """The decimal marks in the number cells of a sheet with semicolons: `.` or `,` or both; `,` if there is none."""
    return "".join(sorted({match[1] for text in texts for match in DECIMAL.finditer(text)})) or ","


def both_readings(text: str) -> str:
    """Why a number such as 1.000 is refused beside 0,5."""
    thousands, decimal = int(text.replace(",", "").replace(".", "")), float(text.replace(",", "."))
    return f"is {thousands} or {decimal:g}: the file has numbers with a decimal comma and with a point; write all alike"


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
                raise TagMapError([TagFileProblem(file, row, "", "", f"more than {ROWS_MAX} tags; split the source")])
    except csv.Error as error:
        raise TagMapError([TagFileProblem(file, row + 1, "", "", f"is not CSV: {error}; check the quotes")]) from error
    if not lines:
        raise TagMapError([TagFileProblem(file, 0, "", "", "is empty; its first line must name the columns")])
    return lines


def _columns(file: str, line: int, header: Sequence[str], known: Sequence[str], required: Sequence[str]) -> list[str]:
    """The checked names of the header."""
    columns = [name.strip().lower().replace(" ", "_") for name in header]
    while columns and not columns[-1]:
        columns.pop()  # a spreadsheet may leave empty columns at the end
    problems = list(_header_problems(file, line, columns, known))
    missing = [name for name in required if name not in columns]
    problems += [TagFileProblem(file, line, name, "", "is missing; add this column") for name in missing]
    if problems:
        raise TagMapError(problems)
    return columns


def _header_problems(file: str, line: int, columns: Sequence[str], known: Sequence[str]) -> Iterator[TagFileProblem]:
    for index, name in enumerate(columns):
        if not name:
            yield TagFileProblem(file, line, str(index + 1), "", "has no name; name the column or remove it")
        elif name in known and columns.index(name) != index:
            yield TagFileProblem(file, line, name, name, "is there twice; keep one")
    for name, why in unknown_names([name for name in columns if name], known, "column"):
        yield TagFileProblem(file, line, name, name, why)
