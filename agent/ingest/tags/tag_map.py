"""The tag map: which values of a source are read, under which name, and when they are recorded.

One CSV file per source, as a spreadsheet saves it: comma or semicolon, with or without a byte order mark, quoted or
not. The first line names the columns, in any order. With semicolons a decimal comma is understood, for that is what
such a spreadsheet writes. The whole file is checked before anything is used and every problem is told at once, with row
and column.

Core: takes the bytes of a file and the settings, returns tags and notes or raises TagMapError. It will not guess: an
unknown column, a tag twice or a type it does not know is an error that says what to write instead.

Columns of every file: tag (scope/id), stream, predicate, unit, description, enumeration (0=Off|1=On), deadband (0.5 or
5%), min_interval_ms, max_interval_ms. OPC UA adds address, sampling_interval_ms, queue_size, server_deadband, trigger;
Modbus adds unit_id, table, register, type, byte_order, scale, offset.
"""

from __future__ import annotations

import csv
import difflib
import io
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from agent.ingest.errors import Problem, TagMapError
from agent.ingest.sampling import SamplingRule
from agent.message import PREDICATE, STREAM, MessageError, TagDefinition, check_definition, enumeration_texts

ROWS_MAX = 50_000  # five times the tags a node is measured with; the unit's MemoryMax is made for no more
FILE_BYTES_MAX = 16 * 1024 * 1024  # far above ROWS_MAX rows of the usual length; read whole, so it costs memory
INTERVAL_MS_MAX = 86_400_000  # a day: a slower heartbeat proves nothing
DEFAULT_STREAM = "facts.telemetry"


@dataclass(frozen=True, slots=True)
class Tag:
    """One row: what is read (`point`, in the words of the protocol), and what becomes of it."""

    row: int
    stream: str
    definition: TagDefinition
    rule: SamplingRule
    point: Any


@dataclass(frozen=True, slots=True)
class TagMap:
    """All tags of one source. `notes` are not errors but worth a look: how the file was read when that took a
    decision."""

    file: str
    tags: tuple[Tag, ...]
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Dialect:
    """What a protocol adds: its columns, the required ones among them, and how a row becomes a point.

    `read_point` takes the cells of a row and returns (point, address, data_type); it raises CellError for the cell at
    fault. `identity` is what of a point no two rows may share.
    """

    columns: tuple[str, ...]
    required: tuple[str, ...]
    read_point: Callable[[Cells], tuple[Any, str, str]]
    identity: Callable[[Any], Any] = lambda point: point


class CellError(Exception):
    """One cell cannot be used. Never leaves this package: it becomes a Problem with file and row."""

    def __init__(self, column: str, why: str) -> None:
        super().__init__(why)
        self.column = column
        self.why = why


class Cells:
    """The cells of one row by column name, stripped; an absent column reads as empty."""

    def __init__(self, texts: Mapping[str, str], *, decimal_comma: bool) -> None:
        self.texts = texts
        self._decimal_comma = decimal_comma

    def text(self, column: str) -> str:
        return self.texts.get(column, "")

    def integer(self, column: str, lowest: int, highest: int, default: int | None = None) -> int:
        """A whole number; an empty cell is the default, or an error where there is none."""
        text = self.text(column)
        if not text:
            if default is None:
                raise CellError(column, f"is empty; write a whole number from {lowest} to {highest}")
            return default
        if not text.lstrip("+-").isascii() or not text.lstrip("+-").isdigit():
            raise CellError(column, f"is not a whole number; write one from {lowest} to {highest}")
        if not lowest <= int(text) <= highest:
            raise CellError(column, f"is outside {lowest} to {highest}")
        return int(text)

    def number(self, column: str, text: str, default: float) -> int | float:
        """A finite number; whole numbers stay int, so that scaling by 10 keeps an integer exact."""
        if self._decimal_comma and text.count(",") == 1 and "." not in text:
            text = text.replace(",", ".")
        if not text:
            return default
        try:
            value = float(text)
        except ValueError:
            raise CellError(column, "is not a number") from None
        if value - value != 0:
            raise CellError(column, "is not a finite number")
        is_whole = text.lstrip("+-").isdigit() and abs(value) < 2**53
        return int(text) if is_whole else value

    def choice(self, column: str, choices: Sequence[str], default: str = "") -> str:
        """One of some words, in any case."""
        text = self.text(column) or default
        for word in choices:
            if text.lower() == word.lower():
                return word
        near = difflib.get_close_matches(text.lower(), [word.lower() for word in choices], 1)
        raise CellError(column, f"did you mean {near[0]}?" if near else f"must be one of {', '.join(choices)}")


COMMON_COLUMNS = (
    "tag",
    "stream",
    "predicate",
    "unit",
    "description",
    "enumeration",
    "deadband",
    "min_interval_ms",
    "max_interval_ms",
)


