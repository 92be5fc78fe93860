"""Common parts of the translations of foreign tag lists: options, result, names, registers and scaling.

Nothing is dropped silently: a row that cannot be translated is in `refused` with the reason, and settings that are lost
are in `remarks`. The rows are checked like a tag file. Core.
"""

from __future__ import annotations

import csv
import io
import re
import unicodedata
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction

from agent.ingest.errors import TagFileProblem, TagMapError
from agent.ingest.tags.csv_rows import (
    DECIMAL_COMMA,
    GROUPED,
    both_readings,
    decimal_marks,
    decoded,
    delimited,
    write_csv,
)
from agent.ingest.tags.sheet import ROWS_MAX
from agent.ingest.tags.tag_map import Dialect, read_rows, read_tags

TABLES = {"0": "coil", "1": "discrete", "3": "input", "4": "holding"}
REGISTER_MAX = 65_536
LATIN_MAX = 0x24F
# Limited, so that numbers stay small in exact arithmetic.
NUMBER = re.compile(r"[+-]?[0-9]{1,18}(?:\.[0-9]{0,18})?(?:[eE][+-]?[0-9]{1,2})?")


class NotTranslated(Exception):
    """A row has no counterpart. Inside this package it becomes a Remark."""


@dataclass(frozen=True, slots=True)
class Options:
    """What only the user knows about the file.

    `base` is the address base of the written registers. `zero_based`: the registers of the file count from 0 within
    their table. `device`: import only its rows, or the device of the file. `namespaces` are the URIs of namespace
    numbers. `code_page` is that of a file which is not UTF-8. `types` is a second file with the types of the first.
    """

    protocol: str
    base: int
    zero_based: bool = False
    prefix: str = ""
    device: str = ""
    namespaces: Mapping[int, str] = field(default_factory=dict)
    code_page: str = ""
    types: bytes = b""


@dataclass(frozen=True, slots=True)
class Remark:
    """A remark about one row of the foreign file."""

    row: int
    name: str
    why: str

    def __str__(self) -> str:
        return f"row {self.row} {self.name}: {self.why}"


@dataclass(slots=True)
class Translation:
    """The rows of the tag file, each with its row number in the foreign file, and what was not translated."""

    rows: list[tuple[int, Mapping[str, str]]] = field(default_factory=list)
    refused: list[Remark] = field(default_factory=list)
    remarks: list[Remark] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def translate_rows(
    rows: Iterable[tuple[int, str, Mapping[str, str]]],
    options: Options,
    translate: Callable[[Mapping[str, str], Options], tuple[Mapping[str, str], str]],
) -> Translation:
    """Translate rows (row, name, cells). `translate` returns the cells of our row without the tag, and the settings
    that are lost. It raises NotTranslated."""
    found = Translation()
    for row, name, cells in rows:
        try:
            own, lost = translate(cells, options)
        except NotTranslated as error:
            found.refused.append(Remark(row, name, str(error)))
            continue
        if not name.isascii() and not own.get("description"):
            own = {**own, "description": name}
        filled = {column: plain for column, text in own.items() if (plain := " ".join(text.split()))}
        found.rows.append((row, {"tag": tag_name(options, name), **filled}))
        if lost:
            found.remarks.append(Remark(row, name, f"not carried over: {lost}"))
    return found


def tag_file(found: Translation, dialect: Dialect) -> bytes:
    """The translated rows as a tag file with the columns that are used. Cells without a column become remarks, and rows
    that are wrong in a tag file are moved to `refused`. Raises TagMapError if they are too many for one."""
    known = [column.name for column in dialect.all_columns]
    for row, cells in found.rows:
        lost = [f"{name} {text}" for name, text in cells.items() if name not in known]
        if lost:
            found.remarks.append(Remark(row, cells["tag"], f"not carried over: {', '.join(lost)}"))
    while True:
        used = {name for _, cells in found.rows for name, text in cells.items() if text}
        columns = [name for name in known if name in used or name in dialect.required]
        data = write_csv(columns, ([cells.get(name, "") for name in columns] for _, cells in found.rows))
        if not found.rows:
            return data
        sheet = read_rows("tags.csv", data, dialect)
        # With the row numbers of the foreign file, which the reasons name.
        rows = (replace(row, line=number) for row, (number, _) in zip(sheet.rows, found.rows, strict=True))
        _, problems = read_tags("tags.csv", replace(sheet, rows=tuple(rows)), "import", dialect)
        if not problems:
            return data
        _refuse(found, problems)


def _refuse(found: Translation, problems: Sequence[TagFileProblem]) -> None:
    """Move the rows with these problems."""
    at_fault = {problem.row: problem for problem in reversed(problems)}
    assert at_fault.keys() <= {row for row, _ in found.rows}, "the file as a whole is well formed"
    for row, cells in found.rows:
        if problem := at_fault.get(row):
            found.refused.append(Remark(row, cells["tag"], f"{problem.column} {problem.value!r} {problem.why}"))
    found.rows = [row for row in found.rows if row[0] not in at_fault]


