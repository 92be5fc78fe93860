"""What becomes of a message that an application appends: the five outcomes, and the order in which they are looked for. Core: no
IO.

    outcome                  means                                                           stored   offset
    -----------------------  --------------------------------------------------------------  -------  ---------------------
    noop_already_applied     this very message is there: a retry whose first answer was lost  before   of the stored message
    rejected_fenced          another instance of this producer holds a newer lease            no       0, and the epoch in force
    conflicting_duplicate    another message has this id                                      before   of the stored message
    superseded               the log holds a newer message about the subject than base_offset no       of that newer message
    applied                  none of these                                                    now      its own

The first that holds is the answer. A repeat comes first, also of a producer fenced since: it writes nothing, and who asks again
must learn that the message is there, or it would be appended a second time under another id. Being fenced comes before what is
wrong with the message, because a fenced producer has to stop and not to correct.

A lease epoch higher than the one in force takes its place, whatever else becomes of the message.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from collections.abc import Set as AbstractSet

from agent.append_contract import AppendOutcome, Precondition
from agent.fact_store.log import FactsRefused
from agent.lease import LEASE_EPOCH_MAX
from agent.message import PRODUCER, MessageError, check_name

PRODUCERS_MAX = 10_000
"""Producers with a lease in one store: named infrastructure, like consumers; more are somebody who makes up names."""
PRODUCERS_OF_ONE_MAX = 1_000
"""Of them, with one name before the first dot: the zone's, where they are another zone's, so that none takes up all there are."""


def decide(
    stored: tuple[bytes, int] | None,
    content: bytes,
    precondition: Precondition,
    lease_epoch: int,
    newest_offset: int,
    next_offset: int,
) -> AppendOutcome:
    """What becomes of a message.

    `stored` is content digest and offset of the message with this id, `lease_epoch` the one in force for the producer (0 where it
    has none), `newest_offset` that of the newest message about the subject (0 where there is none or nobody asked).
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
    """Raise MessageError naming the field unless a precondition can be decided in a stream."""
    producer, lease_epoch, base_offset = precondition.producer, precondition.lease_epoch, precondition.base_offset
    if (producer is None) != (lease_epoch is None):
        raise MessageError("lease_epoch", "producer and lease_epoch go together: a lease is a producer's")
    if producer is not None:
        check_name("producer", producer, PRODUCER)
        if type(lease_epoch) is not int or not 1 <= lease_epoch <= LEASE_EPOCH_MAX:
            raise MessageError("lease_epoch", f"{lease_epoch!r} is not an epoch of 1 to {LEASE_EPOCH_MAX}")
    if base_offset is not None:
        if type(base_offset) is not int or base_offset < 0:
            raise MessageError("base_offset", f"{base_offset!r} is not an offset")
        if not is_strong:
            raise MessageError(
                "base_offset", 'only a stream with write_class = "strong" knows the newest fact of a subject'
            )


def no_room_for(leases: Mapping[tuple[str, str], int], producers: AbstractSet[tuple[str, str]]) -> str:
    """Why the leases of these producers (stream, name) cannot be kept beside those that are; "" where they can."""
    new = producers - leases.keys()
    if not new:
        return ""
    if len(leases) + len(new) > PRODUCERS_MAX:
        return f"{PRODUCERS_MAX} producers have leases already"
    owners = Counter(_owner(name) for _, name in new)
    known = Counter(owner for _, name in leases if (owner := _owner(name)) in owners)
    for owner, count in owners.items():
        if known[owner] + count > PRODUCERS_OF_ONE_MAX:
            return f"{PRODUCERS_OF_ONE_MAX} producers of {owner!r} have leases already"
    return ""


def _owner(producer: str) -> str:
    return producer.partition(".")[0]


def next_lease_epoch(leases: Mapping[tuple[str, str], int], stream: str, producer: str) -> int:
    """The epoch of a producer that begins anew; raises FactsRefused where there cannot be one."""
    known = leases.get((stream, producer))
    if known is None and (why := no_room_for(leases, {(stream, producer)})):
        raise FactsRefused(why, "use stable names for producers")
    if known == LEASE_EPOCH_MAX:
        raise FactsRefused(f"producer {producer!r} has used up its lease epochs", "give it another name")
    return (known or 0) + 1
