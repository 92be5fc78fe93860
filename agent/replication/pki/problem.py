"""How this package says that something is wrong: one error that ends the work, and problems that are collected.

Both carry what to do.  An error is raised where one thing is asked for and cannot be had; problems are returned where
everything wrong with an identity is wanted at once.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from agent.replication.protocol.errors import ReplicationError


class PkiError(ReplicationError):
    """Something about a certificate or key that the operator has to put right; `hint` says how."""

    def __init__(self, why: str, hint: str) -> None:
        super().__init__(why)
        self.why = why
        self.hint = hint


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing wrong with an identity: in which file, why, and what to do about it."""

    file: Path
    why: str
    hint: str

    def __str__(self) -> str:
        named = self.why.startswith(str(self.file))  # an error of a file says which
        return f"{self.why}; {self.hint}" if named else f"{self.file}: {self.why}; {self.hint}"


def moment_text(moment: datetime) -> str:
    """A moment as a person reads it."""
    return moment.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
