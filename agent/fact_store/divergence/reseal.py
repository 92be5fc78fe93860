"""Reseals own facts that no reader has got under the new epoch that the store begins (decision 0041).

A store restored from an old copy has given facts the sequences that other facts had before, and a peer that holds those
cannot take these. As long as no reader has got them, only their names are wrong: at the same offsets, with the same
content, they become the first facts of the new epoch, so none is lost and none is there twice. Facts that a reader may
have keep their names.

Runs in the transaction that begins the epoch, so all of it happens or none. Only headers
change (epoch, sequence, digests), no byte moves, and offsets, message ids, artifacts and marks stay valid. A stream
with a damaged batch is left as it is: a new digest over damaged bytes would declare them good.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from agent.batch import NO_DIGEST, Batch, Link, Origin, resealed
from agent.fact_store.log import StreamState, parse_row
from agent.fact_store.sqlite import Transaction
from agent.pages import HeldRange


class Resealed(NamedTuple):
    """Facts of one stream that were resealed: first and last offset (facts of other origins may lie between), and how
    many."""

    stream: str
    first_offset: int
    last_offset: int
    facts: int


def reseal_unread(transaction: Transaction, origin: Origin, read_until: Mapping[str, int]) -> list[Resealed]:
    """Reseal the own facts of each stream behind the offset that a reader may have got, under `origin`, the new
    epoch's."""
    found = list[Resealed]()
    for name, state in transaction.catalog.streams.items():
        after = max(read_until.get(name, 0), state.released_offset, *_confirmed(transaction, name))
        if _is_sound(transaction, state, after) and (one := _seal_stream(transaction, state, after, origin)):
            found.append(one)
    return found


def _confirmed(transaction: Transaction, stream: str) -> Iterator[int]:
    """The highest offset that each consumer of a stream has confirmed."""
    for consumer in transaction.catalog.consumers.values():
        if consumer.stream == stream:
            yield max([consumer.frontier, *(last for _, last in consumer.confirmed.ranges)])


def _batches(transaction: Transaction, state: StreamState, after: int) -> Iterator[tuple[int, int, Batch | str]]:
    """Own batches that begin after an offset: row, first offset, and the batch or what is wrong with it."""
    for number, row in transaction.own_rows(state.id, after):
        yield number, int(row[0]), parse_row(state.name, row)  # type: ignore[call-overload]


def _is_sound(transaction: Transaction, state: StreamState, after: int) -> bool:
    """Whether every batch to be resealed is undamaged, and each follows the one before it up to the end of the log."""
    link: Link | None = None
    for _, _, batch in _batches(transaction, state, after):
        if isinstance(batch, str) or batch.header.origin != transaction.catalog.origin:
            return False
        header = batch.header
        if link is not None and (link.next_sequence, link.digest) != (header.first_sequence, header.previous_digest):
            return False
        link = batch.link
    return link is not None and link == transaction.catalog.link(state.name)


def _seal_stream(transaction: Transaction, state: StreamState, after: int, origin: Origin) -> Resealed:
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
    return Resealed(state.name, first, last, facts)
