"""The conditions that a server retains, and what a refresh shows about them (OPC 10000-9, 4.5 and 5.5.7).

A condition is *retained* while it needs the attention of an operator: it is active or not yet acknowledged. A refresh
sends the state of each retained condition again, between RefreshStart and RefreshEnd. A known state is ignored; another
one is accepted and marked as refreshed. A retained condition that a complete refresh does not contain is *absent*: it
ended while no session was open.

Servers do not order the events of different monitored items. So a refresh lasts from its request to the end of the
*burst* with its RefreshEnd. A burst is a series of publications that the server sends at once, all but the last with
"more". A refresh during which events were lost proves no absence.

A server whose queue overflows sends an EventQueueOverflowEventType (OPC 10000-4, 7.22.3). Some (node-opcua) discard
events silently. Then the burst that empties the queue has as many events as the queue can hold, and it is not known
whether there were more: that counts as a loss.

Core: takes events, returns what to record.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum

from agent.ingest.opcua.events.event_fields import (
    QUEUE_OVERFLOW,
    REFRESH_END,
    REFRESH_REQUIRED,
    REFRESH_START,
    OpcuaEvent,
)

CONDITIONS_MAX = 20_000  # known at the same time, about 1 kB each; the end of one beyond them is an ordinary event
REFRESH_PAUSE_S = 10.0  # between two refreshes; doubles while refreshes overflow the queue of the server
REFRESH_PAUSE_MAX_S = 600.0
REFRESH_MAX_S = 60.0  # until RefreshEnd arrives

Key = tuple[object, ...]


class Refresh(Enum):
    """The state of a refresh."""

    NONE = "none"
    ASKED = "asked"
    STARTED = "started"
    ENDED = "ended"  # RefreshEnd has arrived, the burst continues


@dataclass(frozen=True, slots=True)
class AcceptedEvents:
    """What to record of a publication: `events`, of which those at the indices `refreshed` are marked as refreshed, and
    `absent`, the last known states of absent conditions. `is_complete`: a refresh is over, and all retained conditions
    are known."""

    events: Sequence[OpcuaEvent]
    refreshed: frozenset[int] = frozenset()
    absent: Sequence[OpcuaEvent] = ()
    is_complete: bool = False
    is_refresh_required: bool = False


class RetainedConditions:
    """The retained conditions of one server."""

    def __init__(self) -> None:
        self._retained: dict[Key, OpcuaEvent] = {}
        self._refresh = Refresh.NONE
        self._start_ns = 0  # time of RefreshStart on the server's clock; 0: not known
        self._seen: set[Key] = set()  # in this refresh, or otherwise in this burst
        self._is_incomplete = False

    @property
    def retained(self) -> list[OpcuaEvent]:
        """The last known states."""
        return list(self._retained.values())

    def knows(self, event: OpcuaEvent) -> bool:
        """Whether this is an event of a retained condition."""
        return event.is_condition and _key(event) in self._retained

    def ask(self) -> None:
        """A refresh is about to be requested."""
        self._reset()
        self._refresh = Refresh.ASKED

    def abandon(self) -> None:
        """There is no refresh any more: it was refused, or the session has ended."""
        self._reset()

    def mark_incomplete(self) -> None:
        """Events were lost."""
        self._is_incomplete = True

    @property
    def is_refreshing(self) -> bool:
        return self._refresh is not Refresh.NONE

    def take_publication(
        self, events: Iterable[OpcuaEvent], refresh_events: Iterable[OpcuaEvent], *, more: bool
    ) -> AcceptedEvents:
        """Take in one publication: its events, and those about the refresh (`refresh_events`), which several items may
        have received."""
        is_required = self._see_refresh_events(refresh_events)
        taken: list[OpcuaEvent] = []
        refreshed: set[int] = set()
        for event in events:
            is_old = self.is_refreshing and not (self._start_ns and event.time_ns >= self._start_ns)
            if event.is_condition and not self._note_condition(event) and is_old:
                continue
            if event.is_condition and is_old:
                refreshed.add(len(taken))
            taken.append(event)
        if more:
            return AcceptedEvents(taken, frozenset(refreshed), is_refresh_required=is_required)
        absent, is_complete = self._end_burst()
        return AcceptedEvents(taken, frozenset(refreshed), absent, is_complete, is_required)

    def _see_refresh_events(self, refresh_events: Iterable[OpcuaEvent]) -> bool:
        is_required = False
        for event in refresh_events:
            if event.is_of(REFRESH_START):
                self._refresh, self._start_ns = Refresh.STARTED, event.time_ns
            elif event.is_of(REFRESH_END) and self._refresh is Refresh.STARTED:
                self._refresh = Refresh.ENDED
            is_required |= event.is_of(REFRESH_REQUIRED)
        return is_required

    def _note_condition(self, event: OpcuaEvent) -> bool:
        """Remember a state. False if it is the known one."""
        key = _key(event)
        self._seen.add(key)
        known = self._retained.get(key)
        if event.fields.get("retain") is not True:
            self._retained.pop(key, None)
            return True
        if known is not None and _state(known) == _state(event):
            return False
        if known is not None or len(self._retained) < CONDITIONS_MAX:
            self._retained[key] = event
        return True

    def _end_burst(self) -> tuple[Sequence[OpcuaEvent], bool]:
        """At the end of a burst: the absent conditions and whether a refresh is complete."""
        if self._refresh is Refresh.NONE:
            self._reset()
            return (), False
        if self._refresh is not Refresh.ENDED:
            return (), False
        is_complete = not self._is_incomplete
        gone = [key for key in self._retained if key not in self._seen] if is_complete else []
        absent = [self._retained.pop(key) for key in gone]
        self._reset()
        return absent, is_complete

    def _reset(self) -> None:
        self._refresh, self._start_ns, self._is_incomplete = Refresh.NONE, 0, False
        self._seen = set()


class RefreshPlan:
    """When to request a refresh. Times are in seconds of a monotonic clock."""

    def __init__(self) -> None:
        self._due_s: float | None = None
        self._asked_s = float("-inf")
        self._pause_s = REFRESH_PAUSE_S
        self._is_refused = False

    def begin_subscription(self, now_s: float) -> None:
        """A new subscription. What was refused before may be possible now."""
        self._due_s, self._is_refused = now_s, False

    def want(self, now_s: float) -> None:
        """A refresh is needed as soon as the pause allows it."""
        if not self._is_refused and self._due_s is None:
            self._due_s = max(now_s, self._asked_s + self._pause_s)

    def is_due(self, now_s: float) -> bool:
        return self._due_s is not None and now_s >= self._due_s

    def asked(self, now_s: float) -> None:
        self._asked_s, self._due_s = now_s, None

    def refuse(self) -> None:
        """The server refuses refreshes."""
        self._is_refused, self._due_s = True, None

    def complete(self) -> None:
        self._pause_s = REFRESH_PAUSE_S

    def repeat_later(self, now_s: float) -> None:
        """Events were lost in a refresh, so it is to be repeated, after a longer pause each time."""
        self._pause_s = min(self._pause_s * 2, REFRESH_PAUSE_MAX_S)
        self.want(now_s)

    def is_overdue(self, now_s: float) -> bool:
        """Whether the end of the present refresh is overdue."""
        return now_s - self._asked_s > REFRESH_MAX_S


class QueueWatch:
    """Detects lost events in one subscription. `queue_sizes` has the revised sizes by handle; 0 or 1: not known."""

    def __init__(self, queue_sizes: Mapping[int, int]) -> None:
        self._sizes = queue_sizes
        self._counts: Counter[int] = Counter()

    def take_publication(self, events: Iterable[OpcuaEvent], *, more: bool) -> bool:
        """Take in the events of a publication. Whether some may be lost before it."""
        has_overflowed = False
        for event in events:
            self._counts[event.handle] += 1
            has_overflowed |= event.is_of(QUEUE_OVERFLOW)
        if more:
            return has_overflowed
        counts, self._counts = self._counts, Counter()
        return has_overflowed or any(1 < self._sizes.get(handle, 0) <= count for handle, count in counts.items())


def _key(event: OpcuaEvent) -> Key:
    fields = event.fields
    names = ("condition_id",) if "condition_id" in fields else ("source_node", "source_name", "condition_name")
    return (*(fields.get(name) for name in names), fields.get("branch_id"))


def _state(event: OpcuaEvent) -> OpcuaEvent:
    """An event without the fields that may change when a server sends a state again."""
    return replace(
        event,
        handle=0,
        receive_time_ns=0,
        fields={name: value for name, value in event.fields.items() if name != "event_id"},
    )
