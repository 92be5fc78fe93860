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
from itertools import chain, islice
from typing import NamedTuple

from agent.batch import Batch, Header, Link, Origin, resealed
from agent.fact_store.sqlite import Transaction
from agent.pages import HeldRange

FIRST_ROWS, LAST_ROWS = 1_000, 20_000
"""Batches of an epoch that are searched from its beginning and from its end. From the end, which takes 0.1 s, only for
the first facts of an epoch, only of the newest epochs, and not for a zone that has had many: it may begin another with
each page."""
EPOCHS_MAX, EPOCHS_TO_THE_END_MAX = 16, 4
"""Epochs of a zone whose batches are searched, the newest: a zone may have a thousand."""
ALIKE_OF_BATCH_MAX, ALIKE_OF_PAGE_MAX = 16, 4_096
"""Batches of the same count and times that are compared, 40 us each. All this is done by the thread that writes, for
all zones: a zone that makes thousands of such batches has some of its own facts twice, and delays no other."""

_Likeness = tuple[int, int, int]
"""Count, least and greatest time of a batch."""


class Name(NamedTuple):
    """An epoch of a zone, and the first sequence that a batch has there."""

    origin: Origin
    first_sequence: int


class Shift(NamedTuple):
    """By how much the sequences of facts in an older epoch are higher than in a newer one, which begins with them."""

    older: Origin
    newer: Origin
    by: int


class Search:
    """Under which other names the batches of one page may be held. What is read of an epoch is read once for the
    page."""

    def __init__(self, transaction: Transaction, stream: str, fresh: Mapping[tuple[Origin, int], HeldRange]) -> None:
        """`fresh`: the batches of the page that are to be stored, by origin and first sequence."""
        known = transaction.catalog.streams.get(stream)
        self._transaction = transaction
        self._stream = known.id if known else 0
        self._epochs: dict[str, dict[Origin, int]] = {}
        self._alike: dict[tuple[int, int], dict[_Likeness, list[int]]] = {}
        self._fresh = fresh
        self._fresh_alike: dict[tuple[str, _Likeness], dict[Origin, list[Name]]] = {}
        self._left = ALIKE_OF_PAGE_MAX

    def add(self, batch: Batch) -> None:
        """A batch of the page is to be stored."""
        header = batch.header
        alike = self._fresh_alike.setdefault((header.origin.zone, _likeness(header)), {})
        alike.setdefault(header.origin, []).append(Name(header.origin, header.first_sequence))

    def find_renamed(self, batch: Batch, held: Collection[HeldRange]) -> Shift | None:
        """How the name under which a batch is held differs from its own; None where its facts are not held under
        another epoch of its zone. `held`: the ranges held of its own origin."""
        header = batch.header
        others = {one: at for one, at in self._epochs_of(header.origin.zone).items() if one != header.origin}
        fresh = self._fresh_alike.get((header.origin.zone, _likeness(header)), {})
        of_page = (one for origin, some in fresh.items() if origin != header.origin for one in some)
        for name in chain(self._names(batch, others, held), islice(of_page, ALIKE_OF_BATCH_MAX)):
            if self._left <= 0:
                return None
            self._left -= 1
            found = self._fresh.get(name)
            if found is None:
                found = self._transaction.batch_at(self._stream, others.get(name.origin, 0), name.first_sequence)
            if found is None or found.first_sequence != name.first_sequence:
                continue
            link = Link(header.stream, name.origin, name.first_sequence, found.first_previous_digest)
            if resealed(batch, link).digest == found.last_digest:
                own = Name(header.origin, header.first_sequence)
                older, newer = (own, name) if own.first_sequence > name.first_sequence else (name, own)  # or equal
                return Shift(older.origin, newer.origin, older.first_sequence - newer.first_sequence)
        return None

    def _epochs_of(self, zone: str) -> dict[Origin, int]:
        """The newest epochs of a zone of which the stream has facts, the newest first."""
        if zone not in self._epochs:
            catalog = self._transaction.catalog
            held = [
                (at, one)
                for one, at in catalog.origins.items()
                if one.zone == zone and (self._stream, at) in catalog.held
            ]
            self._epochs[zone] = {one: at for at, one in sorted(held, reverse=True)[:EPOCHS_MAX]}
        return self._epochs[zone]

    def _names(self, batch: Batch, others: Mapping[Origin, int], held: Collection[HeldRange]) -> Iterator[Name]:
        """Under which names a batch may be held: the recorded ones, else those of batches like it."""
        header, catalog = batch.header, self._transaction.catalog
        number, shifts = catalog.origins.get(header.origin, 0), catalog.renamed
        # A batch that continues the newest epoch, as nearly all do, is searched for only under names that are recorded.
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
                alike = self._alike_in(at, last_rows).get(_likeness(header), ())
                yield from (Name(other, first_sequence) for first_sequence in alike[:ALIKE_OF_BATCH_MAX])

    def _alike_in(self, origin: int, last_rows: int) -> Mapping[_Likeness, list[int]]:
        """First sequences of the batches of an epoch, by what they have in common with another of the same facts."""
        if (origin, last_rows) not in self._alike:
            found = self._alike[origin, last_rows] = dict[_Likeness, list[int]]()
            for first_sequence, *like in self._transaction.likenesses(self._stream, origin, FIRST_ROWS, last_rows):
                count, time_min_ns, time_max_ns = like
                found.setdefault((count, time_min_ns, time_max_ns), []).append(first_sequence)
        return self._alike[origin, last_rows]


def _likeness(header: Header) -> _Likeness:
    return header.count, header.time_min_ns, header.time_max_ns
