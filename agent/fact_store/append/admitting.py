"""The messages of one group commit, decided one after the other before anything is written (admission.py says how).

Later messages of the group see what earlier ones will do: an id that is about to be stored is known, a lease that was shown is in
force, a subject has its newer message. What comes out is a plan; whoever carries it out writes messages, ids, leases and
subjects in one transaction.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from agent.append_contract import NO_PRECONDITION, AppendOutcome, Precondition
from agent.batch import DIGEST_BYTES
from agent.fact_store.append.admission import decide, next_lease_epoch, no_room_for
from agent.fact_store.log import FactsRefused, Refused
from agent.fact_store.sqlite import Transaction
from agent.message import Message

if TYPE_CHECKING:
    from agent.fact_store.append.append import AppendMessages


@dataclass(slots=True)
class Plan:
    """What storing the messages of a group will do."""

    kept: list[Message] = field(default_factory=list)
    fresh: dict[bytes, tuple[bytes, int]] = field(default_factory=dict)  # key: content, offset
    leases: dict[str, int] = field(default_factory=dict)
    subjects: dict[bytes, int] = field(default_factory=dict)
    outcomes: dict[int, list[AppendOutcome]] = field(default_factory=dict)  # by number of the append


def digest(data: bytes) -> bytes:
    """What ids, contents and subjects are known by."""
    return hashlib.blake2b(data, digest_size=DIGEST_BYTES).digest()


def admit(
    transaction: Transaction,
    stream: str,
    appends: Sequence[AppendMessages],
    refused: dict[int, Refused],
    *,
    is_strong: bool,
) -> Plan:
    """Decide about every message of the appends that are not refused; one that asks for the impossible is added to `refused`."""
    known = transaction.catalog.streams.get(stream)
    next_offset = known.end_offset + 1 if known else 1
    plan = Plan()
    for number, append in enumerate(appends):
        if number in refused:
            continue
        results = list[AppendOutcome]()
        if append.preconditions and (why := _no_room(transaction, stream, append.preconditions, plan)):
            refused[number] = FactsRefused(why, "use stable names for producers")
            continue
        for at, (message, key, content) in enumerate(zip(append.messages, append.keys, append.contents, strict=True)):
            stored = plan.fresh.get(key) or transaction.message(known, key)
            precondition = append.preconditions[at] if append.preconditions else NO_PRECONDITION
            lease_epoch = newest_offset = 0
            if precondition.producer is not None:
                lease_epoch = _in_force(transaction, stream, precondition.producer, plan)
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
    """`acquire_lease` if that epoch is in force (0: none), None where another is."""
    if transaction.catalog.leases.get((stream, producer), 0) != after:
        return None
    return acquire_lease(transaction, stream, producer)


def acquire_lease(transaction: Transaction, stream: str, producer: str) -> int:
    """Put a lease in force that is newer than every one before; returns its epoch. Raises FactsRefused."""
    epoch = next_lease_epoch(transaction.catalog.leases, stream, producer)
    transaction.set_leases(stream, {producer: epoch})
    return epoch


def _no_room(transaction: Transaction, stream: str, preconditions: Sequence[Precondition], plan: Plan) -> str:
    """Why the store may not remember the leases of all producers named, "" where it may."""
    named = {*plan.leases, *(one.producer for one in preconditions if one.producer is not None)}
    return no_room_for(transaction.catalog.leases, {(stream, producer) for producer in named})


def _in_force(transaction: Transaction, stream: str, producer: str, plan: Plan) -> int:
    return plan.leases.get(producer) or transaction.catalog.leases.get((stream, producer), 0)
