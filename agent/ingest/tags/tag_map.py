"""The tag map: which values of a source are read, their names, and when they are recorded.

One file per source, CSV as a spreadsheet saves it (`csv_rows`) or TOML (`toml_rows`). Devices of the same kind are
written once, as a template (`templates`). The whole file is checked before it is used, and all problems are reported at
once, with row and column.

Core: takes the bytes of a file and the settings, returns tags and notes or raises TagMapError. Nothing is guessed: an
unknown column, a duplicate tag or an unknown type is an error with a suggestion. `columns`, `opcua/address` and
`modbus/address` describe the columns.
"""

from __future__ import annotations

import dataclasses
import difflib
import hashlib
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from functools import lru_cache
from typing import Any

from agent.ingest.errors import TagFileProblem, TagMapError, is_toml, place
from agent.ingest.sampling import SamplingRule
from agent.ingest.tags.columns import COMMON_COLUMNS, TEMPLATE_COLUMNS, CellKind, Column
from agent.ingest.tags.csv_rows import DECIMAL_COMMA, GROUPED, both_readings, decimal_marks, read_csv
from agent.ingest.tags.sheet import CellError, Row, Sheet
from agent.ingest.tags.templates import Sums, expand
from agent.ingest.tags.toml_rows import read_toml
from agent.message import (
    HEALTH_STREAM,
    JSON_INTEGER_MAX,
    PREDICATE,
    STREAM,
    MessageError,
    TagDefinition,
    check_definition,
    enumeration_texts,
)

INTERVAL_MS_MAX = 86_400_000  # a day
DEFAULT_STREAM = "facts.telemetry"
SHARED_MAX = 1_024  # rules kept; beyond it a rule may be made twice
_WHOLE = re.compile(r"[+-]?[0-9]{1,30}")  # `int` refuses thousands of digits


