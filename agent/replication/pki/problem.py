"""Errors of this package: an exception that ends the work, and problems that are collected.

Both say what to do. An exception is raised if a file or certificate cannot be used; problems are returned where all
faults of an identity are wanted at once.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from agent.replication.protocol.errors import ReplicationError


class PkiError(ReplicationError):
    """A certificate, key or list cannot be used; `hint` says what the operator can do."""

    def __init__(self, why: str, hint: str) -> None:
        super().__init__(why)
        self.why = why
        self.hint = hint


@dataclass(frozen=True, slots=True)
class IdentityProblem:
    """One fault of an identity: the file, the reason, and what to do."""

    file: Path
    why: str
    hint: str

    @property
    def what(self) -> str:
        """The file and the reason."""
        is_named = self.why.startswith(str(self.file))  # the message of a file error begins with the file
        return self.why if is_named else f"{self.file}: {self.why}"

    def __str__(self) -> str:
        return f"{self.what}; {self.hint}"


def moment_text(moment: datetime) -> str:
    """A time in UTC for messages."""
    return moment.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
