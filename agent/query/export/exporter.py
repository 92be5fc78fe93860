"""Exports facts to a flat file, as far as the store can be read: SQLite, CSV, JSON lines or Parquet.

The target is complete or unchanged: the export is written under a temporary name, which is removed when the export
fails. An existing file is replaced only with `force`. Offsets that could not be read are in `Scanner.counters.holes`.

A format takes the facts of one batch at a time. Together with `value_type`, every format keeps each value exactly
(docs/reference/export.md; a test reads each one back).
"""

from __future__ import annotations

import csv
import io
import json
import math
import os
import sqlite3
import sys
from collections.abc import Callable, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Literal, cast

from agent.escaping import csv_cell, printable_lines
from agent.fact_store import named_statements
from agent.message import JSON_INTEGER_MAX, Value
from agent.query.scan import COLUMNS, BatchFacts, Bounds, ExportRefused, ExtraMissing, Scanner, exact_text, value_type

_SQL = dict(named_statements(Path(__file__).with_name("export.sql").read_text("utf-8")))
_TEXT_COLUMNS = tuple(name for name in COLUMNS if name != "value_text")  # `value` is exact where everything is text
_FOREIGN = frozenset(
    _TEXT_COLUMNS.index(name) for name in ("message_id", "value", "unit", "to_zone", "correlation_id", "causation_id")
)
PARQUET_GROUP_FACTS = 65_536
FormatName = Literal["sqlite", "csv", "jsonl", "parquet"]
STDOUT = Path("-")


class SqliteForm:
    """A table `facts` in a file of its own. Like every format, it leaves an incomplete file if it is closed without
    `finish`, so the file has a temporary name until then."""

    def __init__(self, path: Path) -> None:
        self._connection = sqlite3.connect(path, isolation_level=None)
        for pragma in ("journal_mode = OFF", "synchronous = OFF", "cache_size = -65536"):
            self._connection.execute(f"PRAGMA {pragma}").close()
        self._connection.execute(_SQL["create_facts"])
        self._connection.execute("BEGIN")

    def write(self, facts: BatchFacts) -> None:
        self._connection.executemany(
            _SQL["insert_fact"], zip(*(flat_column(facts, name) for name in COLUMNS), strict=True)
        )

    def finish(self) -> None:
        self._connection.execute("COMMIT")
        for name in ("index_offset", "index_subject", "index_time"):
            self._connection.execute(_SQL[name])

    def close(self) -> None:
        self._connection.close()


class _TextForm:
    """Lines in a file, one for each fact."""

    def __init__(self, file: IO[str]) -> None:
        self._file = file

    def finish(self) -> None:
        self._file.flush()

    def close(self) -> None:
        self._file.close()


class CsvForm(_TextForm):
    """Comma-separated text with a header line. An empty cell is NULL, or an empty text if `value_type` is string."""

    def __init__(self, file: IO[str]) -> None:
        super().__init__(file)
        self._csv = csv.writer(file)  # lines end in CR LF (RFC 4180), so that both are quoted inside a text
        self._csv.writerow(_TEXT_COLUMNS)

    def write(self, facts: BatchFacts) -> None:
        self._csv.writerows(map(_safe_cells, _text_rows(facts, exact_text)))


class JsonLinesForm(_TextForm):
    """One JSON object on each line; NULL values are left out."""

    def write(self, facts: BatchFacts) -> None:
        lines = []
        for row in _text_rows(facts, json_exact):
            found = {name: value for name, value in zip(_TEXT_COLUMNS, row, strict=True) if value is not None}
            lines.append(json.dumps(found, ensure_ascii=False))
        self._file.write("\n".join(lines) + "\n")


