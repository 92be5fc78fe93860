"""Which conditions a server retains, and what a refresh says about them (OPC 10000-9, 4.5 and 5.5.7).

A condition is *retained* while an operator has to look at it: active, or not yet acknowledged. A refresh sends the
state of each retained condition again, between RefreshStart and RefreshEnd. A state that is known already is passed
over; one that is not is taken, marked as refreshed. A condition that was retained and is not named by a complete
refresh is *absent*: it ended while no session was open.

Servers do not order the events of different monitored items. So a refresh counts from the moment it was asked for to
the end of the *burst* that holds its RefreshEnd: publications that the server sends at once, each but the last with
"more". A refresh during which events were lost proves nothing about absence.

Core: takes events, returns what to record.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from enum import Enum

from agent.ingest.opcua.events.event_fields import REFRESH_END, REFRESH_REQUIRED, REFRESH_START, Event

CONDITIONS_MAX = 20_000  # known at once, about 1 kB each; the end of one beyond them shows only as an event
REFRESH_PAUSE_S = 10.0  # between two refreshes; doubles while refreshes themselves overflow the server's queue
REFRESH_PAUSE_MAX_S = 600.0
REFRESH_MAX_S = 60.0  # for RefreshEnd to come

Key = tuple[object, ...]


class Refresh(Enum):
    """Where a refresh stands."""

    NONE = "none"
    ASKED = "asked"
    STARTED = "started"
    ENDED = "ended"  # RefreshEnd has come, the burst goes on


@dataclass(frozen=True, slots=True)
class AcceptedEvents:
    """What a publication is worth. `events` are to be recorded, those at the indices `refreshed` marked so; `absent`
    are the last known states of conditions that a refresh did not name; `is_complete`: a refresh is over, and `book`
    knows all that the server retains."""

    events: Sequence[Event]
    refreshed: frozenset[int] = frozenset()
    absent: Sequence[Event] = ()
    is_complete: bool = False
    is_refresh_required: bool = False


class RetainedConditions:
    """The retained conditions of one server."""

    def __init__(self) -> None:
        self._retained: dict[Key, Event] = {}
        self._refresh = Refresh.NONE
        self._start_ns = 0  # the server's time of RefreshStart; 0: not known
        self._seen: set[Key] = set()  # since the refresh was asked for, or else in this burst
        self._is_incomplete = False
        self._rescued_ns: dict[Key, int] | None = None  # times of the states that came while old ones are rescued

    @property
    def retained(self) -> list[Event]:
        """The last known states."""
        return list(self._retained.values())

    def knows(self, event: Event) -> bool:
        """Whether this is about a condition that is retained."""
        return event.is_condition and _key(event) in self._retained

    def ask(self) -> None:
        """A refresh is about to be asked for."""
        self._reset()
        self._refresh = Refresh.ASKED

    def abandon(self) -> None:
        """No refresh is under way any more: it was refused, or the session is at its end."""
        self._reset()

    def mark_incomplete(self) -> None:
        """Events were lost."""
        self._is_incomplete = True

    @property
    def is_refreshing(self) -> bool:
        return self._refresh is not Refresh.NONE

    def take(self, events: Iterable[Event], refresh_events: Iterable[Event], *, more: bool) -> AcceptedEvents:
        """Take in one publication: its events, and those about the refresh itself (`refresh_events`), of which one stands for
        each, however many items received it."""
        is_required = self._see_refresh_events(refresh_events)
        taken: list[Event] = []
        refreshed: set[int] = set()
        for event in events:
            is_old = self.is_refreshing and not (self._start_ns and event.time_ns >= self._start_ns)
            if event.is_condition and not self._note(event) and is_old:
                continue
            if event.is_condition and is_old:
                refreshed.add(len(taken))
            taken.append(event)
        if more:
            return AcceptedEvents(taken, frozenset(refreshed), is_refresh_required=is_required)
        absent, is_complete = self._end_burst()
        return AcceptedEvents(taken, frozenset(refreshed), absent, is_complete, is_required)

    def begin_rescue(self) -> None:
        """From now on also events come that a lost subscription held, beside those of the present one."""
        self._rescued_ns = {}

    def take_rescued(self, events: Iterable[Event]) -> None:
        """Take in events that a lost subscription held. A state that is older than one that has come already is not
        what the condition is in."""
        for event in events:
            if event.is_condition and event.time_ns >= (self._rescued_ns or {}).get(_key(event), 0):
                self._note(event)

    def end_rescue(self) -> None:
        """Nothing is rescued any more."""
        self._rescued_ns = None

    def _see_refresh_events(self, refresh_events: Iterable[Event]) -> bool:
        is_required = False
        for event in refresh_events:
            if event.is_of(REFRESH_START):
                self._refresh, self._start_ns = Refresh.STARTED, event.time_ns
            elif event.is_of(REFRESH_END) and self._refresh is Refresh.STARTED:
                self._refresh = Refresh.ENDED
            is_required |= event.is_of(REFRESH_REQUIRED)
        return is_required

    def _note(self, event: Event) -> bool:
        """Remember a state; False if it is the known one."""
        key = _key(event)
        self._seen.add(key)
        if self._rescued_ns is not None:
            self._rescued_ns[key] = event.time_ns
        known = self._retained.get(key)
        if event.fields.get("retain") is not True:
            self._retained.pop(key, None)
            return True
        if known is not None and _state(known) == _state(event):
            return False
        if known is not None or len(self._retained) < CONDITIONS_MAX:
            self._retained[key] = event
        return True

    def _end_burst(self) -> tuple[Sequence[Event], bool]:
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
    """When to ask for a refresh. Times in seconds of a clock that never goes back."""

    def __init__(self) -> None:
        self._due_s: float | None = None
        self._asked_s = float("-inf")
        self._pause_s = REFRESH_PAUSE_S
        self._is_refused = False

    def begin(self, now_s: float) -> None:
        """A new subscription: what was refused in the one before may be possible now."""
        self._due_s, self._is_refused = now_s, False

    def want(self, now_s: float) -> None:
        """A refresh is needed, as soon as the pause allows one."""
        if not self._is_refused and self._due_s is None:
            self._due_s = max(now_s, self._asked_s + self._pause_s)

    def is_due(self, now_s: float) -> bool:
        return self._due_s is not None and now_s >= self._due_s

    def asked(self, now_s: float) -> None:
        self._asked_s, self._due_s = now_s, None

    def refuse(self) -> None:
        """The server has no refresh."""
        self._is_refused, self._due_s = True, None

    def complete(self) -> None:
        self._pause_s = REFRESH_PAUSE_S

    def repeat_later(self, now_s: float) -> None:
        """A refresh lost events, so it has to be repeated, later each time."""
        self._pause_s = min(self._pause_s * 2, REFRESH_PAUSE_MAX_S)
        self.want(now_s)

    def is_overdue(self, now_s: float) -> bool:
        """Whether the end of a refresh that is under way should have come."""
        return now_s - self._asked_s > REFRESH_MAX_S


def _key(event: Event) -> Key:
    fields = event.fields
    names = ("condition_id",) if "condition_id" in fields else ("source_node", "source_name", "condition_name")
    return (*(fields.get(name) for name in names), fields.get("branch_id"))


def _state(event: Event) -> Event:
    """An event without what a server may change when it sends a state again."""
    return replace(
        event,
        handle=0,
        receive_time_ns=0,
        fields={name: value for name, value in event.fields.items() if name != "event_id"},
    )
