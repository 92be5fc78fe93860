"""Reseals own facts that no reader has received, under the new epoch that the store begins (decision 0041).

A store restored from an old copy gives new facts the sequences of facts that it has lost. A peer that holds the lost
facts refuses the new ones. If no reader has received a new fact yet, only its identity is wrong: at the same offset,
with the same content, it is sealed again into the new epoch, so none is lost and none is stored twice. Facts that a
reader may have received keep their identity.

All of this runs in the transaction that begins the epoch. Only headers change (epoch, sequence, digests), no byte
moves, and offsets, message ids, artifacts and marks stay valid. A stream with a damaged batch is left as it is: a new
digest over damaged bytes would make them appear undamaged.

A copy of the file that is older than a reseal has these facts under their old identity again, while other zones have
read them under the new one. The witness records each reseal, and such a copy repeats it under the same epoch: the same
batches follow the same link, so every byte is the same, and no zone receives a fact under two identities.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import NamedTuple

from agent.batch import NO_DIGEST, Batch, Header, Link, Origin, Sign, resealed
from agent.fact_store.log import Reseal, StreamState, parse_row
from agent.fact_store.sqlite import Transaction
from agent.pages import HeldRange
from agent.signing.records import RecordSigner, parse_record, sign_record


class Resealed(NamedTuple):
    """Facts of one stream that were resealed: their first and last offset (facts of other origins may lie between), and
    their number."""

    stream: str
    first_offset: int
    last_offset: int
    facts: int


def reseal_unread(transaction: Transaction, origin: Origin, read_until: Mapping[str, int]) -> list[Resealed]:
    """Reseal the own facts of each stream that no reader has received, those after `read_until`, under the new epoch's
    `origin`."""
    found = list[Resealed]()
    own = transaction.catalog.origin
    for name, state in transaction.catalog.streams.items():
        after = max(read_until.get(name, 0), state.released_offset, *_confirmed(transaction, name))
        if _is_sound(transaction, state, own, after):
            found.append(_seal_stream(transaction, state, own, after, origin))
    return found


def repeat_reseals(transaction: Transaction, reseals: Iterable[Reseal]) -> list[Resealed]:
    """Repeat the reseals that the witness records, for the facts that this copy holds."""
    catalog, found = transaction.catalog, list[Resealed]()
    for one in reseals:
        state, old = catalog.streams.get(one.stream), Origin(catalog.origin.zone, one.epoch)
        if state is None or (number := transaction.origin_number(old)) is None:
            continue
        place = transaction.place(state.id, number, one.first_sequence)
        if place is None or place[-1] != one.digest:
            continue  # resealed in this copy, or another history of these sequences
        if _is_sound(transaction, state, old, place[0] - 1):
            new = Origin(old.zone, one.new_epoch)
            found.append(_seal_stream(transaction, state, old, place[0] - 1, new))
    return found


def _signing(signer: RecordSigner | None, batch: Batch) -> Sign | None:
    """Signs a batch again, with the time of its record: a repetition must give the same bytes."""
    if signer is None or not batch.header.is_signed:
        return None
    return partial(sign_record, signer, signed_at_ms=parse_record(batch.record).signed_at_ms)


def _kept(ranges: Iterable[HeldRange], first: Header) -> Iterator[HeldRange]:
    """The held ranges of an origin without its batches from `first` on, which are resealed."""
    for one in ranges:
        if one.last_sequence < first.first_sequence:
            yield one
        elif one.first_sequence < first.first_sequence:
            yield replace(one, last_sequence=first.first_sequence - 1, last_digest=first.previous_digest)


def _confirmed(transaction: Transaction, stream: str) -> Iterator[int]:
    """The highest offset that each consumer of a stream has confirmed."""
    for consumer in transaction.catalog.consumers.values():
        if consumer.stream == stream:
            yield max([consumer.frontier, *(last for _, last in consumer.confirmed.ranges)])


def _batches(
    transaction: Transaction, state: StreamState, origin: Origin, after: int
) -> Iterator[tuple[int, int, Batch | str]]:
    """Batches of an origin that begin after an offset: row, first offset, and the batch or what is wrong with it."""
    for number, row in transaction.origin_rows(state.id, transaction.origin(origin), after):
        yield number, int(row[0]), parse_row(state.name, row)  # type: ignore[call-overload]


def _is_sound(transaction: Transaction, state: StreamState, origin: Origin, after: int) -> bool:
    """Whether there are batches to be resealed, every one is undamaged, and each follows the one before it up to the
    last that is held. A signed batch cannot be resealed without a key: it would become shorter."""
    link: Link | None = None
    for _, _, batch in _batches(transaction, state, origin, after):
        if isinstance(batch, str) or batch.header.origin != origin:
            return False
        header = batch.header
        if header.is_signed and transaction.signer is None:
            return False
        if link is not None and (link.next_sequence, link.digest) != (header.first_sequence, header.previous_digest):
            return False
        link = batch.link
    held = transaction.held(state.id, transaction.origin(origin))
    return link is not None and (link.next_sequence - 1, link.digest) == (held[-1].last_sequence, held[-1].last_digest)


def _seal_stream(
    transaction: Transaction, state: StreamState, old_origin: Origin, after: int, origin: Origin
) -> Resealed:
    old, new = transaction.origin(old_origin), transaction.origin(origin)
    link, first, last = Link(state.name, origin), 0, 0
    for number, first_offset, batch in _batches(transaction, state, old_origin, after):
        assert isinstance(batch, Batch)
        header = batch.header
        if not first:
            first = first_offset
            transaction.set_held(state.id, old, tuple(_kept(transaction.held(state.id, old), header)))
            transaction.add_reseal(
                Reseal(state.name, old_origin.epoch, header.first_sequence, batch.digest, origin.epoch)
            )
        copy = resealed(batch, link, _signing(transaction.signer, batch))
        transaction.reseal(number, new, copy)
        link, last = copy.link, first_offset + header.count - 1
    facts = link.next_sequence - 1
    transaction.set_held(state.id, new, (HeldRange(1, facts, NO_DIGEST, link.digest),))
    return Resealed(state.name, first, last, facts)
