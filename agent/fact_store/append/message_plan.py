"""The plan for the messages of a group commit, each decided in order, before anything is written.

Each decision (admission.py) takes the effects of the earlier ones into account: an id is taken, a lease is in force, a
subject has a newer message. The plan lists the messages, ids, leases and subjects that are then written in one
transaction.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field

from agent.append_contract import NO_PRECONDITION, AppendOutcome, Precondition
from agent.batch import DIGEST_BYTES
from agent.fact_store.append.admission import decide, lease_limit_reached, next_lease_epoch
from agent.fact_store.append.queue import AppendMessages
from agent.fact_store.core import FactsRefused, Refused
from agent.fact_store.sqlite import Transaction
from agent.message import Message


@dataclass(slots=True)
class MessagePlan:
    """The writes for the messages of a group commit, and the outcome of each message."""

    kept: list[Message] = field(default_factory=list)
    fresh: dict[bytes, tuple[bytes, int]] = field(default_factory=dict)  # key: content, offset
    leases: dict[str, int] = field(default_factory=dict)
    subjects: dict[bytes, int] = field(default_factory=dict)
    outcomes: dict[int, list[AppendOutcome]] = field(default_factory=dict)  # by number of the append


def digest(data: bytes) -> bytes:
    """Digest of an id, a content or a subject."""
    return hashlib.blake2b(data, digest_size=DIGEST_BYTES).digest()


def plan_messages(
    transaction: Transaction,
    stream: str,
    appends: Sequence[AppendMessages],
    refused: dict[int, Refused],
    *,
    is_strong: bool,
) -> MessagePlan:
    """Decide each message of the appends that are not in `refused`. An append whose leases exceed a limit is added to
    `refused`."""
    known = transaction.catalog.streams.get(stream)
    next_offset = known.end_offset + 1 if known else 1
    plan = MessagePlan()
    for number, append in enumerate(appends):
        if number in refused:
            continue
        results = list[AppendOutcome]()
        if append.preconditions and (why := _lease_limit_reached(transaction, stream, append.preconditions, plan)):
            refused[number] = FactsRefused(why, "use stable names for producers")
            continue
        for at, (message, key, content) in enumerate(zip(append.messages, append.keys, append.contents, strict=True)):
            stored = plan.fresh.get(key) or transaction.message(known, key)
            precondition = append.preconditions[at] if append.preconditions else NO_PRECONDITION
            lease_epoch = newest_offset = 0
            if precondition.producer is not None:
                lease_epoch = _lease_in_force(transaction, stream, precondition.producer, plan)
            subject = digest(message.fact.subject.encode()) if is_strong else b""
            if precondition.base_offset is not None:
                newest_offset = plan.subjects.get(subject) or transaction.subject_offset(known, subject)
            outcome = decide(stored, content, precondition, lease_epoch, newest_offset, next_offset)
            results.append(outcome)
            if precondition.producer is not None and (precondition.lease_epoch or 0) > lease_epoch:
                plan.leases[precondition.producer] = precondition.lease_epoch or 0
            if outcome.outcome == "applied":
                plan.fresh[key] = content, next_offset
                plan.kept.append(message)
                if is_strong:
                    plan.subjects[subject] = next_offset
                next_offset += 1
        plan.outcomes[number] = results
    return plan


def acquire_lease_after(transaction: Transaction, stream: str, producer: str, after: int) -> int | None:
    """`acquire_lease` if the epoch `after` is in force (0: none); None if another one is."""
    if transaction.catalog.leases.get((stream, producer), 0) != after:
        return None
    return acquire_lease(transaction, stream, producer)


def acquire_lease(transaction: Transaction, stream: str, producer: str) -> int:
    """Grant a lease with a higher epoch than every one before; returns the epoch. Raises FactsRefused."""
    epoch = next_lease_epoch(transaction.catalog.leases, stream, producer)
    transaction.set_leases(stream, {producer: epoch})
    return epoch


def _lease_limit_reached(
    transaction: Transaction, stream: str, preconditions: Sequence[Precondition], plan: MessagePlan
) -> str:
    """The reason why the store cannot keep the leases of all these producers; "" if it can."""
    named = {*plan.leases, *(given.producer for given in preconditions if given.producer is not None)}
    return lease_limit_reached(transaction.catalog.leases, {(stream, producer) for producer in named})


def _lease_in_force(transaction: Transaction, stream: str, producer: str, plan: MessagePlan) -> int:
    return plan.leases.get(producer) or transaction.catalog.leases.get((stream, producer), 0)
