"""What nobody has seen of a store's own facts, sealed anew under the epoch in which the store goes on.

A store that was put back to an old copy has numbered facts as it had numbered others before, and whoever holds those can take none of
these. As long as nobody has them, they are only badly named: in the same places, with the same content, they become the first facts of the
new epoch, and nothing is lost and nothing is there twice. What somebody may have keeps its name.

Runs when the store is opened, in the transaction that begins the epoch, so it is done as a whole or not at all. Only headers change
(epoch, sequence, digests), so no byte moves; offsets, message ids, artifacts and marks stay true as they are. A stream of which a batch
is not as it was sealed is left as it is: to seal damage anew would be to vouch for it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from agent.batch import NO_DIGEST, Batch, Link, Origin, resealed
from agent.fact_store.log import StreamState, whole
from agent.fact_store.sqlite import Transaction
from agent.pages import HeldRange


class Sealed(NamedTuple):
    """Facts of a stream that have a new name: the offsets between which they lie (others' facts may lie between), and how many."""

    stream: str
    first_offset: int
    last_offset: int
    facts: int


def seal_anew(transaction: Transaction, origin: Origin) -> list[Sealed]:
    """Give the unseen facts of each stream to `origin`, the new epoch's; which those are was written down when it became due."""
    found = list[Sealed]()
    for name, unseen_after in transaction.unseen_after().items():
        state = transaction.catalog.streams[name]
        after = max(unseen_after, state.released_offset, *_confirmed(transaction, name))
        if _is_sound(transaction, state, after) and (one := _seal_stream(transaction, state, after, origin)):
            found.append(one)
    if found:
        old, new = transaction.catalog.own_origin, transaction.origin(origin)
        transaction.add_definitions(
            new, transaction.definition_bodies(old, 0, transaction.catalog.own_definitions().count)
        )
    return found


def _confirmed(transaction: Transaction, stream: str) -> Iterator[int]:
    """Up to where each consumer of a stream has confirmed something."""
    for consumer in transaction.catalog.consumers.values():
        if consumer.stream == stream:
            yield max([consumer.frontier, *(last for _, last in consumer.confirmed.ranges)])


def _batches(transaction: Transaction, state: StreamState, after: int) -> Iterator[tuple[int, int, Batch | str]]:
    """Row and first offset of the store's own batches that begin behind an offset, with the batch, or what is wrong with it."""
    for number, row in transaction.own_rows(state.id, after):
        yield number, int(row[0]), whole(state.name, row)  # type: ignore[call-overload]  # the column by which it was found


def _is_sound(transaction: Transaction, state: StreamState, after: int) -> bool:
    """Whether all that is to be sealed anew is as it was sealed, one batch after the other up to the end."""
    link: Link | None = None
    for _, _, batch in _batches(transaction, state, after):
        if isinstance(batch, str) or batch.header.origin != transaction.catalog.origin:
            return False
        header = batch.header
        if link is not None and (link.next_sequence, link.digest) != (header.first_sequence, header.previous_digest):
            return False
        link = batch.link
    return link is not None and link == transaction.catalog.link(state.name)


def _seal_stream(transaction: Transaction, state: StreamState, after: int, origin: Origin) -> Sealed:
    old, new = transaction.catalog.own_origin, transaction.origin(origin)
    link, first, last = Link(state.name, origin), 0, 0
    for number, first_offset, batch in _batches(transaction, state, after):
        assert isinstance(batch, Batch)
        header = batch.header
        if not first:
            first = first_offset
            kept = header.first_sequence - 1
            ranges = (HeldRange(1, kept, NO_DIGEST, header.previous_digest),) if kept else ()
            transaction.set_held(state.id, old, ranges)
        anew = resealed(batch, link)
        transaction.reseal(number, new, anew)
        link, last = anew.link, first_offset + header.count - 1
    facts = link.next_sequence - 1
    transaction.set_held(state.id, new, (HeldRange(1, facts, NO_DIGEST, link.digest),))
    return Sealed(state.name, first, last, facts)
