"""Which monitored items to create next, in calls a server will take.

Servers limit how many items one call may create and say so, wrongly at times. Calls start at the smaller of our own
limit and the server's; a call refused for its size is halved, and stays halved. A node the server refuses is *parked*:
it is tried again with other parked nodes only, after a pause that doubles, so that a vanished node never holds up the
others (influxdata/telegraf#19186).

An item whose status says that its node is gone never comes back by itself, also when a node of that name does: the item
is bound to the old one. `died` parks the node and has the item deleted, so that a new one is created (node-opcua).

What is wanted may change while a call is on its way (`want`): items of handles that are wanted no more are to be
deleted, also those that a call creates after all.

`Absences` knows since when a handle has no item that publishes: what its node does in that time is a gap. Core: knows
handles, items, status codes and times, no library.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, KeysView, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from agent.ingest.opcua.server_clock import ServerTime
from agent.ingest.quality import is_bad

PAUSE_DOUBLINGS_MAX = 10  # times the first pause, at most
RELAPSE_PAUSES = 2  # an item that dies within so many of its last pauses was never well: the pause goes on growing


class Created(NamedTuple):
    """A server's answer for one item: a status, and if it is good the server's number of the item, its sampling
    interval and its queue as the server revised them."""

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
        self._revived: dict[int, tuple[int, int]] = {}  # of items that were parked: (when created, their last pause)
        self._unwanted: list[int] = []  # items at the server, of handles wanted no more
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
        """Want these handles from now on. What is live stays untouched, what is parked keeps its pause."""
        self._wanted = dict.fromkeys(handles)
        known = {*self._pending, *self._live, *self._parked}
        self._pending = [handle for handle in self._pending if handle in self._wanted]
        self._pending += [handle for handle in self._wanted if handle not in known]
        self._parked = {handle: pause for handle, pause in self._parked.items() if handle in self._wanted}
        self._unwanted += [item for handle, item in self._live.items() if handle not in self._wanted]
        self._live = {handle: item for handle, item in self._live.items() if handle in self._wanted}
        self._revived = {handle: known for handle, known in self._revived.items() if handle in self._wanted}

    def died(self, deaths: Mapping[int, int], now_ns: int) -> dict[int, int]:
        """Items that will give no value any more, and their statuses: they are deleted, and their handles parked.
        Returns those that were live; for the others this is no news."""
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
        """Try every parked handle at once."""
        for pause in self._parked.values():
            pause.at_ns = 0

    def renew(self, handles: Iterable[int]) -> list[int]:
        """Delete the items of these handles and create them again: they are to be monitored in another way, or give
        nothing. Returns those that had one."""
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
        """Handles to create now: those never tried, then parked ones whose time has come, never both in one call."""
        if self._pending:
            return self._pending[: self._size]
        due = [handle for handle, pause in self._parked.items() if pause.at_ns <= now_ns]
        return due[: self._size]

    def limit(self, size_max: int) -> None:
        """The server's own word on the size of a call; 0 means it has none."""
        if size_max > 0:
            self._size = min(self._size, size_max)

    def call_refused(self, size: int) -> bool:
        """The whole call was too much. True if a smaller one is to be tried, False if it cannot be smaller."""
        if size <= 1:
            return False
        self._size = min(self._size, size // 2)
        return True

    def answered(self, handles: Sequence[int], results: Sequence[Created], now_ns: int) -> dict[int, int]:
        """Take in the result of a call. Returns the handles that are parked now for a reason that is news, with it."""
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
    """Since when, and why (the reason of a gap), a handle has no item that publishes."""

    reason: str
    since: ServerTime


@dataclass(slots=True)
class _Absent:
    absence: Absence
    is_declared: bool = False  # when an item was created
    is_longer: bool = False  # that item has gone without a value
    has_published: bool = False  # the first value may come ahead of the answer to the creation


class Absences:
    """The handles of one source without an item that publishes. They outlive sessions: what is absent at the end of one
    is still absent in the next, until that has created an item.

    An absence is declared when there is an item again, and is over when that publishes. Some servers create items of
    nodes that they do not have, and say so by the first notification: then it goes on, and is declared once more at its
    end.
    """

    def __init__(self) -> None:
        self._open: dict[int, _Absent] = {}  # bounded by the tag map through `keep`

    @property
    def handles(self) -> KeysView[int]:
        """Those that are absent."""
        return self._open.keys()

    def begin(self, handles: Iterable[int], reason: str, since: ServerTime) -> list[int]:
        """Nothing is published of these from now on, and perhaps since that moment. The first sign of it dates it.
        Returns those that were not absent."""
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
        """The last sign of life of a handle that is absent."""
        known = self._open.get(handle)
        return None if known is None else known.absence.since

    def keep(self, handles: Container[int], renumbered: Mapping[int, int]) -> None:
        """Another tag map: only these handles are wanted, and some go on under another number."""
        known = {renumbered.get(handle, handle): absent for handle, absent in self._open.items()}
        self._open = {handle: absent for handle, absent in known.items() if handle in handles}

    def among(self, created: Iterable[int]) -> dict[Absence, list[int]]:
        """Of these, which have an item now, those whose absence is to be declared."""
        absent = sorted(self._open.keys() & set(created))
        return self._by_absence(handle for handle in absent if not self._open[handle].is_declared)

    def declare(self, handles: Iterable[int]) -> None:
        """These have an item, and their absence is declared."""
        for handle in handles:
            if self._open[handle].has_published:
                del self._open[handle]
            else:
                self._open[handle].is_declared = True

    def publish(self, handles: Iterable[int]) -> dict[Absence, list[int]]:
        """An item publishes of these, which are absent. Returns those whose absence went on after it was declared."""
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
