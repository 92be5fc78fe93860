"""What was learned of the units of a source, as a document that outlives the process. Core.

    {"version": 1, "refused": [[1, "holding", 37, 38, 2], ...]}     unit, table, first address, end, exception

A document that is damaged or of another version is worth no more than what is learned again in one poll: `read_lessons`
raises ValueError, and the source begins without.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

from agent.ingest.modbus.address import ADDRESS_MAX, Table
from agent.ingest.modbus.plan import BITS_PER_READ_MAX, Span
from agent.ingest.settings import UNIT_ID_MAX
from agent.message import check_depth

VERSION = 1
LESSONS_MAX = 100_000  # twice the rows of a tag file


def lessons_document(refused: Mapping[Span, int]) -> bytes:
    """The document of these refused spans and their exceptions."""
    rows = sorted([span.unit_id, span.table.value, span.first, span.end, code] for span, code in refused.items())
    lines = ",\n  ".join(json.dumps(row) for row in rows[:LESSONS_MAX])
    return f'{{"version": {VERSION}, "refused": [\n  {lines}\n]}}\n'.encode()


def read_lessons(document: bytes) -> dict[Span, int]:
    """The refused spans in a document. Raises ValueError that says what is wrong with it."""
    try:
        check_depth("lessons", document)
        found = json.loads(document)
        if found["version"] != VERSION:
            raise ValueError(f"version {found['version']!r} is not {VERSION}")
        return dict(_lesson(*row) for row in found["refused"][:LESSONS_MAX])
    except (KeyError, TypeError) as error:
        raise ValueError(f"is not a document of lessons: {error!r}") from error


def _lesson(unit_id: int, table: str, first: int, end: int, code: int) -> tuple[Span, int]:
    is_possible = (
        0 <= unit_id <= UNIT_ID_MAX and 0 <= first < end <= ADDRESS_MAX + 1 and end - first <= BITS_PER_READ_MAX
    )
    if not is_possible or not 0 <= code <= 255 or {type(unit_id), type(first), type(end), type(code)} != {int}:
        raise ValueError(f"{[unit_id, table, first, end, code]} is no lesson")
    return Span(unit_id, Table(table), first, end), code
