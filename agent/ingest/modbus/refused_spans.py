"""The document in which the refused spans of a source's units are kept across restarts. Core.

    {"version": 1, "refused": [[1, "holding", 37, 38, 2], ...]}     unit, table, first address, end, exception

`parse_refused` raises ValueError for a damaged document or another version. The source then starts without it and
learns the spans again in one poll.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

from agent.ingest.modbus.address import ADDRESS_MAX, Table
from agent.ingest.modbus.plan import BITS_PER_READ_MAX, Span
from agent.message import check_depth
from agent.settings.sources import UNIT_ID_MAX

VERSION = 1
REFUSED_MAX = 100_000  # twice the rows of a tag file


def refused_document(refused: Mapping[Span, int]) -> bytes:
    """The document of these refused spans and their exceptions."""
    rows = sorted([span.unit_id, span.table.value, span.first, span.end, code] for span, code in refused.items())
    lines = ",\n  ".join(json.dumps(row) for row in rows[:REFUSED_MAX])
    return f'{{"version": {VERSION}, "refused": [\n  {lines}\n]}}\n'.encode()


def parse_refused(document: bytes) -> dict[Span, int]:
    """The refused spans in a document. Raises ValueError with the reason."""
    try:
        check_depth("refused spans", document)
        found = json.loads(document)
        if found["version"] != VERSION:
            raise ValueError(f"version {found['version']!r} is not {VERSION}")
        return dict(_refused_span(*row) for row in found["refused"][:REFUSED_MAX])
    except (KeyError, TypeError) as error:
        raise ValueError(f"is not a document of refused spans: {error!r}") from error


def _refused_span(unit_id: int, table: str, first: int, end: int, code: int) -> tuple[Span, int]:
    is_possible = (
        0 <= unit_id <= UNIT_ID_MAX and 0 <= first < end <= ADDRESS_MAX + 1 and end - first <= BITS_PER_READ_MAX
    )
    if not is_possible or not 0 <= code <= 255 or {type(unit_id), type(first), type(end), type(code)} != {int}:
        raise ValueError(f"{[unit_id, table, first, end, code]} is not a refused span")
    return Span(unit_id, Table(table), first, end), code
