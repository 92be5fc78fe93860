"""Facts that are held here under another epoch of their zone.

A store that begins a new epoch reseals own facts that no reader has received (decision 0041): only their headers
change. If the store is then put back to an older image, together with its witness, it serves the same facts under their
old epoch and sequences to zones that hold them under the new ones (decision 0055). Such a batch is recognised exactly:
it differs from the batch that is held there only in what resealing changes.

Only batches with the same count, times and length are compared, and only where resealed facts can be: at the beginning
of the newer epoch and at the end of the older one. The first match gives the fixed difference between the sequences of
the two epochs, which is recorded.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from itertools import chain, islice
from typing import NamedTuple

from agent.batch import Batch, Origin
from agent.fact_store.sqlite import Transaction
from agent.pages import HeldRange

FIRST_ROWS, LAST_ROWS = 1_000, 20_000
"""Batches that are searched at the beginning and at the end of an epoch. The search at the end takes 0.1 s. It is made
only for the first facts of an epoch, only in the newest epochs, and not for a zone with many epochs, which could begin
another with each page."""
EPOCHS_MAX, EPOCHS_TO_THE_END_MAX = 16, 4
"""The number of newest epochs of a zone whose batches are searched at the beginning, and at the end: a zone may have a
thousand epochs."""
ALIKE_OF_BATCH_MAX, ALIKE_OF_PAGE_MAX = 16, 4_096
"""Batches of the same count, times and length that are read and compared for one batch, and for one page; each takes 60
us. The writer's thread does this for all zones: a zone that makes thousands of such batches has some of its own facts
stored twice, and does not delay other zones."""

_Likeness = tuple[int, int, int, int]
"""Count, least and greatest time of a batch, and its length."""


class Name(NamedTuple):
    """An epoch of a zone, and the first sequence that a batch has there."""

    origin: Origin
    first_sequence: int


class Shift(NamedTuple):
    """The difference `by` which the sequences of the same facts are higher in an older epoch than in a newer one."""

    older: Origin
    newer: Origin
    by: int


class Search:
    """Finds batches of one page that are held under another name. Each epoch is read once for the page."""

    def __init__(self, transaction: Transaction, stream: str) -> None:
        known = transaction.catalog.streams.get(stream)
        self._transaction = transaction
        self._stream = known.id if known else 0
        self._epochs: dict[str, dict[Origin, int]] = {}
        self._alike: dict[tuple[int, int], dict[_Likeness, list[int]]] = {}
        self._fresh: dict[Name, Batch] = {}
        self._fresh_alike: dict[tuple[str, _Likeness], dict[Origin, list[Name]]] = {}
        self._left = ALIKE_OF_PAGE_MAX

    def add(self, batch: Batch) -> None:
        """Add a batch of the page that is to be stored."""
        header = batch.header
        alike = self._fresh_alike.setdefault((header.origin.zone, _likeness(batch)), {})
        name = Name(header.origin, header.first_sequence)
        alike.setdefault(header.origin, []).append(name)
        self._fresh[name] = batch

    def find_renamed(self, batch: Batch, held: Collection[HeldRange]) -> Shift | None:
        """The difference between the name under which a batch is held and its own; None if its facts are not held under
        another epoch of its zone. `held`: the ranges held of its own origin."""
        header = batch.header
        others = {one: at for one, at in self._epochs_of(header.origin.zone).items() if one != header.origin}
        fresh = self._fresh_alike.get((header.origin.zone, _likeness(batch)), {})
        of_page = (one for origin, some in fresh.items() if origin != header.origin for one in some)
        for name in chain(self._names(batch, others, held), islice(of_page, ALIKE_OF_BATCH_MAX)):
            if self._left <= 0:
                return None
            self._left -= 1
            found = self._fresh.get(name)
            if found is None:
                found = self._transaction.batch(self._stream, others.get(name.origin, 0), name.first_sequence)
            if found is not None and found.is_resealed(batch):
                own = Name(header.origin, header.first_sequence)
                older, newer = (own, name) if own.first_sequence > name.first_sequence else (name, own)  # or equal
                return Shift(older.origin, newer.origin, older.first_sequence - newer.first_sequence)
        return None

    def _epochs_of(self, zone: str) -> dict[Origin, int]:
        """The newest epochs of a zone that have facts in the stream, with their numbers, newest first."""
        if zone not in self._epochs:
            transaction = self._transaction
            held = [(at, one) for one, at in transaction.origins_of(zone).items() if transaction.held(self._stream, at)]
            self._epochs[zone] = {one: at for at, one in sorted(held, reverse=True)[:EPOCHS_MAX]}
        return self._epochs[zone]

    def _names(self, batch: Batch, others: Mapping[Origin, int], held: Collection[HeldRange]) -> Iterator[Name]:
        """The names under which a batch may be held: those that recorded shifts give, else those of similar batches."""
        header, catalog = batch.header, self._transaction.catalog
        number, shifts = self._transaction.origin_number(header.origin) or 0, catalog.renamed
        # Most batches continue the newest epoch. For those, only recorded shifts are tried.
        is_searched = not held or any(at > number for at in others.values())
        for place, (other, at) in enumerate(others.items()):
            newer, older = shifts.get((self._stream, number, at)), shifts.get((self._stream, at, number))
            if newer is not None and header.first_sequence > newer:
                yield Name(other, header.first_sequence - newer)
            elif older is not None:
                yield Name(other, header.first_sequence + older)
            elif newer is None and is_searched:
                is_to_the_end = not held and place < EPOCHS_TO_THE_END_MAX and len(others) < EPOCHS_MAX
                last_rows = LAST_ROWS if is_to_the_end else 0
                alike = self._alike_in(at, last_rows).get(_likeness(batch), ())
                yield from (Name(other, first_sequence) for first_sequence in alike[:ALIKE_OF_BATCH_MAX])

    def _alike_in(self, origin: int, last_rows: int) -> Mapping[_Likeness, list[int]]:
        """First sequences of the batches of an epoch, by likeness."""
        if (origin, last_rows) not in self._alike:
            found = self._alike[origin, last_rows] = dict[_Likeness, list[int]]()
            for first_sequence, *like in self._transaction.likenesses(self._stream, origin, FIRST_ROWS, last_rows):
                count, time_min_ns, time_max_ns, length = like
                found.setdefault((count, time_min_ns, time_max_ns, length), []).append(first_sequence)
        return self._alike[origin, last_rows]


def _likeness(batch: Batch) -> _Likeness:
    header = batch.header
    return header.count, header.time_min_ns, header.time_max_ns, len(batch.sealed)
