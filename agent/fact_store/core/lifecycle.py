"""The states of a consumer, as a table. Core: no IO.

Consumers are registered, not sessions: each holds back what it has not confirmed, so only an operator removes one. A
consumer that comes back while it is being removed is *ineligible*: it is not abandoned, and its facts are kept until
its removal is requested again.

Two events are timeouts (`next_timeout`): an active consumer that was not seen for long is lost, and a removal is
completed unless the consumer comes back.

    state                event      next
    -------------------  ---------  ------------------
    new                  seen       online
    new                  remove     deletion started
    online               seen       online
    online               lost       offline
    offline              seen       online
    offline              lost       offline
    offline              remove     deletion started
    deletion started     seen       ineligible
    deletion started     remove     deletion started
    deletion started     removed    deleted
    ineligible           seen       ineligible
    ineligible           lost       offline
    ineligible           remove     deletion started

A transition that is not in the table is a mistake of this program and raises AssertionError.
"""

from __future__ import annotations

from enum import Enum


class Lifecycle(Enum):
    """The state of a consumer. The values are stored in the table `consumer`."""

    NEW = "new"
    ONLINE = "online"
    OFFLINE = "offline"
    DELETION_STARTED = "deletion started"
    INELIGIBLE = "ineligible"
    DELETED = "deleted"


class ConsumerEvent(Enum):
    """What can happen to a consumer."""

    SEEN = "seen"  # it fetched or confirmed
    LOST = "lost"  # it was not seen for long, or the store was closed meanwhile
    REMOVE = "remove"  # its removal was requested
    REMOVED = "removed"  # its removal is complete


TRANSITIONS: dict[tuple[Lifecycle, ConsumerEvent], Lifecycle] = {
    (Lifecycle.NEW, ConsumerEvent.SEEN): Lifecycle.ONLINE,
    (Lifecycle.NEW, ConsumerEvent.REMOVE): Lifecycle.DELETION_STARTED,
    (Lifecycle.ONLINE, ConsumerEvent.SEEN): Lifecycle.ONLINE,
    (Lifecycle.ONLINE, ConsumerEvent.LOST): Lifecycle.OFFLINE,
    (Lifecycle.OFFLINE, ConsumerEvent.SEEN): Lifecycle.ONLINE,
    (Lifecycle.OFFLINE, ConsumerEvent.LOST): Lifecycle.OFFLINE,
    (Lifecycle.OFFLINE, ConsumerEvent.REMOVE): Lifecycle.DELETION_STARTED,
    (Lifecycle.DELETION_STARTED, ConsumerEvent.SEEN): Lifecycle.INELIGIBLE,
    (Lifecycle.DELETION_STARTED, ConsumerEvent.REMOVE): Lifecycle.DELETION_STARTED,
    (Lifecycle.DELETION_STARTED, ConsumerEvent.REMOVED): Lifecycle.DELETED,
    (Lifecycle.INELIGIBLE, ConsumerEvent.SEEN): Lifecycle.INELIGIBLE,
    (Lifecycle.INELIGIBLE, ConsumerEvent.LOST): Lifecycle.OFFLINE,
    (Lifecycle.INELIGIBLE, ConsumerEvent.REMOVE): Lifecycle.DELETION_STARTED,
}


ACTIVE_STATES = frozenset({Lifecycle.ONLINE, Lifecycle.INELIGIBLE})
"""States of consumers that fetch or confirm: removing one is refused unless it is forced."""
REMOVAL_NS = 600 * 1_000_000_000
"""How long a consumer that is being removed may come back: a peer in trouble retries within a minute or two, and an
operator who removed the wrong one notices in that time."""


def next_timeout(state: Lifecycle, since_ns: int, lost_ns: int) -> tuple[ConsumerEvent, int] | None:
    """The timeout of a consumer that was last seen, or entered its state, at `since_ns`: the event and when it is due;
    None if there is none."""
    if state in ACTIVE_STATES:
        return ConsumerEvent.LOST, since_ns + lost_ns
    if state is Lifecycle.DELETION_STARTED:
        return ConsumerEvent.REMOVED, since_ns + REMOVAL_NS
    return None


def next_state(state: Lifecycle, event: ConsumerEvent) -> Lifecycle:
    """The state after an event; asserts that the table has the transition."""
    assert (state, event) in TRANSITIONS, f"a consumer that is {state.value} cannot be {event.value}"
    return TRANSITIONS[state, event]