@dataclass(frozen=True, slots=True)
class ForeignCsv:
    """The CSV of a product: the columns that it must have, and those that hold numbers."""

    product: str
    required: tuple[str, ...]
    numbers: tuple[str, ...]

    def rows(self, file: str, data: bytes, options: Options) -> tuple[list[ForeignRow], tuple[str, ...]]:
        """The rows of an export and notes on how it was read. Raises TagMapError if it is none."""
        text, notes = decoded(file, data, options.code_page)
        text, delimiter = delimited(text)
        rows = _csv_rows(file, text, delimiter, self)
        if delimiter == ";":
            _use_points(file, rows, self.numbers)
        return rows, notes


ForeignRow = tuple[int, dict[str, str]]  # the row, and its cells by column in lower case


def _use_points(file: str, rows: Sequence[ForeignRow], columns: Sequence[str]) -> None:
    """Write the numbers in these columns with decimal points. Raises TagMapError for one that has two readings."""
    marks = decimal_marks(cells.get(column, "") for _, cells in rows for column in columns)
    if "," not in marks:
        return
    problems = []
    for row, cells in rows:
        for column in columns:
            text = cells.get(column, "")
            if len(marks) == 2 and GROUPED.fullmatch(text):
                problems.append(TagFileProblem(file, row, column, text, both_readings(text)))
            elif DECIMAL_COMMA.fullmatch(text):
                cells[column] = text.replace(",", ".")
    if problems:
        raise TagMapError(problems)


def _csv_rows(file: str, text: str, delimiter: str, kind: ForeignCsv) -> list[ForeignRow]:
    try:
        lines = [
            line
            for line in enumerate(csv.reader(io.StringIO(text, newline=""), delimiter=delimiter), 1)
            if any(line[1])
        ]
    except csv.Error as error:
        raise TagMapError([TagFileProblem(file, 0, "", "", f"is not CSV: {error}; check the quotes")]) from error
    header = [name.strip().lower() for name in lines[0][1]] if lines else []
    if missing := [name for name in kind.required if name.lower() not in header]:
        why = f"is no export of {kind.product}: its first line has no column {missing[0]!r}"
        raise TagMapError([TagFileProblem(file, 0, "", "", why)])
    if len(lines) > ROWS_MAX + 1:
        raise TagMapError([TagFileProblem(file, 0, "", "", f"has more than {ROWS_MAX} rows; export it in parts")])
    return [(row, {name: cell.strip() for name, cell in zip(header, cells, strict=False)}) for row, cells in lines[1:]]


def tag_name(options: Options, name: str) -> str:
    """A foreign name as a tag. Accents are left out, a letter beyond Latin becomes its number, so that names stay
    distinct, and a blank or another character `_`."""
    return options.prefix + "".join(_ascii(letter) for letter in unicodedata.normalize("NFKD", name))


def _ascii(letter: str) -> str:
    if "!" <= letter <= "~":
        return letter
    if unicodedata.combining(letter):
        return ""
    return f"u{ord(letter):x}" if letter.isalnum() and ord(letter) > LATIN_MAX else "_"


def register_cells(options: Options, table: str, number: int) -> dict[str, str]:
    """The cells for a register, given by the digit of its table and its number in the foreign file."""
    if table not in TABLES:
        raise NotTranslated(f"table {table} is none of coils 0, discrete inputs 1, input registers 3, holding 4")
    counted = number + 1 if options.zero_based else number
    if counted < 1:
        raise NotTranslated("register 0 exists only where registers count from 0; if they do, give --zero-based")
    if counted > REGISTER_MAX:
        raise NotTranslated(f"register {number} is beyond the last, {REGISTER_MAX}")
    if options.base == 40_001:
        return {"register": f"{table}{counted:0{4 if counted <= 9_999 else 5}}"}
    return {"table": TABLES[table], "register": str(counted - 1 + options.base)}


def number(text: str) -> Fraction:
    """The number in a cell; 0 if it is empty."""
    if not NUMBER.fullmatch(text or "0"):
        raise NotTranslated(f"{text!r} is not a number")
    return Fraction(text or "0")


def linear(raw_low: str, raw_high: str, low: str, high: str) -> dict[str, str]:
    """The cells of scale and offset of a line through two points, computed exactly."""
    x0, x1, y0, y1 = (number(text) for text in (raw_low, raw_high, low, high))
    if x0 == x1 or y0 == y1:
        raise NotTranslated(f"its scaling has no slope: {raw_low} to {raw_high} becomes {low} to {high}")
    scale = (y1 - y0) / (x1 - x0)
    return factor(scale, y0 - x0 * scale)


def clamp(low: str, high: str) -> dict[str, str]:
    """The cell of the limits of a value."""
    first, last = sorted((number(low), number(high)))
    return {"clamp": f"{decimal(first)}..{decimal(last)}"}


def factor(scale: Fraction, offset: Fraction = Fraction(0)) -> dict[str, str]:
    """The cells of scale and offset, without those that change nothing."""
    cells = {"scale": "" if scale == 1 else decimal(scale), "offset": decimal(offset) if offset else ""}
    return {name: text for name, text in cells.items() if text}


def node_address(options: Options, namespace: int, identifier: str) -> str:
    """A node id with its namespace by URI."""
    if namespace == 0:
        return identifier
    if namespace not in options.namespaces:
        why = f"namespace {namespace} is a number, which the server may change; give --namespace {namespace}=URI"
        raise NotTranslated(why)
    return f"nsu={options.namespaces[namespace]};{identifier}"


def decimal(number: Fraction) -> str:
    """A number as the text of a cell."""
    if number.denominator == 1:
        return str(number.numerator)
    return repr(float(number))