@dataclass(frozen=True, slots=True)
class Tag:
    """One row: what is read (`point`, which depends on the protocol), and how it is recorded. `template_row` is the row
    of the template that it uses, 0 for none. `interval_ms` is the interval of samples; 0 if they come on change."""

    row: int
    stream: str
    definition: TagDefinition
    rule: SamplingRule
    point: Any
    template_row: int = 0
    interval_ms: int = 0

    @property
    def name(self) -> str:
        """The name as the file writes it: scope/id."""
        return self.definition.subject.removeprefix("tag:")

    @property
    def longest_interval_ms(self) -> int:
        """The longest time between two facts of the tag while its source is connected; 0 if facts come only on
        change."""
        rule, found = self.rule, list[int]()
        if rule.max_interval_ns:
            found.append(rule.max_interval_ns // 1_000_000)
        if self.interval_ms and rule.deadband is None:
            found.append(max(self.interval_ms, rule.min_interval_ns // 1_000_000))
        return min(found, default=0)


@dataclass(frozen=True, slots=True)
class TagMap:
    """All tags of one source. `notes` tell how the file was read if that was not certain. `digest` is that of the
    file's bytes."""

    file: str
    tags: tuple[Tag, ...]
    notes: tuple[str, ...] = ()
    digest: bytes = b""

    def place(self, tag: Tag) -> str:
        """The position of a tag, for messages."""
        return place(self.file, tag.row, tag.template_row)


@dataclass(frozen=True, slots=True)
class Dialect:
    """What a protocol adds: its columns, the required ones among all, and how a row becomes a point.

    `read_point` takes the cells of a row and returns (point, address, data_type). It raises CellError for a wrong cell.
    `identity` is the part of a point that must be unique. `interval_ms` is its sampling interval (0: on change). `sums`
    are the columns in which a template may add to a placeholder. `examples` are rows for a new file. `notes` are doubts
    about rows that may be right.
    """

    columns: tuple[Column, ...]
    required: tuple[str, ...]
    read_point: Callable[[Cells], tuple[Any, str, str]]
    identity: Callable[[Any], Any] = lambda point: point
    interval_ms: Callable[[Any], int] = lambda _: 0
    sums: Sums = field(default_factory=dict)
    examples: tuple[Mapping[str, str], ...] = ()
    notes: Callable[[Sequence[Tag]], Iterable[str]] = lambda _: ()

    @property
    def all_columns(self) -> tuple[Column, ...]:
        """The columns of a tag file of this protocol in a useful order: template, tag, place of the value, everything
        else."""
        tag, *about = COMMON_COLUMNS
        return (*TEMPLATE_COLUMNS, tag, *self.columns, *about)


class Cells:
    """The stripped cells of one row by column name. A missing column is empty.

    `marks` are the decimal marks of the numbers in the file, `.` or `,` or both.
    """

    def __init__(self, texts: Mapping[str, str], marks: str = ".") -> None:
        self.texts = texts
        self._marks = marks

    def text(self, column: str) -> str:
        return self.texts.get(column, "")

    def integer(self, column: str, lowest: int, highest: int, default: int | None = None) -> int:
        """A whole number. An empty cell is the default, or an error if there is none."""
        text = self.text(column)
        if not text:
            if default is None:
                raise CellError(column, f"is empty; write a whole number from {lowest} to {highest}")
            return default
        if not _WHOLE.fullmatch(text):
            raise CellError(column, f"is not a whole number; write one from {lowest} to {highest}")
        if not lowest <= int(text) <= highest:
            raise CellError(column, f"is outside {lowest} to {highest}")
        return int(text)

    def number(self, column: str, text: str, default: float) -> int | float:
        """A finite number. Whole numbers are int, so that an integer scaled by 10 stays exact."""
        if len(self._marks) == 2 and GROUPED.fullmatch(text):
            raise CellError(column, both_readings(text))
        if "," in self._marks and DECIMAL_COMMA.fullmatch(text):
            text = text.replace(",", ".")
        if not text:
            return default
        try:
            value = float(text)
        except ValueError:
            raise CellError(column, "is not a number") from None
        if value - value != 0:
            raise CellError(column, "is not a finite number")
        if abs(value) > JSON_INTEGER_MAX and Decimal(text) != Decimal(repr(value)):
            raise CellError(column, "is beyond 2^53 and would be rounded")
        return int(text) if _WHOLE.fullmatch(text) and abs(value) < 2**53 else value

    def choice(self, column: str, choices: Sequence[str], default: str = "") -> str:
        """One of some words, ignoring case."""
        text = self.text(column) or default
        for word in choices:
            if text.lower() == word.lower():
                return word
        near = difflib.get_close_matches(text.lower(), [word.lower() for word in choices], 1)
        raise CellError(
            column, f"is unknown; did you mean {near[0]}?" if near else f"must be one of {', '.join(choices)}"
        )


def read_tag_map(file: str, data: bytes, source: str, dialect: Dialect) -> TagMap:
    """The tags in a file's bytes. Raises TagMapError with every problem found."""
    sheet = read_rows(file, data, dialect)
    tags, problems = read_tags(file, sheet, source, dialect)
    if not tags and not problems:
        problems.append(TagFileProblem(file, 0, "", "", "holds no tags; add a row for each"))
    if problems:
        raise TagMapError(sorted(problems, key=lambda problem: problem.row))
    notes = (f"{file}: {note}" for note in dialect.notes(tags))
    return TagMap(file, tuple(tags), (*sheet.notes, *notes), digest_of(data))


def read_tags(file: str, sheet: Sheet, source: str, dialect: Dialect) -> tuple[list[Tag], list[TagFileProblem]]:
    """The tags in the rows of a file, and every problem found, however many these are."""
    reader = _Reader(file, source, dialect, _decimal_marks(sheet, dialect))
    for row in sheet.rows:
        reader.read(row)
    return reader.tags, [*sheet.problems, *_reported_once(reader.problems)]


def digest_of(data: bytes) -> bytes:
    """A digest that changes when the file changes."""
    return hashlib.blake2b(data, digest_size=16).digest()


def read_rows(file: str, data: bytes, dialect: Dialect) -> Sheet:
    """The rows of a file with all templates expanded. Their cells are not checked. Raises TagMapError if the whole file
    cannot be read."""
    names = [column.name for column in dialect.all_columns]
    sheet = read_toml(file, data, names) if is_toml(file) else read_csv(file, data, names, dialect.required)
    own = [column.name for column in COMMON_COLUMNS + dialect.columns]
    return expand(file, sheet, own, dialect.sums)


def _decimal_marks(sheet: Sheet, dialect: Dialect) -> str:
    """The decimal marks of the numbers in a file. Only a sheet with semicolons can have commas."""
    if not sheet.decimal_comma:
        return "."
    columns = [
        column.name for column in dialect.all_columns if column.kind is CellKind.NUMBER or column.name == "clamp"
    ]
    return decimal_marks(row.texts.get(name, "") for row in sheet.rows for name in columns)


class _Reader:
    """Collects tags and problems row by row."""

    def __init__(self, file: str, source: str, dialect: Dialect, marks: str) -> None:
        self.tags: list[Tag] = []
        self.problems: list[TagFileProblem] = []
        self._file, self._source, self._dialect = file, source, dialect
        self._marks = marks
        self._rows_by_subject: dict[str, Row] = {}
        self._rows_by_point: dict[Any, Row] = {}

    def read(self, row: Row) -> None:
        cells = Cells(row.texts, self._marks)
        missing = [name for name in self._dialect.required if not cells.text(name)]
        for name in missing:
            self._problem(row, name, "", "is empty; every row needs one")
        if missing:
            return
        rule = self._try_each(row, cells, _rule)
        found = self._try(row, cells, self._dialect.read_point)
        stream = self._try(row, cells, _stream)
        if found is None:
            self._try_each(row, cells, lambda c: self._definition(c, "", ""))
            self._check_subject(row, cells)
            return
        point, address, data_type = found
        definition = self._try_each(row, cells, lambda c: self._definition(c, address, data_type))
        self._check_subject(row, cells)
        self._check_point(row, cells, point)
        if definition is not None and rule is not None and stream is not None:
            interval_ms = self._dialect.interval_ms(point)
            self.tags.append(Tag(row.line, stream, definition, rule, point, row.template_line, interval_ms))

    def _try(self, row: Row, cells: Cells, read: Callable[[Cells], Any]) -> Any:
        try:
            return read(cells)
        except CellError as error:
            self._problem(row, error.column, cells.text(error.column), error.why)
            return None

    def _try_each(self, row: Row, cells: Cells, read: Callable[[Cells], Any]) -> Any:
        """As `_try`, with each wrong cell: after one, the others are read as if it were empty. Only for cells of which
        none decides what another one may be."""
        left = cells
        while True:
            try:
                found = read(left)
            except CellError as error:
                if left is not cells and not left.text(error.column):
                    return None
                self._problem(row, error.column, cells.text(error.column), error.why)
                left = Cells({**left.texts, error.column: ""}, self._marks)
            else:
                return found if left is cells else None

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

    def _check_subject(self, row: Row, cells: Cells) -> None:
        first = self._rows_by_subject.setdefault(_subject(cells), row)
        if first is not row:
            why = f"is also in {self._place(first)}; each tag stands once"
            self._problem(row, "tag", cells.text("tag"), why)

    def _check_point(self, row: Row, cells: Cells, point: Any) -> None:
        first = self._rows_by_point.setdefault(self._dialect.identity(point), row)
        if first is not row:
            column = self._dialect.required[-1]  # in every dialect the column of the place
            why = f"is read the same way in {self._place(first)}; one value, one tag"
            self._problem(row, column, cells.text(column), why)

    def _place(self, row: Row) -> str:
        return place(self._file, row.line, row.template_line).removeprefix(f"{self._file} ")

    def _problem(self, row: Row, column: str, value: str, why: str) -> None:
        self.problems.append(TagFileProblem(self._file, row.line, column, value, why, row.template_line))


def _reported_once(problems: Sequence[TagFileProblem]) -> list[TagFileProblem]:
    """Report a mistake in a template once, for the first device, with a count of the others."""
    found: dict[object, list[TagFileProblem]] = {}
    for index, problem in enumerate(problems):
        key = (problem.template_row, problem.column, problem.value, problem.why) if problem.template_row else index
        found.setdefault(key, []).append(problem)
    return [
        first if not others else dataclasses.replace(first, why=f"{first.why} (and {len(others)} more devices)")
        for first, *others in found.values()
    ]


def _enumeration(cells: Cells) -> str:
    """The names of numbers in a canonical form."""
    text = cells.text("enumeration")
    if not text:
        return ""
    texts = enumeration_texts(text)
    if len(texts) != text.count("|") + 1:
        raise CellError(
            "enumeration", "is not a list of numbers with names, each once; write 0=Off|1=Manual|7=Automatic"
        )
    return "|".join(f"{number}={texts[number]}" for number in sorted(texts))


def _subject(cells: Cells) -> str:
    return f"tag:{cells.text('tag')}"


def _stream(cells: Cells) -> str:
    stream = cells.text("stream") or DEFAULT_STREAM
    if not STREAM.fullmatch(stream):
        raise CellError("stream", "must be 1 to 64 of a-z, 0-9, . _ and -")
    if stream == HEALTH_STREAM:
        raise CellError("stream", f"{stream} is for the health of nodes; choose another")
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
    return _shared_rule(deadband, percent, low_ms * 1_000_000, high_ms * 1_000_000)


@lru_cache(SHARED_MAX, typed=True)
def _shared_rule(deadband: float | None, is_percent: bool, min_ns: int, max_ns: int) -> SamplingRule:  # noqa: FBT001
    """A rule. Tags with the same rule share one object."""
    return SamplingRule(deadband, is_percent, min_ns, max_ns)
