"""Errors of queries. Each message ends with what to do.

QueryError              any of the below; never raised itself (a BsfgError)
    ExtraMissing        a library of an optional extra is not installed
    SqlRefused          SQL that SQLite cannot run, or that does more than read
    ExportRefused       the target of an export exists or cannot be written
    StreamUnknown       the store has no such stream
    TimeUnreadable      the text is not a time
"""

from __future__ import annotations

from agent.errors import BsfgError


class QueryError(BsfgError):
    """Root of the tree above."""

    def __init__(self, why: str, hint: str = "") -> None:
        super().__init__(why)
        self.hint = hint


class ExtraMissing(QueryError):
    """A library of an optional extra is not installed."""


class SqlRefused(QueryError):
    """SQL that SQLite cannot run, or that would do more than read."""


class ExportRefused(QueryError):
    """An export whose target exists or cannot be written."""


class StreamUnknown(QueryError):
    """A stream that the store does not hold."""


class TimeUnreadable(QueryError):
    """Text that is not a time."""
