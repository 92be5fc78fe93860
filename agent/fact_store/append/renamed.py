"""Facts that are held here under another epoch of their zone.

A store that begins a new epoch reseals own facts that no reader has got (decision 0041): only their headers change. Put
back to an image from before that, together with its witness, it serves the same facts under their old names to zones that
hold them under the new ones (decision 0053). Such a batch is recognised exactly: sealed again under the other name it has
the digest of the batch that is held there.

The name is looked for in the batches of the same count and times where resealed facts can be: the first of the newer
epoch, the last of the older one. Once one is found, the two names differ by a fixed number, which is recorded.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import NamedTuple

from agent.batch import Batch, Link, Origin, resealed
from agent.fact_store.sqlite import Transaction
from agent.pages import HeldRange

FIRST_ROWS, LAST_ROWS = 1_000, 20_000
"""Batches of an epoch that are searched from its beginning and from its end: 5 and 100 ms. From the end only for the
first facts of an epoch."""

Fresh = Mapping[tuple[Origin, int], HeldRange]
"""Batches of the same page that are to be stored, by origin and first sequence."""


class _Name(NamedTuple):
    """An epoch of the zone of a batch, with its number, and the sequence that the batch would have there."""

    origin: Origin
    number: int
    first_sequence: int


def is_held_otherwise(transaction: Transaction, fresh: Fresh, batch: Batch, held: Collection[HeldRange]) -> bool:
    """Whether a batch that is new by its name is held under another epoch of its zone. `held`: the ranges held of its
    origin."""
    catalog, header = transaction.catalog, batch.header
    known, number = catalog.streams.get(header.stream), catalog.origins.get(header.origin)
    if known is None:
        return False
    others = {
        other: at
        for other, at in catalog.origins.items()
        if other.zone == header.origin.zone and other != header.origin and (known.id, at) in catalog.held
    }
    if held and not any(at > (number or 0) for at in others.values()):
        return False  # it continues the newest epoch, which is nearly always so
    for name in _names(transaction, known.id, batch, others, is_first=not held):
        found = fresh.get((name.origin, name.first_sequence))
        if found is None:
            found = transaction.batch_at(known.id, name.number, name.first_sequence)
        if found is None or found.first_sequence != name.first_sequence:
            continue
        link = Link(header.stream, name.origin, name.first_sequence, found.first_previous_digest)
        if resealed(batch, link).digest == found.last_digest:
            _record(transaction, known.id, batch, name)
            return True
    return False


def _names(
    transaction: Transaction, stream: int, batch: Batch, others: Mapping[Origin, int], *, is_first: bool
) -> Iterator[_Name]:
    """Under which names a batch may be held, the recorded ones first."""
    header, number = batch.header, transaction.catalog.origins.get(batch.header.origin)
    shifts = transaction.catalog.renamed
    for other, at in others.items():
        newer, older = shifts.get((stream, number or 0, at)), shifts.get((stream, at, number or 0))
        if newer is not None and header.first_sequence > newer:
            yield _Name(other, at, header.first_sequence - newer)
        elif older is not None:
            yield _Name(other, at, header.first_sequence + older)
        elif newer is None:
            for first_sequence in transaction.alike(stream, at, batch.header, FIRST_ROWS, LAST_ROWS if is_first else 0):
                yield _Name(other, at, first_sequence)


def _record(transaction: Transaction, stream: int, batch: Batch, name: _Name) -> None:
    """Record by how much sequences of the two epochs differ. Those of the newer one are the lower: it begins at 1."""
    here, there = (transaction.origin(batch.header.origin), batch.header.first_sequence), (name.number, name[2])
    (older, high), (newer, low) = (here, there) if here[1] >= there[1] else (there, here)
    transaction.add_renamed(stream, older, newer, high - low)
