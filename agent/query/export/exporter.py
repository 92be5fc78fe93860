"""Exports facts to a flat file, as far as the store can be read.

The target is complete or unchanged: the export is written under a temporary name, which is removed when the export
fails. An existing file is replaced only with `force`. Offsets that could not be read are in `Scanner.counters.holes`.
"""

from __future__ import annotations

import io
import os
import sqlite3
import sys
from collections.abc import Callable
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Literal, cast

from agent.escaping import printable_lines
from agent.query.export.formats import CsvForm, Form, JsonLinesForm, ParquetForm, SqliteForm
from agent.query.scan import Bounds, ExportRefused, Scanner

FormatName = Literal["sqlite", "csv", "jsonl", "parquet"]
STDOUT = Path("-")


@dataclass(frozen=True, slots=True)
class Exported:
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
) -> Exported:
    """Write the facts within the bounds to `target`; `-` is standard output, for csv and jsonl. Raises ExportRefused.

    `progress` is called after each batch with the number of facts written, the stream and the offset.
    """
    if target == STDOUT:
        if form_name not in {"csv", "jsonl"}:
            raise ExportRefused(f"{form_name} cannot be written to standard output", "name a file, or use csv or jsonl")
        return Exported(_write(scanner, bounds, _text_form(form_name, _borrowed_stdout()), progress), 0)
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
    return Exported(facts, size)


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
