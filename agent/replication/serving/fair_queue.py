"""A fair queue: decides which node's request begins, page is read, or answer is sent next. A core: no IO, no clock.

Each node has a queue of its own, and the nodes take turns, so the wait of one node does not depend on how much another
one asks. Queues are bounded by the open requests of a node (`limits.REQUESTS_OPEN_MAX`). Times are in ms of one
monotonic clock.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable
from typing import Generic, TypeVar

from agent.replication.protocol.pacing import Alarm

T = TypeVar("T")


class FairQueue(Generic[T]):
    """Work of several nodes for a few places. At most `places` pieces are under way at once, `places_of` of them for
    one node, given the present time. `ready_ms` says when a node may begin another one; None: not known, `take` is
    called again when it may be. The node with the least work under way goes first; among equals, the one whose turn was
    longest ago."""

    def __init__(
        self,
        places: int,
        places_of: Callable[[str, int], int] = lambda *_: 1,
        ready_ms: Callable[[str, int], int | None] = lambda _node, now_ms: now_ms,
    ) -> None:
        self._places, self._places_of, self._ready_ms = places, places_of, ready_ms
        self._queues: dict[str, deque[T]] = {}  # in the order of their turns
        self._under_way: Counter[str] = Counter()

    def add(self, node: str, work: T) -> None:
        """Add a piece of work of a node."""
        queue = self._queues.get(node)
        if queue is None:
            queue = self._queues[node] = deque()  # tidy: bounded by the open requests of a node
        queue.append(work)

    def take_work(self, now_ms: int = 0) -> T | None:
        """The next piece of work to begin; None if none may begin now."""
        if not self._queues or self._under_way.total() >= self._places:
            return None
        free = [
            node
            for node in self._queues
            if self._under_way[node] < self._places_of(node, now_ms)
            and (at_ms := self._ready_ms(node, now_ms)) is not None
            and at_ms <= now_ms
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

    def due_ms(self, now_ms: int) -> int | None:
        """When `take` may give work that it does not give now, if nothing else happens; None for never."""
        due = [at_ms for node in self._queues if (at_ms := self._ready_ms(node, now_ms)) is not None]
        return min((at_ms for at_ms in due if at_ms > now_ms), default=None)

    def end_work(self, node: str) -> None:
        """Work of a node that was taken has ended."""
        self._under_way[node] -= 1
        assert self._under_way[node] >= 0
        if not self._under_way[node]:
            del self._under_way[node]
        if (queue := self._queues.pop(node, None)) is not None:  # nodes that came meanwhile have their turn first
            self._queues[node] = queue

    def leave(self, node: str, work: T) -> bool:
        """End a piece of work, or withdraw it if it was not taken yet; whether it was taken."""
        queue = self._queues.get(node)
        if queue is None or work not in queue:
            self.end_work(node)
            return True
        queue.remove(work)
        if not queue:
            del self._queues[node]
        return False

    def is_empty(self) -> bool:
        """Whether no work waits."""
        return not self._queues


class Dispatcher(Generic[T]):
    """Begins work when it has its turn: at once, or by an alarm."""

    def __init__(
        self,
        queue: FairQueue[T],
        begin: Callable[[T], object],
        now_ms: Callable[[], int],
        call_later: Callable[[float, Callable[[], object]], Callable[[], None]],
    ) -> None:
        self._queue, self._begin, self._now_ms = queue, begin, now_ms
        self._alarm = Alarm(call_later, self.begin_due)

    def begin_due(self) -> None:
        """Begin all work that has its turn."""
        # One time for turns and alarm: a node that becomes ready in between would otherwise get no alarm.
        now_ms = self._now_ms()
        while (work := self._queue.take_work(now_ms)) is not None:
            self._begin(work)
        self._alarm.set(self._queue.due_ms(now_ms), now_ms)
