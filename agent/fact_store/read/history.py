"""Reads the facts of one origin by sequences instead of offsets, for comparison with peers and for repair.

A page is assembled like any other (page_assembly.py), with sequences in place of offsets: whole batches, each compared
with its digest, and holes for the rest: `expired` if retention has released the facts, `damaged`, or `absent` if they
were never held here.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator
from typing import Literal, NamedTuple

from agent.fact_store.core import PageAssembly
from agent.fact_store.sqlite import QUERIES, held_of, is_damage
from agent.pages import BatchEnd, Hole, Page, Span, intersect, subtract

Reason = Literal["expired", "damaged", "absent"]


class SequenceRequest(NamedTuple):
    """A request for sequences of an origin in a stream, both given by number (0: unknown here), with its limits."""

    stream_name: str
    stream: int
    origin: int
    first_sequence: int
    last_sequence: int
    facts_max: int
    bytes_max: int


def read_history(connection: sqlite3.Connection, asked: SequenceRequest) -> Page:
    """A page of whole batches from the one that holds the first sequence. Its holes lie within the requested
    sequences."""
    held = [held_range.span for held_range in held_of(connection.execute, asked.stream, asked.origin)]
    page = PageAssembly(
        asked.stream_name,
        asked.first_sequence - 1,
        asked.facts_max,
        asked.bytes_max,
        asked.last_sequence,
    )
    bad = list[Span]()
    if _read_rows(connection, asked, page, bad):
        page.finish(asked.last_sequence)
    released = connection.execute(QUERIES["select_released"], (asked.stream,)).fetchone()
    if not (released and released[0]):
        bad = held  # nothing was ever released: held facts that cannot be read are damaged
    holes = [piece for hole in page.holes for piece in _pieces(hole, held, bad)]
    return Page(page.batches, held[-1][1] if held else 0, tuple(holes))


def batch_ends_at(connection: sqlite3.Connection, stream: int, origin: int, sequences: Iterable[int]) -> list[BatchEnd]:
    """End and digest of the batches that hold these sequences, in order, each once."""
    found = dict[int, bytes]()
    for sequence in sequences:
        asked = {"stream": stream, "origin": origin, "sequence": sequence}
        row = connection.execute(QUERIES["select_end_at_sequence"], asked).fetchone()
        if row is not None and isinstance(row[0], int) and isinstance(row[1], bytes) and row[0] >= sequence:
            found[row[0]] = row[1]
    return [BatchEnd(*end) for end in sorted(found.items())]


def _read_rows(connection: sqlite3.Connection, asked: SequenceRequest, page: PageAssembly, bad: list[Span]) -> bool:
    """Read rows into the page until it is full; damaged ones are added to `bad`. True when no row is left."""
    try:
        rows = connection.execute(QUERIES["select_sequences"], asked._asdict())
        try:
            for first, last, body, digest, first_offset in rows:
                before = len(page.batches)
                if page.add_row((first, last, body, digest)):
                    return False
                if len(page.batches) > before:
                    continue
                if _add_repaired(connection, asked.stream, first_offset, first, page):
                    return False
                if len(page.batches) == before and isinstance(first, int) and isinstance(last, int):
                    bad.append((first, last))
        finally:
            rows.close()  # an unfinished statement would keep the WAL from being reused
    except sqlite3.DatabaseError as error:
        if not is_damage(error):
            raise
        bad.append((max(page.reached + 1, asked.first_sequence), asked.last_sequence))
    return True


def _add_repaired(
    connection: sqlite3.Connection, stream: int, first_offset: object, first_sequence: int, page: PageAssembly
) -> bool:
    """Add the repaired batch for a damaged row; True when the page is full."""
    for first, last, body, digest in connection.execute(QUERIES["select_repaired"], (stream, first_offset)).fetchall():
        if page.add_row((first_sequence, first_sequence + last - first, body, digest)):
            return True
    return False


def _pieces(hole: Hole, held: list[Span], bad: list[Span]) -> Iterator[Hole]:
    """Split a hole by the reasons of its parts."""
    lost = [(hole.first_offset, hole.last_offset)]
    damaged = intersect(lost, sorted(bad))
    rest = subtract(lost, damaged)
    reasons: list[tuple[Span, Reason]] = [(span, "damaged") for span in damaged]
    reasons += [(span, "absent") for span in subtract(rest, held)]
    reasons += [(span, "expired") for span in intersect(rest, held)]
    for (first, last), reason in sorted(reasons):
        yield Hole(first, last, reason)
