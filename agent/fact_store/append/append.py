"""Appends of this store's own facts: seals queued samples and messages into batches.

All appends to one stream in one group commit share batches, so a hundred producers of single facts cost one batch.
Offsets follow the order in the queue. An append that cannot be sealed is refused alone; the others are stored.

A message is stored once for each id: the index maps the digest of the id to the digest of the content. The content is
fact, media type and schema, so a retry whose envelope has a new time is the same message.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import chain
from typing import Any

from agent.append_contract import AppendOutcome
from agent.batch import Batch, BatchTooLarge, Link, Origin, seal_columns, seal_messages
from agent.columns import SampleColumns
from agent.fact_store.append.checkpoint import PREDICATE, checkpoint_objects
from agent.fact_store.append.group_commit import batch_sizes
from agent.fact_store.append.message_plan import digest, plan_messages
from agent.fact_store.append.queue import AppendMessages, AppendSamples
from agent.fact_store.core import (
    Appended,
    Branch,
    FactsRefused,
    Refused,
    digests_in,
    find_division,
    find_predecessor,
    is_followed,
    operational_fact,
)
from agent.fact_store.sqlite import Transaction
from agent.message import OPERATIONAL_STREAM, Message
from agent.pages import HeldRange

Seal = Callable[[Link, Any], Batch]  # a slice of samples or messages
Slice = Callable[[int, int], Any]
_UNSEALABLE = (ValueError, TypeError)


def message_key(message: Message, own_zone: str) -> bytes:
    """The key of a message id in the index: each zone that appends has its own ids. Neither text can contain a NUL."""
    zone, own_id = message.envelope.from_zone, message.envelope.message_id.encode()
    return digest(own_id if zone == own_zone else zone.encode() + b"\0" + own_id)


def content_digest(message: Message) -> bytes:
    """Digest of the content: messages with the same id and digest are equal. No text before the object can contain a
    NUL."""
    envelope, fact = message.envelope, message.fact
    texts = (fact.subject, fact.predicate, envelope.object_media_type or "", envelope.object_schema or "")
    return digest(b"\0".join((*(text.encode() for text in texts), fact.object_json)))


def append_samples(
    transaction: Transaction, stream: str, appends: Sequence[AppendSamples], facts_target: int
) -> list[Appended | Refused]:
    """Seal and store the samples of appends to one stream; one outcome for each append."""
    zone = transaction.catalog.names.sealing_zone(stream)
    definitions = transaction.catalog.definitions_of(zone).definitions
    link = transaction.link(stream, zone)

    def seal(some: Sequence[AppendSamples]) -> list[Batch]:
        columns = _joined(some)
        seal_part = partial(seal_columns, definitions=definitions, sign=transaction.sign)
        return _sealed(seal_part, link, columns.cut, len(columns.tags), facts_target)

    refusals = dict[int, Refused]()
    try:
        batches = seal(appends)
    except ValueError:
        for index, append in enumerate(appends):
            try:
                seal([append])
            except ValueError as error:
                refusals[index] = FactsRefused(f"samples for {stream} cannot be sealed: {error}", "correct the source")
                refusals[index].__cause__ = error
        assert refusals, "appends can be sealed one by one but not together"
        kept = [append for index, append in enumerate(appends) if index not in refusals]
        batches = seal(kept) if kept else []
    next_offset = _add_own(transaction, stream, batches) if batches else 0
    outcomes = list[Appended | Refused]()
    for index, append in enumerate(appends):
        if index in refusals:
            outcomes.append(refusals[index])
            continue
        outcomes.append(Appended(next_offset, next_offset + append.count - 1))
        next_offset += append.count
    return outcomes


def append_messages(
    transaction: Transaction,
    stream: str,
    appends: Sequence[AppendMessages],
    facts_target: int,
    *,
    is_strong: bool = False,
) -> list[list[AppendOutcome] | Refused]:
    """Store the messages of appends of one zone to one stream that may be stored (admission.py); one outcome for each
    append."""
    refused = dict[int, Refused]()
    link = transaction.link(stream, transaction.catalog.names.sealing_zone(stream, appends[0].zone))

    def seal(some: Sequence[Message]) -> list[Batch]:
        seal_part = partial(seal_messages, sign=transaction.sign)
        return _sealed(seal_part, link, lambda start, stop: some[start:stop], len(some), facts_target)

    plan = plan_messages(transaction, stream, appends, refused, is_strong=is_strong)  # decision 0028
    try:
        batches = seal(plan.kept) if plan.kept else []
    except _UNSEALABLE:  # plan the other messages again, without those that cannot be sealed
        refused |= _unsealable(stream, appends, refused, seal)
        plan = plan_messages(transaction, stream, appends, refused, is_strong=is_strong)
        batches = seal(plan.kept) if plan.kept else []
    transaction.set_leases(stream, plan.leases)
    if batches:
        _add_own(transaction, stream, batches, appends[0].zone)
        known = transaction.stream(stream)
        transaction.index.add(known.id, [(key, *stored) for key, stored in plan.fresh.items()])
        transaction.set_subjects(known, plan.subjects)
        transaction.add_artifacts(known, digests_in(plan.kept), known.end_offset)
    return [plan.outcomes[number] if number in plan.outcomes else refused[number] for number in range(len(appends))]


def _unsealable(
    stream: str,
    appends: Sequence[AppendMessages],
    refused: Mapping[int, Refused],
    seal: Callable[[Sequence[Message]], object],
) -> dict[int, Refused]:
    """The appends with a message that cannot be sealed although it was checked: its producer has probably changed it
    since."""
    found = dict[int, Refused]()
    for number, append in enumerate(appends):
        for message in append.messages if number not in refused else ():
            try:
                seal([message])
            except _UNSEALABLE as error:
                name = message.envelope.message_id
                found[number] = FactsRefused(f"{name!r} for {stream} cannot be sealed: {error}", "correct the producer")
                found[number].__cause__ = error
                break
    assert found, "messages can be sealed one by one but not together"
    return found


def append_notice(
    transaction: Transaction, stream: str | None, predicate: str, about: Mapping[str, object], key: str
) -> None:
    """Store an operational fact about a stream, or about the store (None), in the transaction that makes the reported
    change. A repeat is stored once."""
    catalog = transaction.catalog
    message = operational_fact(catalog.names.node, stream, predicate, about, key, transaction.now_unix_ms)
    stream = stream or OPERATIONAL_STREAM
    notice = AppendMessages(
        stream, [message], [message_key(message, catalog.names.zone)], [content_digest(message)], 0, 0
    )
    (outcome,) = append_messages(transaction, stream, [notice], 1)
    assert not isinstance(outcome, Refused), outcome


def append_checkpoint(transaction: Transaction, date: str) -> None:
    """Store the checkpoint of a date (UTC) in each stream, if this store signs. A repeat for one date is stored
    once."""
    if transaction.signer is None:
        return
    catalog = transaction.catalog
    for stream in list(catalog.streams.values()):
        for part, about in enumerate(checkpoint_objects(date, transaction.newest_held(stream.id))):
            append_notice(transaction, stream.name, PREDICATE, about, f"{stream.name}:{date}:{part}")


def _add_own(transaction: Transaction, stream: str, batches: Sequence[Batch], writer: str = "") -> int:
    """Store batches just sealed here; returns the offset of their first fact."""
    # `decide_insert` would cost as much as sealing a fact; these were sealed on this store's own link.
    known, first = transaction.stream(stream), batches[0]
    offered = HeldRange.of(first.header, first.digest)
    is_start = not transaction.held(known.id, transaction.origin_number(first.header.origin))
    is_linear = not is_start or _goes_on(transaction, known.id, first.header.origin.zone, offered)
    first_offset = transaction.add_own(known, batches, writer)
    if not is_linear:
        _report_division(transaction, stream, first.header.origin, offered)
    return first_offset


def _goes_on(transaction: Transaction, stream: int, zone: str, first: HeldRange) -> bool:
    """Whether the first batch of this life continues the newest life before it, after all that is held of its zone:
    then no other life is read."""
    life, highest = transaction.newest_life(stream, zone)
    ranges = transaction.held(stream, transaction.origin_number(Origin(zone, life)))
    return first.first_sequence > highest and bool(ranges) and is_followed(ranges[-1], first)


def _report_division(transaction: Transaction, stream: str, origin: Origin, first: HeldRange) -> None:
    """Own facts that a peer has brought home may continue the same batch as the first one of this life."""
    number = transaction.catalog.streams[stream].id
    origins = {known.life: at for known, at in transaction.origins_of(origin.zone).items()}
    held = {life: ranges for life, at in origins.items() if (ranges := transaction.held(number, at))}

    def batch_at(life: bytes, sequence: int) -> HeldRange | None:
        return transaction.batch_at(number, origins[life], sequence)

    found = find_division(held, origin.life, first) or find_predecessor(held, origin.life, first, batch_at)
    if isinstance(found, Branch):
        report_branch(transaction, stream, origin, found)


def report_branch(transaction: Transaction, stream: str, origin: Origin, branch: Branch) -> None:
    """Report that the history of a zone divides: its store was put back or cloned, and went on from an earlier end; or
    two nodes record it, and one has taken over before it had all that the other recorded. One incident for each zone
    and stream, which names the last division: both sides are stored whole."""
    number, known = transaction.origin_number(Origin(origin.zone, branch.life)), transaction.catalog.streams[stream]
    ends = {origin.life: transaction.held(known.id, transaction.origin(origin))[-1].last_sequence}
    if number is not None and (ranges := transaction.held(known.id, number)):
        ends[branch.life] = ranges[-1].last_sequence
    where = f"after sequence {branch.after_sequence}{'' if branch.is_exact else ' or earlier'}"
    sides = " and ".join(
        f"life {life.hex()} has {max(0, end - branch.after_sequence)} facts beyond" for life, end in ends.items()
    )
    subject = f"{stream} of {origin.zone}"
    if origin.zone in transaction.pair_zones:  # expected after a failover: no alarm names this kind
        detail = f"two gateways of {origin.zone} recorded at once {where}: {sides}"
        transaction.add_incident("seam", subject, detail)
        return
    detail = (
        f"the history divides {where}: {sides}; {origin.zone} was put back to a copy, runs twice, or has two gateways"
    )
    transaction.add_incident("branch", subject, detail)


def _joined(appends: Sequence[AppendSamples]) -> SampleColumns:
    """The samples of several appends, one after the other."""
    if len(appends) == 1:
        return appends[0].columns
    columns = zip(*(append.columns for append in appends), strict=True)
    return SampleColumns._make(list(chain.from_iterable(column)) for column in columns)


def _sealed(seal: Seal, link: Link, cut: Slice, count: int, facts_target: int) -> list[Batch]:
    """Seal facts into a chain of batches of about `facts_target` facts, with fewer where the byte limits require it."""
    batches = list[Batch]()
    start = 0
    for size in batch_sizes(count, facts_target):
        batches.extend(_sealed_within_limits(seal, link, cut, start, start + size))
        link, start = batches[-1].link, start + size
    return batches


def _sealed_within_limits(seal: Seal, link: Link, cut: Slice, start: int, stop: int) -> list[Batch]:
    """Seal one batch; if it exceeds the format's byte limits, seal its halves. Any single fact fits."""
    try:
        return [seal(link, cut(start, stop))]
    except BatchTooLarge:
        if stop - start == 1:
            raise
    half = (start + stop) // 2
    first = _sealed_within_limits(seal, link, cut, start, half)
    return first + _sealed_within_limits(seal, first[-1].link, cut, half, stop)
