"""The request of a pull whose answer is awaited, until when, and how large the next page may be. Core.

A deadline does not count while this node is late itself: it begins when the broker has taken the request, and is moved
while messages are unread. Each heartbeat of the peer moves it too.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from agent.replication.protocol.pacing import HEARTBEAT_MS, PageSize
from agent.replication.protocol.token_bucket import Priority, TokenBucket

BEHIND_MS, BEHIND_MS_MAX = 250, 30_000
"""How much longer to wait each time while this node is behind, and in all, so that a flood of messages does not hide
that an answer was lost."""
EMPTY_MS_MIN = 200
"""A page without facts that arrives sooner than this did not wait at the peer. Asking again at once would loop."""


@dataclass(frozen=True, slots=True)
class OpenFetch:
    """A request whose answer is awaited until `deadline_ms`, at most until `last_ms`. `unproven`: why an answer to it
    was not accepted."""

    fetch_id: int
    sent_ms: int
    deadline_ms: int
    last_ms: int
    wait_ms: int
    names_trail: bool = False
    unproven: str = ""

    @classmethod
    def sent(cls, fetch_id: int, now_ms: int, wait_ms: int, answer_ms: int, *, names_trail: bool) -> OpenFetch:
        """A request that waits at the peer for `wait_ms`; its answer may take `answer_ms` longer, and so may each
        heartbeat."""
        deadline_ms = now_ms + min(wait_ms, HEARTBEAT_MS) + answer_ms
        return cls(fetch_id, now_ms, deadline_ms, now_ms + wait_ms + answer_ms, wait_ms, names_trail)

    def taken(self, now_ms: int) -> OpenFetch:
        """The broker has taken it, after it may have waited for seconds behind others: its time begins now."""
        last_ms = self.last_ms + now_ms - self.sent_ms
        return replace(self, deadline_ms=last_ms - max(0, self.wait_ms - HEARTBEAT_MS), last_ms=last_ms)

    def still_waits(self, now_ms: int, answer_ms: int) -> OpenFetch:
        """The peer says that it waits there: its answer may take until after the next heartbeat."""
        next_ms = now_ms + HEARTBEAT_MS + answer_ms
        return replace(self, deadline_ms=max(self.deadline_ms, min(next_ms, self.last_ms)))

    def behind(self, now_ms: int) -> OpenFetch:
        """This node is late: it would ask again what is answered already, and be later for it."""
        if now_ms >= self.last_ms + BEHIND_MS_MAX:
            return self
        return replace(self, deadline_ms=max(self.deadline_ms, now_ms + BEHIND_MS))

    def again_ms(self, now_ms: int) -> int:
        """When to ask again after an answer without facts: at once, unless it should have waited at the peer."""
        return max(now_ms, self.sent_ms + EMPTY_MS_MIN) if self.wait_ms else now_ms


class FetchPace:
    """How large the next page may be, which the connection decides, and when it may be requested: the peer's bandwidth
    is limited, or not (None)."""

    def __init__(self, bytes_max: int, bandwidth: TokenBucket | None) -> None:
        self.size = PageSize(bytes_max)
        self._bandwidth = bandwidth
        self._paced_ms = 0
        self._since_ms: int | None = None  # waits for bandwidth

    def page_bytes(self) -> int:
        """The size to request."""
        return self.size.bytes if self._bandwidth is None else self._bandwidth.page_bytes(self.size.bytes)

    def ready_ms(self, now_ms: int, *, is_live: bool) -> int:
        """When a page may be requested; `is_live`: the pull is at the end of the log."""
        priority = Priority.LIVE if is_live else Priority.BACKLOG
        return now_ms if self._bandwidth is None else self._bandwidth.ready_ms(now_ms, priority)

    def note(self, now_ms: int, *, waits: bool) -> None:
        """Whether the pull waits for bandwidth from now on."""
        self._paced_ms = self.paced_ms(now_ms)
        self._since_ms = now_ms if waits else None

    def paced_ms(self, now_ms: int) -> int:
        """How long in all this pull has waited for the peer's bandwidth."""
        return self._paced_ms + (0 if self._since_ms is None else now_ms - self._since_ms)
