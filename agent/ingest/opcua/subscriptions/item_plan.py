"""Decides which monitored items to create next, in calls that the server accepts.

Servers limit how many items one call may create, and the limit that they declare may be wrong. Calls start with the
smaller of our own limit and the server's. A call refused for its size is halved, and calls stay so small. A node that
the server refuses is *parked*: it is tried again after a pause that doubles, in calls with parked nodes only, so that a
missing node does not delay the others (influxdata/telegraf#19186).

An item whose node was deleted does not recover, even if a node with that id exists again, because the item is bound to
the old node. `died` parks the node and has the item deleted, so that a new one is created (node-opcua).

The wanted handles may change while a call is in flight (`want`). Items of handles that are no longer wanted are
deleted, including those that the call then creates.

`Groups` distributes the items of a server over subscriptions, within its limits and ours. There are several, because a
subscription is lost as a whole, and because some servers limit the items of one. Items fill one subscription after the
other, and stay where they are as long as they are wanted; those for which the server has no room are `unplaced`.

Core: knows handles, items, limits, status codes and times.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from agent.ingest.quality import is_bad

PAUSE_DOUBLINGS_MAX = 10  # longest pause, in first pauses
NEVER_NS = 2**63  # a time of `died`: only `retry` tries the handle again


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
        self._unwanted: list[int] = []  # items at the server that are to be deleted

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

    def died(self, deaths: Mapping[int, int], now_ns: int) -> dict[int, int]:
        """Delete the items of these handles, which will give no more values, and park the handles with these statuses.
        Returns those that were live."""
        news: dict[int, int] = {}
        for handle, status in deaths.items():
            item = self._live.pop(handle, None)
            if item is None:
                continue
            self._unwanted.append(item)
            self._park(handle, status, self._pause_ns, now_ns)
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

    def item(self, handle: int) -> int | None:
        """The server's number of a live item."""
        return self._live.get(handle)

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


@dataclass(frozen=True, slots=True)
class ServerLimits:
    """The limits that a server declares; 0: it has or declares no such limit."""

    items_per_call: int = 0
    nodes_per_read: int = 0
    items_per_subscription: int = 0
    items: int = 0
    subscriptions_per_session: int = 0
    subscriptions: int = 0
    nodes_per_browse: int = 0


def limit_of(value: object) -> int:
    """A limit that a server declares. 0, which means no limit (OPC 10000-5, 6.3.11), for anything that is not a
    number."""
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else 0


class Groups:
    """The handles of each subscription. Each subscription has one more item, the server's clock."""

    def __init__(self, limits: ServerLimits, items_per_subscription_max: int) -> None:
        declared = [n - 1 for n in (limits.items_per_subscription, limits.items) if n]
        self._size_max = max(1, min(declared, default=2**31))  # limit of the server
        self._size = min(items_per_subscription_max, self._size_max)
        # A limit for all sessions together also limits this one.
        self._told_max = min([n for n in (limits.subscriptions_per_session, limits.subscriptions) if n], default=0)
        self._count_max = self._told_max
        self._items_max = limits.items
        self._groups: list[dict[int, None]] = []
        self.unplaced = self._taken = frozenset[int]()

    def limit_count(self, count: int) -> None:
        """The server refused to create more than `count` subscriptions."""
        self._count_max = count
        del self._groups[count:]

    def lift_limit(self) -> bool:
        """Expect no more refusal than the server declares. False if that leaves every handle where it is."""
        is_limited = bool(self.unplaced) and self._count_max != self._told_max
        if is_limited:
            self._count_max = self._told_max
        return is_limited

    def want(self, handles: Iterable[int]) -> list[list[int]]:
        """Distribute these handles. Returns them by subscription. A subscription keeps its place even if it is
        empty."""
        wanted = dict.fromkeys(handles)
        if self._count_max:  # our own limit is exceeded rather than leaving a tag without an item
            self._size = min(self._size_max, max(self._size, math.ceil(len(wanted) / self._count_max)))
        self._groups = [{h: None for h in group if h in wanted} for group in self._groups]
        placed = {handle for group in self._groups for handle in group}
        waiting = [handle for handle in wanted if handle not in placed]
        waiting.reverse()
        room = self._room(len(placed))
        for group in self._groups:
            room = self._fill(group, waiting, room)
        while waiting and room > 1 and (not self._count_max or len(self._groups) < self._count_max):
            group = {}
            self._groups.append(group)
            room = self._fill(group, waiting, self._room(len(wanted) - len(waiting)))
        self.unplaced = frozenset(waiting)
        return [list(group) for group in self._groups]

    def take_unplaced(self) -> frozenset[int]:
        """The handles for which there is no room, without those that were taken before."""
        news, self._taken = self.unplaced - self._taken, self.unplaced
        return news

    def _room(self, placed: int) -> int:
        """How many more items the server accepts, with the clocks of the subscriptions counted."""
        return self._items_max - len(self._groups) - placed if self._items_max else 2**31

    def _fill(self, group: dict[int, None], waiting: list[int], room: int) -> int:
        while waiting and room > 0 and len(group) < self._size:
            group[waiting.pop()] = None
            room -= 1
        return room
