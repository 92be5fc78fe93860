"""What can go wrong with a question. Each error ends with what to do.

QueryError              anything below; never raised itself (a BsfgError)
    ExtraMissing        a library of an optional extra is not installed
    SqlRefused          SQL that SQLite cannot run, or that would do more than read
    ExportRefused       an export that would overwrite, or has nowhere to go
    StreamUnknown       a stream that the store does not hold
    TimeUnreadable      text that is no time
"""

from __future__ import annotations

from agent.errors import BsfgError


class QueryError(BsfgError):
    """Root of the tree drawn above."""

    def __init__(self, why: str, hint: str = "") -> None:
        super().__init__(why)
        self.hint = hint


class ExtraMissing(QueryError):
    """A library of an optional extra is not installed."""


class SqlRefused(QueryError):
    """SQL that SQLite cannot run, or that would do more than read."""


class ExportRefused(QueryError):
    """An export that would overwrite, or has nowhere to go."""


class StreamUnknown(QueryError):
    """A stream that the store does not hold."""


class TimeUnreadable(QueryError):
    """Text that is no time."""
