"""Distributes the items of a server over subscriptions, within its limits and ours.

There are several, because a subscription is lost as a whole, and because some servers limit the items of one. Items
fill one subscription after the other. An item stays in its subscription as long as it is wanted. Items for which the
server has no room are reported (`unplaced`). Core: knows handles and limits.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ServerLimits:
    """The limits that a server declares; 0: it has or declares no such limit."""

    items_per_call: int = 0
    nodes_per_read: int = 0
    items_per_subscription: int = 0
    items: int = 0
    subscriptions_per_session: int = 0
    subscriptions: int = 0


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
        self._count_max = min([n for n in (limits.subscriptions_per_session, limits.subscriptions) if n], default=0)
        self._items_max = limits.items
        self._groups: list[dict[int, None]] = []
        self.unplaced: frozenset[int] = frozenset()

    def limit_count(self, count: int) -> None:
        """The server refused to create more than `count` subscriptions."""
        self._count_max = count
        del self._groups[count:]

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

    def _room(self, placed: int) -> int:
        """How many more items the server accepts, with the clocks of the subscriptions counted."""
        return self._items_max - len(self._groups) - placed if self._items_max else 2**31

    def _fill(self, group: dict[int, None], waiting: list[int], room: int) -> int:
        while waiting and room > 0 and len(group) < self._size:
            group[waiting.pop()] = None
            room -= 1
        return room
