"""Whose turn it is: the nodes take turns with what they ask (`FairQueue`), each waits while it has used more than its
rate (`Pacer`), and those of all links share a few places and the processor time of reading (`ReadTurns`). A core: no
IO, no clock. Times are in ms of one monotonic clock.

Each node has a queue of its own, so the wait of one does not depend on how much another one asks. Queues are bounded by
the open requests of a node (`limits.REQUESTS_OPEN_MAX`). The cost of a request is known only afterwards: a token bucket
may be overdrawn by one request, and the next request of the node waits until the debt is paid off.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable
from enum import Enum
from typing import Generic, TypeVar

from agent.replication.protocol.pacing import Alarm
from agent.replication.protocol.token_bucket import Priority, TokenBucket
from agent.replication.serving.limits import (
    CHANGES_PER_SECOND_MAX,
    CONFIRM_COMMITS_PER_SECOND,
    READ_MS_PER_SECOND,
    READS_MAX,
    READS_OF_NODE_MAX,
    SEARCH_MS_PER_SECOND,
    SHARED_MS,
)
from agent.settings.peers import PeerLimits

T = TypeVar("T")

ReadyMs = Callable[[int], int | None]
"""From the present time, when the link of a node can take another answer for it. None: not known; `take_work` is
called again when the link has sent something."""


class FairQueue(Generic[T]):
    """Work of several nodes for a few places. At most `places` pieces are under way at once, `places_of` of them for
    one node, given the present time. `ready_ms` says when a node may begin another one; None: not known, `take_work` is
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
        """When `take_work` may give work that it does not give now, if nothing else happens; None for never."""
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


class ReadTurns(FairQueue[T]):
    """The places for reading, and the work that waits for one.

    Reading costs processor time even if the answer is never used: a broker accepts the answers for a session that does
    not read, and drops them. So while several nodes ask, each waits after a read until its share of the time has paid
    for it. A node that asks alone gets all that it asks for.
    """

    def __init__(self) -> None:
        super().__init__(READS_MAX, self._read_places, self._read_ready_ms)
        self._ready: dict[str, ReadyMs] = {}
        self._asked_ms: dict[str, int] = {}  # by node: when it last asked
        self._time: dict[str, TokenBucket] = {}  # in microseconds

    def ask(self, node: str, work: T, ready_ms: ReadyMs, now_ms: int) -> None:
        """Queue work of a node, which gets a place when the node's link is ready."""
        self._asked_ms[node] = now_ms
        self._ready[node] = ready_ms
        self.add(node, work)

    def end_read(self, node: str, work: T, took_us: int, now_ms: int) -> None:
        """Free the place of work that has ended, or withdraw work that has no place yet. `took_us`: the processor time
        that it used."""
        if self.leave(node, work) and self._is_shared(node, now_ms):
            self._time_of(node).spend(took_us, now_ms)  # a node that was alone would begin in debt

    def _is_shared(self, node: str, now_ms: int) -> bool:
        """Whether another node has asked within SHARED_MS."""
        return any(at_ms > now_ms - SHARED_MS for asking, at_ms in self._asked_ms.items() if asking != node)

    def _read_places(self, node: str, now_ms: int) -> int:
        return 1 if self._is_shared(node, now_ms) else READS_OF_NODE_MAX

    def _read_ready_ms(self, node: str, now_ms: int) -> int | None:
        if (at_ms := self._ready[node](now_ms)) is None or not self._is_shared(node, now_ms):
            return at_ms
        return max(at_ms, self._time_of(node).ready_ms(now_ms, Priority.BACKLOG))

    def _time_of(self, node: str) -> TokenBucket:
        if (known := self._time.get(node)) is None:
            known = self._time[node] = TokenBucket(READ_MS_PER_SECOND * 1000)
        return known


class Use(Enum):
    """What a node uses."""

    REQUESTS = "requests that begin"
    ANSWER_BYTES = "bytes of answers"
    SEARCH_MS = "time of searches for latest values"
    CONFIRMS = "confirmations for which it waits, each committed at once"


class Pacer:
    """The token buckets of the nodes."""

    def __init__(self, limits_of: Callable[[str], PeerLimits]) -> None:
        self._limits_of = limits_of
        self._buckets: dict[tuple[Use, str], TokenBucket | None] = {}

    def ready_ms(self, use: Use, node: str, now_ms: int) -> int:
        """When a node may use it again; `now_ms` for at once."""
        bucket = self._bucket(use, node)
        return now_ms if bucket is None else bucket.ready_ms(now_ms, Priority.BACKLOG)

    def spend(self, use: Use, node: str, amount: int, now_ms: int) -> None:
        """Count what a node uses."""
        if (bucket := self._bucket(use, node)) is not None:
            bucket.spend(amount, now_ms)

    def changed(self, node: str, now_ms: int) -> None:
        """Count a commit without a fact for a request of a node. It costs as many requests as limit the node to
        CHANGES_PER_SECOND_MAX such commits."""
        cost = max(1, self._rate(Use.REQUESTS, node) // CHANGES_PER_SECOND_MAX)
        self.spend(Use.REQUESTS, node, cost, now_ms)

    def _bucket(self, use: Use, node: str) -> TokenBucket | None:
        if (use, node) not in self._buckets:
            rate = self._rate(use, node)
            self._buckets[use, node] = TokenBucket(rate) if rate else None
        return self._buckets[use, node]

    def _rate(self, use: Use, node: str) -> int:
        """So much in a second; 0 is no limit."""
        match use:
            case Use.REQUESTS:
                return self._limits_of(node).requests_per_second_max
            case Use.ANSWER_BYTES:
                return self._limits_of(node).answer_bytes_per_second_max
            case Use.SEARCH_MS:
                return SEARCH_MS_PER_SECOND
            case Use.CONFIRMS:
                return CONFIRM_COMMITS_PER_SECOND
