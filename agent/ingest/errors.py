"""The exceptions of this package.

    IngestError                 everything this package raises on purpose
      TagMapError               a tag file cannot be used; `problems` holds every reason (for the operator)
        TagFileUnreadable       it is missing or cannot be opened, which may pass by itself
      UnknownSource             a command names a source that is not configured (for the operator)
      NotConnected              a command asks for values through a source that has no connection (for the operator)
      NoHistory                 a command asks for the history of a source that has none to read (for the operator)
      HistoryRefused            a server refuses a HistoryRead as a whole; the session continues
      StoredUnreadable          the facts that the store holds cannot be read; live values continue
      SourceError               one life of a source has ended; the supervisor rebuilds it after a pause
        SourceLost              the connection broke, fell silent or was never established
          SourceBusy            the server has no room for another client at present
        SourceRefused           the server or our own rules refuse the connection; the text ends with what to do
          ServerCertificateChanged  the server presents another certificate than the one that was trusted

Errors of asyncua and pymodbus stop at the modules that speak to them and arrive here chained.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

from agent.errors import BsfgError


class IngestError(BsfgError):
    """Root of what this package raises on purpose."""


@dataclass(frozen=True, slots=True)
class TagFileProblem:
    """One mistake in a tag file. `row` is the row of the spreadsheet (the header is 1) or the line of `[[tag]]` in a
    TOML file; 0 stands for the whole file. `template_row` is the row of the template that `row` uses, 0 if it uses
    none. `more`: it stands for so many that are not listed."""

    file: str
    row: int
    column: str
    value: str
    why: str
    template_row: int = 0
    more: int = 0

    def __str__(self) -> str:
        _, column = _terms(self.file)
        where = place(self.file, self.row, self.template_row) + (f" {column} {self.column}" if self.column else "")
        if self.column and not self.value:
            return f"{where} {self.why}"  # column table is empty
        return f"{where}: {self.value!r} {self.why}" if self.column else f"{where}: {self.why}"


def place(file: str, row: int, template_row: int = 0) -> str:
    """The position of a row as messages give it: `meters.csv row 7 (template row 2)`."""
    word, _ = _terms(file)
    return file + (f" {word} {row}" if row else "") + (f" (template {word} {template_row})" if template_row else "")


def is_toml(file: str) -> bool:
    """Whether a tag file of this name is TOML; all others are CSV."""
    return file.lower().endswith(".toml")


def _terms(file: str) -> tuple[str, str]:
    return ("line", "key") if is_toml(file) else ("row", "column")


PROBLEMS_MAX = 20
"""As many mistakes of a file are listed. More of them usually are one, such as a missing line or a wrong separator."""


class TagMapError(IngestError):
    """Tag files cannot be used as they stand; the text lists the first problems of each, and how many more there
    are."""

    def __init__(self, problems: Iterable[TagFileProblem]) -> None:
        by_file: dict[str, list[TagFileProblem]] = {}
        for problem in problems:
            by_file.setdefault(problem.file, []).append(problem)
        self.problems = tuple(chain.from_iterable(map(_first_of, by_file.values())))
        count = sum(problem.more or 1 for problem in self.problems)
        super().__init__(
            f"{count} problem{'s' * (count != 1)} in tag files" + "".join(f"\n  {p}" for p in self.problems)
        )


def _first_of(problems: Sequence[TagFileProblem]) -> list[TagFileProblem]:
    """The first problems of a file, and one that stands for the others."""
    listed = [problem for problem in problems if not problem.more][:PROBLEMS_MAX]
    if left := sum(problem.more or 1 for problem in problems) - len(listed):
        listed.append(TagFileProblem(problems[0].file, 0, "", "", f"and {left:,} more", more=left))
    return listed


class TagFileUnreadable(TagMapError):
    """A tag file is missing or cannot be opened. At the start that is an error; later an editor may be saving it."""


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
    """A server refuses a HistoryRead as a whole. The session continues."""

    def __init__(self, why: str, *, is_final: bool) -> None:
        super().__init__(why)
        self.is_final = is_final  # the server has no history service: it is not asked again


class StoredUnreadable(IngestError):
    """The facts that the store holds cannot be read."""


class SourceRefused(SourceError):
    """The source refuses the connection, or our own rules do. Retries fail until an operator changes something, so they
    are rare."""


class ServerCertificateChanged(SourceRefused):
    """An OPC UA server presents another certificate than the one that was trusted for it."""


def tag_file_problem(file: Path, why: str) -> TagFileProblem:
    """A problem of the file as a whole."""
    return TagFileProblem(file.name, 0, "", "", why)