def read_tag_map(file: str, data: bytes, source: str, dialect: Dialect) -> TagMap:
    """The tags in a file's bytes. Raises TagMapError with every problem found."""
    text, notes = _decoded(file, data)
    delimiter = _delimiter(text)
    rows = _rows(file, text, delimiter)
    columns = _columns(file, rows, dialect)
    reader = _Reader(file, source, dialect, decimal_comma=delimiter == ";")
    for line, cells in rows[1:]:
        if any(cell.strip() for cell in cells):
            reader.read(line, columns, cells)
    if not reader.tags and not reader.problems:
        reader.problems.append(Problem(file, 0, "", "", "holds no tags; add a row for each"))
    if reader.problems:
        raise TagMapError(reader.problems)
    return TagMap(file, tuple(reader.tags), notes)


class _Reader:
    """Collects tags and problems row by row."""

    def __init__(self, file: str, source: str, dialect: Dialect, *, decimal_comma: bool) -> None:
        self.tags: list[Tag] = []
        self.problems: list[Problem] = []
        self._file, self._source, self._dialect = file, source, dialect
        self._decimal_comma = decimal_comma
        self._rows_by_subject: dict[str, int] = {}
        self._rows_by_point: dict[Any, int] = {}

    def read(self, line: int, columns: Sequence[str], texts: Sequence[str]) -> None:
        if len(texts) > len(columns):
            extra = next((text for text in texts[len(columns) :] if text.strip()), "")
            if extra:
                self._problem(
                    line,
                    "",
                    extra,
                    f"has {len(texts)} cells under {len(columns)} columns; quote cells that hold the delimiter",
                )
                return
        cells = Cells({c: t.strip() for c, t in zip(columns, texts, strict=False)}, decimal_comma=self._decimal_comma)
        before = len(self.problems)
        for name in self._dialect.required:
            if not cells.text(name):
                self._problem(line, name, "", "is empty; every row needs one")
        if len(self.problems) > before:
            return
        rule = self._try(line, cells, _rule)
        found = self._try(line, cells, self._dialect.read_point)
        stream = self._try(line, cells, _stream)
        if found is None:
            self._check_subject(line, cells)
            return
        point, address, data_type = found
        definition = self._try(line, cells, lambda c: self._definition(c, address, data_type))
        self._check_subject(line, cells)
        self._check_point(line, cells, point)
        if definition is not None and rule is not None and stream is not None:
            self.tags.append(Tag(line, stream, definition, rule, point))

    def _try(self, line: int, cells: Cells, read: Callable[[Cells], Any]) -> Any:
        try:
            return read(cells)
        except CellError as error:
            self._problem(line, error.column, cells.text(error.column), error.why)
            return None

    def _definition(self, cells: Cells, address: str, data_type: str) -> TagDefinition:
        predicate = cells.text("predicate") or "value_sampled"
        if not PREDICATE.fullmatch(predicate):
            raise CellError("predicate", "must be lower_snake_case, such as temperature_sampled")
        definition = TagDefinition(
            subject=_subject(cells),
            predicate=predicate,
            unit=cells.text("unit"),
            source=self._source,
            address=address,
            data_type=data_type,
            description=cells.text("description"),
            enumeration=_enumeration(cells),
        )
        try:
            check_definition(definition)
        except MessageError as error:
            column = error.field.removeprefix("definition.")
            if column == "subject":
                raise CellError(
                    "tag", "must be scope/id in printable ASCII without spaces, such as line1/oven.temperature"
                ) from error
            raise CellError(column, error.why) from error
        return definition

    def _check_subject(self, line: int, cells: Cells) -> None:
        subject = _subject(cells)
        first = self._rows_by_subject.setdefault(subject, line)
        if first != line:
            self._problem(line, "tag", cells.text("tag"), f"is also in row {first}; each tag stands once")

    def _check_point(self, line: int, cells: Cells, point: Any) -> None:
        first = self._rows_by_point.setdefault(self._dialect.identity(point), line)
        if first != line:
            column = "address" if "address" in self._dialect.columns else "register"
            self._problem(line, column, cells.text(column), f"is read the same way in row {first}; one value, one tag")

    def _problem(self, line: int, column: str, value: str, why: str) -> None:
        self.problems.append(Problem(self._file, line, column, value, why))


def _enumeration(cells: Cells) -> str:
    """Names of numbers, one form for each content."""
    text = cells.text("enumeration")
    if not text:
        return ""
    texts = enumeration_texts(text)
    if len(texts) != text.count("|") + 1:
        raise CellError(
            "enumeration", "is not a list of numbers with names, each once; write 0=Off|1=Manual|7=Automatic"
        )
    return "|".join(f"{number}={texts[number]}" for number in sorted(texts))


