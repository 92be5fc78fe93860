"""Decides which monitored items to create next, in calls that the server accepts.

Servers limit how many items one call may create, and the limit that they declare may be wrong. Calls start with the
smaller of our own limit and the server's. A call refused for its size is halved, and calls stay so small. A node that
the server refuses is *parked*: it is tried again after a pause that doubles, in calls with parked nodes only, so that a
missing node does not delay the others (influxdata/telegraf#19186).

An item whose node was deleted does not recover, even if a node with that id exists again, because the item is bound to
the old node. `died` parks the node and has the item deleted, so that a new one is created (node-opcua).

The wanted handles may change while a call is in flight (`want`). Items of handles that are no longer wanted are
deleted, including those that the call then creates.

`Absences` knows since when a handle has no item that publishes: that time is a gap. Core: knows handles, items, status
codes and times.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, KeysView, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from agent.ingest.opcua.server_clock import ServerTime
from agent.ingest.quality import is_bad

PAUSE_DOUBLINGS_MAX = 10  # longest pause, in first pauses
RELAPSE_PAUSES = 2  # an item that dies within two of its last pauses was not well: the pause goes on growing


class Created(NamedTuple):
    """A server's answer for one item: a status, and if it is good, the server's number of the item, and its revised
    sampling interval and queue size."""

    status: int
    item: int = 0
    sampling_ms: float = 0.0
    queue_size: int = 0


@dataclass(slots=True)
class _Pause:
    at_ns: int
    pause_ns: int
    quality: int


class ItemPlan:
    """The wanted items of one session, by handle: pending, live or parked."""

    def __init__(self, handles: Iterable[int], size_max: int, pause_ns: int) -> None:
        assert size_max >= 1, "a call creates at least one item"
        self._wanted = dict.fromkeys(handles)
        self._pending = list(self._wanted)
        self._size = size_max
        self._pause_ns = pause_ns
        self._parked: dict[int, _Pause] = {}
        self._live: dict[int, int] = {}
        self._revived: dict[
            int, tuple[int, int]
        ] = {}  # for items that were parked: when they were created, and their last pause
        self._unwanted: list[int] = []  # items at the server that are to be deleted
        self._created: set[int] = set()  # handles with a new item since `take_created`

    @property
    def wanted(self) -> list[int]:
        return list(self._wanted)

    @property
    def parked(self) -> frozenset[int]:
        return frozenset(self._parked)

    @property
    def live(self) -> frozenset[int]:
        return frozenset(self._live)

    def want(self, handles: Iterable[int]) -> None:
        """Want these handles from now on. Live items are kept, and parked handles keep their pauses."""
        self._wanted = dict.fromkeys(handles)
        known = {*self._pending, *self._live, *self._parked}
        self._pending = [handle for handle in self._pending if handle in self._wanted]
        self._pending += [handle for handle in self._wanted if handle not in known]
        self._parked = {handle: pause for handle, pause in self._parked.items() if handle in self._wanted}
        self._unwanted += [item for handle, item in self._live.items() if handle not in self._wanted]
        self._live = {handle: item for handle, item in self._live.items() if handle in self._wanted}
        self._revived = {handle: known for handle, known in self._revived.items() if handle in self._wanted}

    def died(self, deaths: Mapping[int, int], now_ns: int) -> dict[int, int]:
        """Delete the items of these handles, which will give no more values, and park the handles with these statuses.
        Returns those that were live."""
        news: dict[int, int] = {}
        for handle, status in deaths.items():
            item = self._live.pop(handle, None)
            if item is None:
                continue
            created_ns, pause_ns = self._revived.pop(handle, (0, 0))
            relapsed = now_ns - created_ns < RELAPSE_PAUSES * pause_ns
            self._unwanted.append(item)
            self._park(handle, status, self._longer(pause_ns) if relapsed else self._pause_ns, now_ns)
            news[handle] = status
        return news

    def retry(self) -> None:
        """Try every parked handle now."""
        for pause in self._parked.values():
            pause.at_ns = 0

    def renew(self, handles: Iterable[int]) -> list[int]:
        """Delete the items of these handles and create them again, because they are to be monitored differently or are
        dead. Returns the handles that had an item."""
        renewed: list[int] = []
        for handle in handles:
            item = self._live.pop(handle, None)
            if item is not None:
                self._unwanted.append(item)
                self._pending.append(handle)
                renewed.append(handle)
        return renewed

    def take_created(self) -> set[int]:
        """The handles of which an item was created since the last call."""
        created, self._created = self._created, set()
        return created

    def item(self, handle: int) -> int | None:
        """The server's number of a live item."""
        return self._live.get(handle)

    @property
    def size(self) -> int:
        """How many items the next call may name."""
        return self._size

    def next_deletion(self) -> Sequence[int]:
        """Items to delete now, in one call."""
        return self._unwanted[: self._size]

    def deleted(self, items: Sequence[int]) -> None:
        """These items are no more."""
        gone = set(items)
        self._unwanted = [item for item in self._unwanted if item not in gone]

    def next_call(self, now_ns: int) -> Sequence[int]:
        """Handles to create items for now: first those never tried, then the parked ones that are due, never both in
        one call."""
        if self._pending:
            return self._pending[: self._size]
        due = [handle for handle, pause in self._parked.items() if pause.at_ns <= now_ns]
        return due[: self._size]

    def limit(self, size_max: int) -> None:
        """The size of a call that the server declares; 0: none."""
        if size_max > 0:
            self._size = min(self._size, size_max)

    def call_refused(self, size: int) -> bool:
        """The call was refused for its size. True if a smaller one is to be tried; False if it had one item."""
        if size <= 1:
            return False
        self._size = min(self._size, size // 2)
        return True

    def answered(self, handles: Sequence[int], results: Sequence[Created], now_ns: int) -> dict[int, int]:
        """Take in the results of a call. Returns the handles that are parked now for a new reason, with their
        statuses."""
        assert len(handles) == len(results), "one result for each item"
        news: dict[int, int] = {}
        asked = set(handles)
        self._pending = [handle for handle in self._pending if handle not in asked]
        for handle, result in zip(handles, results, strict=True):
            status, item = result.status, result.item
            known = self._parked.pop(handle, None)
            if not is_bad(status):
                if handle not in self._wanted:
                    self._unwanted.append(item)
                    continue
                self._live[handle] = item
                self._created.add(handle)
                if known is not None:
                    self._revived[handle] = now_ns, known.pause_ns
                continue
            if handle not in self._wanted:
                continue
            self._park(handle, status, self._pause_ns if known is None else self._longer(known.pause_ns), now_ns)
            if known is None or known.quality != status:
                news[handle] = status
        return news

    def _park(self, handle: int, status: int, pause_ns: int, now_ns: int) -> None:
        self._parked[handle] = _Pause(now_ns + pause_ns, pause_ns, status)

    def _longer(self, pause_ns: int) -> int:
        return min(pause_ns * 2, self._pause_ns * PAUSE_DOUBLINGS_MAX)


class Absence(NamedTuple):
    """Since when a handle has no item that publishes, and why (the reason of a gap)."""

    reason: str
    since: ServerTime


@dataclass(slots=True)
class _Absent:
    absence: Absence
    is_declared: bool = False  # an item was created, and the gap declared
    is_longer: bool = False  # the item turned out to be without a node
    has_published: bool = False  # the first value may arrive before the answer to the creation


class Absences:
    """The handles of one source without an item that publishes. Absences continue across sessions, until the next
    session has created an item.

    An absence is declared when there is an item again, and ends when that publishes a value. Some servers create items
    for nodes that do not exist and report that with the first notification. Then the absence continues, and is declared
    again at its end.
    """

    def __init__(self) -> None:
        self._open: dict[int, _Absent] = {}  # bounded by the tag map through `keep`

    @property
    def handles(self) -> KeysView[int]:
        """The absent handles."""
        return self._open.keys()

    def begin(self, handles: Iterable[int], reason: str, since: ServerTime) -> list[int]:
        """Begin an absence of these handles, at the latest now and perhaps since `since`. A known absence keeps its
        beginning. Returns the handles that were not absent."""
        news: list[int] = []
        for handle in handles:
            known = self._open.get(handle)
            if known is None:
                self._open[handle] = _Absent(Absence(reason, since))
                news.append(handle)
            else:
                known.absence = Absence(reason, known.absence.since)
                known.is_longer, known.has_published = known.is_declared, False
        return news

    def since(self, handle: int) -> ServerTime | None:
        """The beginning of an absence; None if the handle is not absent."""
        known = self._open.get(handle)
        return None if known is None else known.absence.since

    def keep(self, handles: Container[int], renumbered: Mapping[int, int]) -> None:
        """Take over a new tag map: only these handles are wanted, and some have a new number."""
        known = {renumbered.get(handle, handle): absent for handle, absent in self._open.items()}
        self._open = {handle: absent for handle, absent in known.items() if handle in handles}

    def among(self, created: Iterable[int]) -> dict[Absence, list[int]]:
        """Of these handles, which have an item now, those whose absence is to be declared."""
        absent = sorted(self._open.keys() & set(created))
        return self._by_absence(handle for handle in absent if not self._open[handle].is_declared)

    def declare(self, handles: Iterable[int]) -> None:
        """The absence of these handles, which have an item now, is declared."""
        for handle in handles:
            if self._open[handle].has_published:
                del self._open[handle]
            else:
                self._open[handle].is_declared = True

    def publish(self, handles: Iterable[int]) -> dict[Absence, list[int]]:
        """The items of these absent handles have published a value. Returns those whose absence continued after it was
        declared."""
        for handle in handles:
            self._open[handle].has_published = True
        back = sorted(handle for handle in handles if self._open[handle].is_declared)
        found = self._by_absence(handle for handle in back if self._open[handle].is_longer)
        for handle in back:
            del self._open[handle]
        return found

    def _by_absence(self, handles: Iterable[int]) -> dict[Absence, list[int]]:
        found: dict[Absence, list[int]] = {}
        for handle in handles:
            found.setdefault(self._open[handle].absence, []).append(handle)
        return found
