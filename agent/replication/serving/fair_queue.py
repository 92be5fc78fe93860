"""A fair queue: decides which zone's request begins, page is read, or answer is sent next. A core: no IO, no clock.

Each zone has a queue of its own, and the zones take turns, so the wait of one zone does not depend on how much another
one asks. Queues are bounded by the open requests of a zone (`limits.REQUESTS_OPEN_MAX`).
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class FairQueue(Generic[T]):
    """Work of several zones for a few places. At most `places` pieces are under way at once, `places_of_zone` of them
    for one zone; `may_begin` says whether a zone may begin another one now. The zone with the least work under way goes
    first; among equals, the one whose turn was longest ago."""

    def __init__(
        self,
        places: int,
        places_of_zone: int | Callable[[str], int],
        may_begin: Callable[[str], bool] = lambda _: True,
    ) -> None:
        self._places = places
        self._places_of = places_of_zone if callable(places_of_zone) else lambda _: places_of_zone
        self._may_begin = may_begin
        self._queues: dict[str, deque[T]] = {}  # in the order of their turns
        self._under_way: Counter[str] = Counter()

    def add(self, zone: str, work: T) -> None:
        """Add a piece of work of a zone."""
        queue = self._queues.get(zone)
        if queue is None:
            queue = self._queues[zone] = deque()  # tidy: bounded by the open requests of a zone
        queue.append(work)

    def take(self) -> T | None:
        """The next piece of work to begin; None if none may begin now."""
        if not self._queues or self._under_way.total() >= self._places:
            return None
        free = [
            zone for zone in self._queues if self._under_way[zone] < self._places_of(zone) and self._may_begin(zone)
        ]
        if not free:
            return None
        zone = min(free, key=self._under_way.__getitem__)  # among equals the one that has waited longest
        queue = self._queues.pop(zone)
        work = queue.popleft()
        self._under_way[zone] += 1
        if queue:  # the zone goes to the end of the line
            self._queues[zone] = queue
        return work

    def end(self, zone: str) -> None:
        """Work of a zone that was taken has ended."""
        self._under_way[zone] -= 1
        assert self._under_way[zone] >= 0
        if not self._under_way[zone]:
            del self._under_way[zone]
        if (queue := self._queues.pop(zone, None)) is not None:  # zones that came meanwhile have their turn first
            self._queues[zone] = queue

    def withdraw(self, zone: str, work: T) -> bool:
        """Withdraw a piece of work. False if it was already taken; then it must be ended."""
        queue = self._queues.get(zone)
        if queue is None or work not in queue:
            return False
        queue.remove(work)
        if not queue:
            del self._queues[zone]
        return True

    def waiting(self, zone: str) -> int:
        """How many pieces of work of a zone wait."""
        return len(self._queues.get(zone, ()))

    def zones_waiting(self) -> list[str]:
        """The zones whose work waits."""
        return list(self._queues)
