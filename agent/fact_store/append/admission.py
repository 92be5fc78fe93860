"""The outcome of a message that an application appends, and the order in which the five outcomes are tried.

Core: no IO.

    outcome                  means                                                   stored   offset
    -----------------------  ------------------------------------------------------  -------  --------------------
    noop_already_applied     the same message is stored: this is a retry             before   of the stored message
    rejected_fenced          another instance of this producer holds a newer lease   no       0; the epoch in force
    conflicting_duplicate    another message has this id                             before   of the stored message
    superseded               the log has a newer message about the subject than      no       of that newer message
                             base_offset
    applied                  none of these                                           now      its own

The first outcome that applies is returned. A retry is tested first, even if its producer has been fenced since: it
writes nothing, and a producer that does not learn that its message is stored would append it again under another id.
Fencing is tested before faults of the message, because a fenced producer must stop instead of correcting its message.

A lease epoch higher than the one in force replaces it, whatever the outcome of the message.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from collections.abc import Set as AbstractSet

from agent.append_contract import AppendOutcome, Precondition
from agent.fact_store.core import FactsRefused
from agent.lease import LEASE_EPOCH_MAX
from agent.message import PRODUCER, MessageError, check_name

PRODUCERS_MAX = 10_000
"""Producers with a lease in one store. Producers have stable names, like consumers; more of them mean that names are
generated at run time."""
PRODUCERS_OF_ONE_MAX = 1_000
"""Producers whose names have the same text before the first dot. For producers of other zones this is the zone, so one
zone cannot use up the limit above."""


def decide(
    stored: tuple[bytes, int] | None,
    content: bytes,
    precondition: Precondition,
    lease_epoch: int,
    newest_offset: int,
    next_offset: int,
) -> AppendOutcome:
    """The outcome of a message.

    `stored` is the content digest and the offset of the message with this id. `lease_epoch` is the one in force for the
    producer (0 for none). `newest_offset` is the offset of the newest message about the subject (0 if there is none, or
    if no base_offset is given).
    """
    if stored is not None and stored[0] == content:
        return AppendOutcome(stored[1], "noop_already_applied")
    if precondition.lease_epoch is not None and precondition.lease_epoch < lease_epoch:
        return AppendOutcome(0, "rejected_fenced", lease_epoch=lease_epoch)
    if stored is not None:
        return AppendOutcome(stored[1], "conflicting_duplicate")
    if precondition.base_offset is not None and precondition.base_offset < newest_offset:
        return AppendOutcome(newest_offset, "superseded")
    return AppendOutcome(next_offset, "applied")


def check_precondition(precondition: Precondition, *, is_strong: bool) -> None:
    """Raise MessageError, which names the field, for a precondition that cannot be decided in a stream."""
    producer, lease_epoch, base_offset = precondition.producer, precondition.lease_epoch, precondition.base_offset
    if (producer is None) != (lease_epoch is None):
        raise MessageError("lease_epoch", "producer and lease_epoch must be given together")
    if producer is not None:
        check_name("producer", producer, PRODUCER)
        if type(lease_epoch) is not int or not 1 <= lease_epoch <= LEASE_EPOCH_MAX:
            raise MessageError("lease_epoch", f"{lease_epoch!r} is not an epoch of 1 to {LEASE_EPOCH_MAX}")
    if base_offset is not None:
        if type(base_offset) is not int or not 0 <= base_offset < 2**63:
            raise MessageError("base_offset", f"{base_offset!r} is not an offset")
        if not is_strong:
            raise MessageError(
                "base_offset", 'only a stream with write_class = "strong" records the newest fact of a subject'
            )


def lease_limit_reached(leases: Mapping[tuple[str, str], int], producers: AbstractSet[tuple[str, str]]) -> str:
    """The reason why `leases` and the leases of these producers (stream, name) together exceed a limit; "" if they do
    not."""
    new = producers - leases.keys()
    if not new:
        return ""
    if len(leases) + len(new) > PRODUCERS_MAX:
        return f"{PRODUCERS_MAX} producers already have leases"
    owners = Counter(_owner(name) for _, name in new)
    known = Counter(owner for _, name in leases if (owner := _owner(name)) in owners)
    for owner, count in owners.items():
        if known[owner] + count > PRODUCERS_OF_ONE_MAX:
            return f"{PRODUCERS_OF_ONE_MAX} producers of {owner!r} already have leases"
    return ""


def _owner(producer: str) -> str:
    return producer.partition(".")[0]


def next_lease_epoch(leases: Mapping[tuple[str, str], int], stream: str, producer: str) -> int:
    """The next lease epoch of a producer. Raises FactsRefused if a limit is reached."""
    known = leases.get((stream, producer))
    if known is None and (why := lease_limit_reached(leases, {(stream, producer)})):
        raise FactsRefused(why, "use stable names for producers")
    if known == LEASE_EPOCH_MAX:
        raise FactsRefused(f"producer {producer!r} has used up its lease epochs", "give it another name")
    return (known or 0) + 1
