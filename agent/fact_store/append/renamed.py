"""Facts that are held here under another epoch of their zone.

A store that begins a new epoch reseals own facts that no reader has got (decision 0041): only their headers change. Put
back to an image from before that, together with its witness, it serves the same facts under their old names to zones
that hold them under the new ones (decision 0055). Such a batch is recognised exactly: sealed again under the other name
it has the digest of the batch that is held there.

The name is looked for in the batches of the same count and times where resealed facts can be: the first of the newer
epoch, the last of the older one. Once one is found, the two names differ by a fixed number, which is recorded.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from itertools import chain
from typing import NamedTuple

from agent.batch import Batch, Link, Origin, resealed
from agent.fact_store.sqlite import Transaction
from agent.pages import HeldRange

FIRST_ROWS, LAST_ROWS = 1_000, 20_000
"""Batches of an epoch that are searched from its beginning and from its end: 5 and 100 ms. From the end only for the
first facts of an epoch."""

Fresh = Mapping[tuple[Origin, int], HeldRange]
"""Batches of the same page that are to be stored, by origin and first sequence."""


class Name(NamedTuple):
    """An epoch of a zone, and the first sequence that a batch has there."""

    origin: Origin
    first_sequence: int


class Shift(NamedTuple):
    """By how much the sequences of facts in an older epoch are higher than in a newer one, which begins with them."""

    older: Origin
    newer: Origin
    by: int


def held_otherwise(transaction: Transaction, fresh: Fresh, batch: Batch, held: Collection[HeldRange]) -> Shift | None:
    """How the name under which a batch is held differs from its own; None where its facts are not held under another
    epoch of its zone. `held`: the ranges held of its own origin."""
    catalog, header = transaction.catalog, batch.header
    known, number = catalog.streams.get(header.stream), catalog.origins.get(header.origin)
    stream, zone = known.id if known else 0, header.origin.zone
    others = {
        one: at
        for one, at in catalog.origins.items()
        if one.zone == zone and one != header.origin and (stream, at) in catalog.held
    }
    of_page = [Name(*one) for one in fresh if one[0].zone == zone and one[0] != header.origin]
    # A batch that continues the newest epoch, as nearly all do, is searched for only under names that are recorded.
    is_searched = not held or any(at > (number or 0) for at in others.values())
    last_rows = 0 if held else LAST_ROWS
    names = _names(transaction, stream, batch, others, (FIRST_ROWS, last_rows) if is_searched else None)
    for name in chain(names, of_page):
        found = fresh.get(name)
        if found is None:
            found = transaction.batch_at(stream, others.get(name.origin, 0), name.first_sequence)
        if found is None or found.first_sequence != name.first_sequence:
            continue
        link = Link(header.stream, name.origin, name.first_sequence, found.first_previous_digest)
        if resealed(batch, link).digest == found.last_digest:
            own = Name(header.origin, header.first_sequence)
            older, newer = (own, name) if own.first_sequence > name.first_sequence else (name, own)  # or equal: either
            return Shift(older.origin, newer.origin, older.first_sequence - newer.first_sequence)
    return None


def _names(
    transaction: Transaction, stream: int, batch: Batch, others: Mapping[Origin, int], rows: tuple[int, int] | None
) -> Iterator[Name]:
    """Under which names a batch may be held: the recorded ones, else those of batches like it, in so many rows."""
    header, number = batch.header, transaction.catalog.origins.get(batch.header.origin, 0)
    shifts = transaction.catalog.renamed
    for other, at in others.items():
        newer, older = shifts.get((stream, number, at)), shifts.get((stream, at, number))
        if newer is not None and header.first_sequence > newer:
            yield Name(other, header.first_sequence - newer)
        elif older is not None:
            yield Name(other, header.first_sequence + older)
        elif newer is None and rows is not None:
            for first_sequence in transaction.alike(stream, at, header, *rows):
                yield Name(other, first_sequence)