def _decoded(file: str, data: bytes) -> tuple[str, tuple[str, ...]]:
    """The text of a file: UTF-8 with or without its mark, UTF-16 with one, else what Western Excel writes, and then
    said so."""
    if len(data) > FILE_BYTES_MAX:
        raise TagMapError([Problem(file, 0, "", "", f"is larger than {FILE_BYTES_MAX} bytes")])
    if b"\0" in data and not data.startswith((b"\xff\xfe", b"\xfe\xff")):
        raise TagMapError([Problem(file, 0, "", "", "is not text; save the sheet as CSV, not as a workbook")])
    if data.startswith(b"PK\x03\x04"):
        raise TagMapError([Problem(file, 0, "", "", "is an Excel workbook; save the sheet as CSV")])
    try:
        if data.startswith((b"\xff\xfe", b"\xfe\xff")):
            return data.decode("utf-16"), (f"{file} was read as UTF-16",)
        return data.decode("utf-8-sig"), ()
    except UnicodeDecodeError:
        note = f"{file} is not UTF-8 and was read as Windows-1252; check units such as °C, or save it as CSV UTF-8"
        return data.decode("cp1252", errors="replace"), (note,)


def _delimiter(text: str) -> str:
    """Semicolon, comma or tab: the commonest in the first line that is not empty."""
    header = next((line for line in text.splitlines() if line.strip()), "")
    return max(",;\t", key=header.count)


def _rows(file: str, text: str, delimiter: str) -> list[tuple[int, list[str]]]:
    """(row number as the spreadsheet shows it, cells) of every row that is not empty."""
    rows: list[tuple[int, list[str]]] = []
    row = 0
    try:
        for row, cells in enumerate(csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, strict=True), 1):
            if cells:
                rows.append((row, cells))
            if len(rows) > ROWS_MAX + 1:
                raise TagMapError([Problem(file, row, "", "", f"more than {ROWS_MAX} tags; split the source")])
    except csv.Error as error:
        raise TagMapError([Problem(file, row + 1, "", "", f"is not CSV: {error}; check the quotes")]) from error
    if not rows:
        raise TagMapError([Problem(file, 0, "", "", "is empty; its first line must name the columns")])
    return rows


def _columns(file: str, rows: Sequence[tuple[int, list[str]]], dialect: Dialect) -> list[str]:
    """The names in the header, checked."""
    line, header = rows[0]
    columns = [name.strip().lower().replace(" ", "_") for name in header]
    while columns and not columns[-1]:
        columns.pop()  # a spreadsheet leaves empty columns at the end
    known = COMMON_COLUMNS + dialect.columns
    problems = list(_header_problems(file, line, columns, known))
    missing = [name for name in ("tag", *dialect.required) if name not in columns]
    problems += [Problem(file, line, name, "", "is missing; add this column") for name in dict.fromkeys(missing)]
    if problems:
        raise TagMapError(problems)
    return columns


def _header_problems(file: str, line: int, columns: Sequence[str], known: Sequence[str]) -> Iterator[Problem]:
    for index, name in enumerate(columns):
        if not name:
            yield Problem(file, line, str(index + 1), "", "has no name; name the column or remove it")
        elif name not in known:
            near = difflib.get_close_matches(name, known, 1)
            hint = f"did you mean {near[0]}?" if near else f"known are {', '.join(known)}"
            yield Problem(file, line, name, name, f"is not a column; {hint}")
        elif columns.index(name) != index:
            yield Problem(file, line, name, name, "is there twice; keep one")


def _subject(cells: Cells) -> str:
    return f"tag:{cells.text('tag')}"


def _stream(cells: Cells) -> str:
    stream = cells.text("stream") or DEFAULT_STREAM
    if not STREAM.fullmatch(stream):
        raise CellError("stream", "must be 1 to 64 of a-z, 0-9, . _ and -")
    return stream


def _rule(cells: Cells) -> SamplingRule:
    text = cells.text("deadband")
    percent = text.endswith("%")
    deadband: float | None = None
    if text:
        deadband = float(cells.number("deadband", text.rstrip("%").strip(), 0))
        if deadband < 0 or (percent and deadband > 100):
            raise CellError("deadband", "must be 0 or more, or 0% to 100%")
    low_ms = cells.integer("min_interval_ms", 0, INTERVAL_MS_MAX, 0)
    high_ms = cells.integer("max_interval_ms", 0, INTERVAL_MS_MAX, 0)
    if high_ms and high_ms < low_ms:
        raise CellError("max_interval_ms", "is less than min_interval_ms")
    return SamplingRule(deadband, percent, low_ms * 1_000_000, high_ms * 1_000_000)
