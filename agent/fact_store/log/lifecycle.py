"""The life of a consumer, as a table. Core: no IO.

Consumers are registered infrastructure, not sessions: each holds back what it has not confirmed, so forgetting one must be
an act somebody took. A consumer that comes back while it is being removed is *ineligible*: it is plainly not abandoned, and
what it needs is kept until somebody asks for its removal again.

Two events come with time alone (`overdue`): one that is present and was not seen for long is lost, and a removal that nobody
came back to is carried out.

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

What the table lacks is our own mistake and raises.
"""

from __future__ import annotations

from enum import Enum


class Lifecycle(Enum):
    """Where a consumer stands. The values are what the table `consumer` holds."""

    NEW = "new"
    ONLINE = "online"
    OFFLINE = "offline"
    DELETION_STARTED = "deletion started"
    INELIGIBLE = "ineligible"
    DELETED = "deleted"


class Event(Enum):
    """What can happen to a consumer."""

    SEEN = "seen"  # it fetched or confirmed
    LOST = "lost"  # not seen for long, or the store was closed meanwhile
    REMOVE = "remove"  # somebody asked for its removal
    REMOVED = "removed"  # nothing of it is left


TRANSITIONS: dict[tuple[Lifecycle, Event], Lifecycle] = {
    (Lifecycle.NEW, Event.SEEN): Lifecycle.ONLINE,
    (Lifecycle.NEW, Event.REMOVE): Lifecycle.DELETION_STARTED,
    (Lifecycle.ONLINE, Event.SEEN): Lifecycle.ONLINE,
    (Lifecycle.ONLINE, Event.LOST): Lifecycle.OFFLINE,
    (Lifecycle.OFFLINE, Event.SEEN): Lifecycle.ONLINE,
    (Lifecycle.OFFLINE, Event.LOST): Lifecycle.OFFLINE,
    (Lifecycle.OFFLINE, Event.REMOVE): Lifecycle.DELETION_STARTED,
    (Lifecycle.DELETION_STARTED, Event.SEEN): Lifecycle.INELIGIBLE,
    (Lifecycle.DELETION_STARTED, Event.REMOVE): Lifecycle.DELETION_STARTED,
    (Lifecycle.DELETION_STARTED, Event.REMOVED): Lifecycle.DELETED,
    (Lifecycle.INELIGIBLE, Event.SEEN): Lifecycle.INELIGIBLE,
    (Lifecycle.INELIGIBLE, Event.LOST): Lifecycle.OFFLINE,
    (Lifecycle.INELIGIBLE, Event.REMOVE): Lifecycle.DELETION_STARTED,
}


ACTIVE_STATES = frozenset({Lifecycle.ONLINE, Lifecycle.INELIGIBLE})
"""Whose facts somebody fetches these days: removing one is refused unless it is insisted on."""
REMOVAL_NS = 600 * 1_000_000_000
"""How long one that is being removed may still come back: a peer in trouble asks again within a minute or two, a person who
removed the wrong one notices while the window is still open."""


def next_timeout(state: Lifecycle, since_ns: int, lost_ns: int) -> tuple[Event, int] | None:
    """What happens to a consumer by itself, and when, if it was last seen (or came to this state) at `since_ns`."""
    if state in ACTIVE_STATES:
        return Event.LOST, since_ns + lost_ns
    if state is Lifecycle.DELETION_STARTED:
        return Event.REMOVED, since_ns + REMOVAL_NS
    return None


def next_state(state: Lifecycle, event: Event) -> Lifecycle:
    """The state after an event; asserts that the table has the row."""
    assert (state, event) in TRANSITIONS, f"a consumer that is {state.value} cannot be {event.value}"
    return TRANSITIONS[state, event]
