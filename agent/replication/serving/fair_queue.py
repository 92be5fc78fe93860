"""A fair queue: decides which node's request begins, page is read, or answer is sent next. A core: no IO, no clock.

Each node has a queue of its own, and the nodes take turns, so the wait of one node does not depend on how much another
one asks. Queues are bounded by the open requests of a node (`limits.REQUESTS_OPEN_MAX`).
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class FairQueue(Generic[T]):
    """Work of several nodes for a few places. At most `places` pieces are under way at once, `places_of_node` of them
    for one node; `may_begin` says whether a node may begin another one now. The node with the least work under way goes
    first; among equals, the one whose turn was longest ago."""

    def __init__(
        self,
        places: int,
        places_of_node: int | Callable[[str], int],
        may_begin: Callable[[str], bool] = lambda _: True,
    ) -> None:
        self._places = places
        self._places_of = places_of_node if callable(places_of_node) else lambda _: places_of_node
        self._may_begin = may_begin
        self._queues: dict[str, deque[T]] = {}  # in the order of their turns
        self._under_way: Counter[str] = Counter()

    def add(self, node: str, work: T) -> None:
        """Add a piece of work of a node."""
        queue = self._queues.get(node)
        if queue is None:
            queue = self._queues[node] = deque()  # tidy: bounded by the open requests of a node
        queue.append(work)

    def take(self) -> T | None:
        """The next piece of work to begin; None if none may begin now."""
        if not self._queues or self._under_way.total() >= self._places:
            return None
        free = [
            node for node in self._queues if self._under_way[node] < self._places_of(node) and self._may_begin(node)
        ]
        if not free:
            return None
        node = min(free, key=self._under_way.__getitem__)  # among equals the one that has waited longest
        queue = self._queues.pop(node)
        work = queue.popleft()
        self._under_way[node] += 1
        if queue:  # the node goes to the end of the line
            self._queues[node] = queue
        return work

    def end(self, node: str) -> None:
        """Work of a node that was taken has ended."""
        self._under_way[node] -= 1
        assert self._under_way[node] >= 0
        if not self._under_way[node]:
            del self._under_way[node]
        if (queue := self._queues.pop(node, None)) is not None:  # nodes that came meanwhile have their turn first
            self._queues[node] = queue

    def withdraw(self, node: str, work: T) -> bool:
        """Withdraw a piece of work. False if it was already taken; then it must be ended."""
        queue = self._queues.get(node)
        if queue is None or work not in queue:
            return False
        queue.remove(work)
        if not queue:
            del self._queues[node]
        return True

    def waiting(self, node: str) -> int:
        """How many pieces of work of a node wait."""
        return len(self._queues.get(node, ()))

    def nodes_waiting(self) -> list[str]:
        """The nodes whose work waits."""
        return list(self._queues)
