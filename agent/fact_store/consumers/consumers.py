"""Changes to consumers inside the writer's transaction: register, lease, confirm, remove, and record activity.

frontier.py decides the effect of a confirmation, agent/lease.py which of several instances holds the lease.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from agent.fact_store.core import (
    ACTIVE_STATES,
    TRANSITIONS,
    Catalog,
    Confirmed,
    ConsumerEvent,
    ConsumerFenced,
    ConsumerInUse,
    ConsumerNotYours,
    ConsumerState,
    ConsumerStreamMismatch,
    LeaseUnknown,
    Lifecycle,
    StreamIsLocal,
    StreamState,
    TooManyConsumers,
    UnknownConsumer,
    confirm_range,
    next_state,
    skip_released,
)
from agent.fact_store.sqlite import Transaction
from agent.lease import Denied, Lease, LeaseClaim, decide_lease
from agent.message import LOCAL_ZONE
from agent.pages import Start
from agent.positions import Position


def register_consumer(
    transaction: Transaction,
    name: str,
    zone: str,
    stream: str,
    start: Start,
    *,
    is_local: bool = False,
    zone_max: int | None = None,
) -> ConsumerState:
    """The consumer of this name, registered if it is new. A removal that has begun is cancelled. `zone_max`: how
    many consumers the zone may have; None for any number.

    Raises ConsumerNotYours, ConsumerStreamMismatch, TooManyConsumers, and StreamIsLocal for a consumer of another zone
    if the stream `is_local`.
    """
    if (known := transaction.catalog.consumers.get(name)) is not None:
        if known.zone != zone:
            raise ConsumerNotYours(f"consumer {name!r} was registered by zone {known.zone!r}, not {zone!r}")
        if known.stream != stream:
            raise ConsumerStreamMismatch(f"consumer {name!r} reads stream {known.stream!r}, not {stream!r}")
        if known.lifecycle is Lifecycle.DELETION_STARTED:
            _apply(transaction, known, ConsumerEvent.SEEN)
        return transaction.catalog.consumers[name]
    if is_local and zone not in {LOCAL_ZONE, *transaction.catalog.names.own_zones}:
        raise StreamIsLocal(f"stream {stream!r} has write class local; zone {zone!r} cannot read it")
    # Counted in the transaction: otherwise several concurrent requests could each count before the others' commit.
    owned = sum(1 for known in transaction.catalog.consumers.values() if known.zone == zone)
    if zone_max is not None and owned >= zone_max:
        raise TooManyConsumers(f"zone {zone} has {owned} consumers and may have {zone_max}")
    state = transaction.stream(stream)
    start_offset = _start_offset(transaction, state, start)
    return transaction.add_consumer(
        ConsumerState(0, name, zone, stream, Lifecycle.NEW, start_offset, Confirmed(start_offset))
    )


def hold_lease(transaction: Transaction, name: str, claim: LeaseClaim) -> Lease:
    """The lease of a consumer that is in force after an instance's claim. Raises UnknownConsumer, ConsumerFenced,
    LeaseUnknown."""
    consumer = find_consumer(transaction.catalog, name)
    lease = _lease(consumer, claim)
    transaction.set_consumer(replace(consumer, lease=lease))
    return lease


def confirm_offsets(
    transaction: Transaction,
    name: str,
    first_offset: int | None,
    last_offset: int,
    claim: LeaseClaim | None,
    read: Position | None,
) -> int:
    """The frontier after a confirmation. `claim` is the claim of the instance that confirms; None checks the name only.
    `read`: the position of `last_offset` in the log that the consumer has read; None: in this log. What of it is not in
    this log is not confirmed.

    Raises UnknownConsumer, ConsumerFenced, LeaseUnknown, ConfirmRefused, ConfirmBeyondLog.
    """
    consumer = find_consumer(transaction.catalog, name)
    # The lease comes first: a fenced instance must not move the frontier (decision 0036).
    lease = consumer.lease if claim is None else _lease(consumer, claim)
    stream = transaction.catalog.streams[consumer.stream]
    here = skip_released(consumer.confirmed, stream.released_offset)
    if read is not None:
        last_offset = min(last_offset, transaction.resolve(stream.name, read).offset)
    is_none_left = read is not None and last_offset < (first_offset or 1)
    confirmed = here if is_none_left else confirm_range(here, first_offset, last_offset, stream.end_offset)
    lifecycle = next_state(consumer.lifecycle, ConsumerEvent.SEEN)
    if (confirmed, lifecycle, lease) != (consumer.confirmed, consumer.lifecycle, consumer.lease):
        seen_unix_ms = transaction.now_unix_ms
        after = replace(consumer, confirmed=confirmed, lifecycle=lifecycle, seen_unix_ms=seen_unix_ms, lease=lease)
        transaction.set_consumer(after)
    return confirmed.frontier


def remove_consumer(transaction: Transaction, name: str, *, force: bool, now: bool) -> Lifecycle:
    """Begin to remove a consumer, so that retention stops waiting for it; with `now`, remove it at once. Returns its
    state.

    Raises UnknownConsumer, and without `force` ConsumerInUse for one that is active.
    """
    consumer = find_consumer(transaction.catalog, name)
    if consumer.lifecycle in ACTIVE_STATES:
        if not force:
            raise ConsumerInUse(
                f"consumer {name!r} is {consumer.lifecycle.value}: it has fetched or confirmed recently"
            )
        consumer = replace(
            consumer, lifecycle=next_state(consumer.lifecycle, ConsumerEvent.LOST)
        )  # `force` declares it lost
    consumer = replace(consumer, lifecycle=next_state(consumer.lifecycle, ConsumerEvent.REMOVE))
    transaction.set_consumer(consumer)
    if now:
        _apply(transaction, consumer, ConsumerEvent.REMOVED)
        return Lifecycle.DELETED
    return consumer.lifecycle


def unregister_consumer(transaction: Transaction, name: str, zone: str, claim: LeaseClaim) -> bool:
    """Remove a consumer at once, at the request of its zone; False if there is none.

    Raises ConsumerNotYours, ConsumerFenced, LeaseUnknown.
    """
    consumer = transaction.catalog.consumers.get(name)
    if consumer is None:
        return False
    if consumer.zone != zone:
        raise ConsumerNotYours(f"consumer {name!r} was registered by zone {consumer.zone!r}, not {zone!r}")
    _lease(consumer, claim)
    transaction.remove_consumer(consumer)
    return True


def apply_events(
    transaction: Transaction, events: Mapping[str, ConsumerEvent], seen_unix_ms: Callable[[str], int | None]
) -> None:
    """Apply events to consumers. An event that the consumer's state no longer allows, because the consumer came back,
    is dropped."""
    for name, event in events.items():
        consumer = transaction.catalog.consumers.get(name)
        if consumer is not None and (consumer.lifecycle, event) in TRANSITIONS:
            known_ms = seen_unix_ms(name)
            _apply(transaction, replace(consumer, seen_unix_ms=known_ms or consumer.seen_unix_ms), event)


def save_last_seen(transaction: Transaction, seen_unix_ms: Mapping[str, int]) -> None:
    """Store when consumers were last seen, in milliseconds since 1970."""
    for name, seen in seen_unix_ms.items():
        if (consumer := transaction.catalog.consumers.get(name)) is not None:
            transaction.set_consumer(replace(consumer, seen_unix_ms=seen))


def _apply(transaction: Transaction, consumer: ConsumerState, event: ConsumerEvent) -> None:
    lifecycle = next_state(consumer.lifecycle, event)
    if lifecycle is Lifecycle.DELETED:
        transaction.remove_consumer(consumer)
    else:
        transaction.set_consumer(replace(consumer, lifecycle=lifecycle))


def _start_offset(transaction: Transaction, stream: StreamState, start: Start) -> int:
    """The frontier that a new consumer starts with. A time is rounded down to the mark of its minute, so it never
    starts too late."""
    if start == "end" or (isinstance(start, int) and start > transaction.now_unix_ms):
        return stream.end_offset
    if start == "oldest":
        return stream.released_offset
    return max(transaction.first_offset_at(stream.id, start) - 1, stream.released_offset)


def _lease(consumer: ConsumerState, claim: LeaseClaim) -> Lease:
    # Epochs start after the time of registration, which differs for a name that is registered again.
    match decide_lease(consumer.lease, claim, consumer.registered_unix_ms):
        case Denied.FENCED:
            own = "none" if claim.epoch is None else str(claim.epoch)
            raise ConsumerFenced(
                f"consumer {consumer.name!r} has lease {consumer.lease.epoch} in force, the request has {own}; "
                f"the holder is {consumer.lease.holder}"
            )
        case Denied.UNKNOWN:
            raise LeaseUnknown(
                f"consumer {consumer.name!r} has lease {consumer.lease.epoch} in force; {claim.epoch} was never granted"
            )
        case lease:
            return lease


def find_consumer(catalog: Catalog, name: str) -> ConsumerState:
    """The consumer of this name; raises UnknownConsumer."""
    if (known := catalog.consumers.get(name)) is None:
        raise UnknownConsumer(f"no consumer {name!r}")
    return known