class ParquetForm:
    """Row groups with the columns and types of the Spark source."""

    def __init__(self, path: Path) -> None:
        try:
            import pyarrow as pa
            import pyarrow.parquet as pq
        except ImportError as error:
            raise ExtraMissing(
                "Parquet needs the package pyarrow, which is not installed",
                "pip install pyarrow, or export to sqlite, csv or jsonl",
            ) from error
        self._pa = pa
        text, whole = pa.string(), pa.int64()
        self._schema = pa.schema([
            pa.field("offset", whole, nullable=False), pa.field("message_id", text, nullable=False),
            pa.field("stream", text, nullable=False), pa.field("zone", text, nullable=False),
            pa.field("life", text, nullable=False), pa.field("sequence", whole, nullable=False),
            pa.field("verified", text, nullable=False),
            pa.field("tag", text, nullable=False), pa.field("predicate", text, nullable=False),
            pa.field("ts", pa.timestamp("us", tz="UTC"), nullable=False),
            pa.field("source_time_ns", whole, nullable=False), pa.field("value", pa.float64()),
            pa.field("value_int", whole), pa.field("value_text", text), pa.field("value_type", text, nullable=False),
            pa.field("quality", whole), pa.field("is_good", pa.bool_()), pa.field("unit", text), pa.field("object_json", text),
        ])  # fmt: skip
        self._writer = pq.ParquetWriter(path, self._schema, compression="zstd")
        self._columns: dict[str, list[Any]] = {name: [] for name in self._schema.names}

    def write(self, facts: BatchFacts) -> None:
        values = facts.values()
        times_ns = facts.column("source_time_ns")
        made: dict[str, Sequence[Any]] = {
            "tag": facts.column("subject"),
            "is_good": [None if flag is None else bool(flag) for flag in facts.column("is_good")],
            "ts": [time_ns // 1000 for time_ns in times_ns],
            "value": [_double(value) for value in values],
            "value_int": [int(value) if _is_whole(value) else None for value in values],  # type: ignore[arg-type]
            "value_text": [exact_text(value) if _is_text(value) else None for value in values],
            "value_type": ["message"] * len(values) if facts.samples is None else list(map(value_type, values)),
        }
        for name, column in self._columns.items():
            column.extend(made[name] if name in made else facts.column(name))
        if len(self._columns["offset"]) >= PARQUET_GROUP_FACTS:
            self._flush()

    def finish(self) -> None:
        self._flush()

    def close(self) -> None:
        self._writer.close()

    def _flush(self) -> None:
        arrays = [self._pa.array(self._columns[field.name], field.type) for field in self._schema]
        if len(arrays[0]):
            self._writer.write_batch(self._pa.RecordBatch.from_arrays(arrays, schema=self._schema))
        for column in self._columns.values():
            column.clear()


Form = SqliteForm | CsvForm | JsonLinesForm | ParquetForm
"""The caller writes batch by batch, then calls `finish`, and calls `close` in any case."""


def flat_column(facts: BatchFacts, name: str) -> Sequence[Any]:
    """A column of a flat row. A sample's message_id is left out: it is the row's stream, zone, life and sequence."""
    if name == "message_id" and facts.samples is not None:
        return [None] * len(facts.places)
    return facts.column(name)


def _text_rows(facts: BatchFacts, of_value: Callable[[Value], Any]) -> Any:
    """The rows of a batch with `_TEXT_COLUMNS`, each value made by `of_value`."""
    columns = [
        list(map(of_value, facts.values())) if name == "value" else flat_column(facts, name) for name in _TEXT_COLUMNS
    ]
    return zip(*columns, strict=True)


def _safe_cells(row: Sequence[Any]) -> Sequence[Any]:
    """Escape text that a spreadsheet would read as a formula, in columns that others control. Names of zones, streams,
    subjects and predicates, and JSON, cannot begin like a formula."""
    return [csv_cell(cell) if at in _FOREIGN and cell else cell for at, cell in enumerate(row)]


def json_exact(value: Value) -> Any:
    """A value as JSON that every reader reads exactly, or as `exact_text` if there is no such JSON."""
    if value is None or isinstance(value, bool | str):
        return value
    if isinstance(value, int):
        return value if abs(value) <= JSON_INTEGER_MAX else str(value)
    if isinstance(value, float) and math.isfinite(value):
        return value
    return exact_text(value)


def _double(value: Value) -> float | None:
    return float(value) if isinstance(value, int | float) else None


def _is_whole(value: Value) -> bool:
    return isinstance(value, int) and value_type(value) != "uint"


def _is_text(value: Value) -> bool:
    return value is not None and value_type(value) in {"string", "bytes", "json", "uint"}


@dataclass(frozen=True, slots=True)
class ExportedFiles:
    """What an export wrote."""

    facts: int
    bytes: int


def export(
    scanner: Scanner,
    bounds: Bounds,
    target: Path,
    form_name: FormatName,
    *,
    force: bool = False,
    progress: Callable[[int, str, int], None] = lambda _facts, _stream, _offset: None,
) -> ExportedFiles:
    """Write the facts within the bounds to `target`; `-` is standard output, for csv and jsonl. Raises ExportRefused.

    `progress` is called after each batch with the number of facts written, the stream and the offset.
    """
    if target == STDOUT:
        if form_name not in {"csv", "jsonl"}:
            raise ExportRefused(f"{form_name} cannot be written to standard output", "name a file, or use csv or jsonl")
        try:
            return ExportedFiles(_write(scanner, bounds, _text_form(form_name, _borrowed_stdout()), progress), 0)
        except BrokenPipeError:  # its reader has enough
            raise
        except OSError as error:
            raise ExportRefused(f"standard output cannot be written: {error}", "check the free space there") from error
    if target.exists() and not force:
        raise ExportRefused(f"{target} exists", "name another file, or replace it with --force")
    store, wanted = scanner.reader.path.resolve(), target.resolve()
    if wanted.parent == store.parent and wanted.name.startswith(store.name):  # its log, witness and lock, too
        raise ExportRefused(f"{target} has the name of a file of the store", "name another file")
    part = target.with_name(target.name + ".part")
    try:
        part.unlink(missing_ok=True)
        facts = _write(scanner, bounds, _form(form_name, part), progress)
        size = part.stat().st_size
        part.replace(target)
    except (OSError, sqlite3.Error) as error:  # errors of the store itself are StoreError
        hint = "check the free space of the disk and the permissions of the folder"
        raise ExportRefused(f"{target} cannot be written: {error}", hint) from error
    finally:
        with suppress(OSError):
            part.unlink(missing_ok=True)
    return ExportedFiles(facts, size)


def _write(scanner: Scanner, bounds: Bounds, form: Form, progress: Callable[[int, str, int], None]) -> int:
    count = 0
    with closing(form):
        for facts in scanner.scan(bounds):
            form.write(facts)
            count += len(facts.places)
            progress(count, facts.stream, facts.first_offset)
        form.finish()
    return count


def _form(name: FormatName, path: Path) -> Form:
    match name:
        case "sqlite":
            return SqliteForm(path)
        case "parquet":
            return ParquetForm(path)
        case _:
            return _text_form(name, path.open("w", encoding="utf-8", newline=""))


def _text_form(name: str, file: IO[str]) -> Form:
    return CsvForm(file) if name == "csv" else JsonLinesForm(file)


class _EscapedTerminal(io.TextIOBase):
    """Writes to standard output, a terminal, without control characters except line ends."""

    def write(self, text: str) -> int:
        sys.stdout.write(printable_lines(text.replace("\r\n", "\n")))
        return len(text)


def _borrowed_stdout() -> IO[str]:
    """Standard output as a file that may be closed. At a terminal it escapes control characters, which a peer may have
    written; a file or a pipe gets every character."""
    sys.stdout.flush()
    if sys.stdout.isatty():
        return cast("IO[str]", _EscapedTerminal())
    return os.fdopen(os.dup(sys.stdout.fileno()), "w", encoding="utf-8", newline="")
