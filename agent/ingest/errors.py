"""The exceptions of this package.

    IngestError                 everything this package raises on purpose
      TagMapError               a tag file cannot be used; `problems` holds every reason (for the operator)
        TagFileUnreadable       it is missing or cannot be opened, which may pass by itself
      UnknownSource             a command names a source that is not configured (for the operator)
      NotConnected              a command asks for values through a source that has no connection (for the operator)
      NoHistory                 a command asks for the history of a source that has none to read (for the operator)
      HistoryRefused            a server does not answer a HistoryRead as a whole; its session goes on
      StoredUnreadable          the store cannot be read for what it holds already; live values go on
      SourceError               one life of a source has ended; the supervisor rebuilds it after a pause
        SourceLost              the connection broke, fell silent or was never established
          SourceBusy            the server has no room for another client at present
        SourceRefused           the server or our own rules refuse the connection; the text ends with what to do

Errors of asyncua and pymodbus stop at the modules that speak to them and arrive here chained.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from agent.errors import BsfgError


class IngestError(BsfgError):
    """Root of what this package raises on purpose."""


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing wrong in a tag file. `row` counts as a spreadsheet does (the header is 1), in a TOML file it is the
    line of `[[tag]]`; 0 is the file itself. `template_row` is the row of a template that `row` uses, if it does."""

    file: str
    row: int
    column: str
    value: str
    why: str
    template_row: int = 0

    def __str__(self) -> str:
        _, column = _terms(self.file)
        where = place(self.file, self.row, self.template_row) + (f" {column} {self.column}" if self.column else "")
        return f"{where}: {self.value!r} {self.why}" if self.column else f"{where}: {self.why}"


def place(file: str, row: int, template_row: int = 0) -> str:
    """Where a row is, in the words of the kind of file: `meters.csv row 7 (template row 2)`."""
    word, _ = _terms(file)
    return file + (f" {word} {row}" if row else "") + (f" (template {word} {template_row})" if template_row else "")


def is_toml(file: str) -> bool:
    """Whether a tag file of this name is TOML; all others are CSV."""
    return file.lower().endswith(".toml")


def _terms(file: str) -> tuple[str, str]:
    return ("line", "key") if is_toml(file) else ("row", "column")


class TagMapError(IngestError):
    """Tag files cannot be used as they stand; the text lists every problem."""

    def __init__(self, problems: Iterable[Problem]) -> None:
        self.problems = tuple(problems)
        count = len(self.problems)
        super().__init__(
            f"{count} problem{'s' * (count != 1)} in tag files" + "".join(f"\n  {p}" for p in self.problems)
        )


class TagFileUnreadable(TagMapError):
    """A tag file is missing or cannot be opened: an error at the start; later an editor may just be saving it."""


class UnknownSource(IngestError):
    """No source of this name is configured."""


class NotConnected(IngestError):
    """The source has no connection over which something could be read."""


class NoHistory(IngestError):
    """The history of this source is not read."""


class SourceError(IngestError):
    """One life of a source has ended."""


class SourceLost(SourceError):
    """The connection to a source broke, fell silent or was never established."""


class SourceBusy(SourceLost):
    """The server has no room for another client at present."""


class HistoryRefused(IngestError):
    """A server does not answer a HistoryRead as a whole. Its session goes on."""

    def __init__(self, why: str, *, is_final: bool) -> None:
        super().__init__(why)
        self.is_final = is_final  # it has no history service, so asking again changes nothing


class StoredUnreadable(IngestError):
    """The store cannot be read for what it holds already."""


class SourceRefused(SourceError):
    """The source refused us, or we refuse it. Retries fail until an operator changes something, so they are rare."""


def tag_file_problem(file: Path, why: str) -> Problem:
    """A problem of the file as a whole."""
    return Problem(file.name, 0, "", "", why)
