"""The accepted pages of a pull, on their way to the store one after the other. Core.

A page that the store cannot take now is offered again after a pause; one that it refuses for good is dropped with those
behind it, because a page is never skipped.
"""

from __future__ import annotations

from agent.replication.protocol.pacing import backoff_ms
from agent.replication.pulling.receiving.pull_events import (
    STORING_TRANSITIONS,
    Append,
    ArrivedPage,
    ReceiverSettings,
    Storing,
)

PAGES_AHEAD_MAX = 2
"""One page can be under way while another waits for the disk. With only one, the times of round trip and check would
add up."""


class AcceptedPages:
    """`waits` says why the store repeatedly refuses a page for now, "" while it does not. `is_refused`: it has refused
    the last one for good."""

    def __init__(self, settings: ReceiverSettings) -> None:
        self._settings = settings
        self.state = Storing.IDLE
        self._appending: Append | None = None
        self._ahead: tuple[Append, ...] = ()
        self._pauses = 0
        self._offer_at_ms = 0
        self.waits = ""
        self.is_refused = False

    @property
    def has_room(self) -> bool:
        """Whether another page may be accepted."""
        return len(self._ahead) < PAGES_AHEAD_MAX

    @property
    def is_storing(self) -> bool:
        """Whether a page is at the store."""
        return self._appending is not None

    @property
    def offer_at_ms(self) -> int | None:
        """When the page is to be offered again."""
        return self._offer_at_ms if self.state is Storing.PAUSED else None

    def accept(self, page: Append) -> None:
        assert self.has_room
        self._ahead = (*self._ahead, page)

    def next(self, now_ms: int) -> Append | None:
        """The page to store now: the next one, or the same again after its pause."""
        if self.state is Storing.IDLE and self._ahead:
            self._appending, *later = self._ahead
            self._ahead = tuple(later)
        elif self.state is not Storing.PAUSED or now_ms < self._offer_at_ms:
            return None
        self._to(Storing.APPENDING)
        return self._appending

    def stored(self) -> ArrivedPage:
        """The page is durable."""
        assert self._appending is not None
        page, self._appending = self._appending.page, None
        self._pauses, self.waits, self.is_refused = 0, "", False
        self._to(Storing.IDLE)
        return page

    def pause(self, reason: str, now_ms: int, jitter: float) -> None:
        """The store cannot take the page now."""
        settings = self._settings
        wait_ms = backoff_ms(settings.pause_ms_min, settings.pause_ms_max, self._pauses, jitter)
        self._offer_at_ms, self._pauses, self.waits = now_ms + wait_ms, self._pauses + 1, reason
        self._to(Storing.PAUSED)

    def refuse(self) -> None:
        """The store refuses the page for good. Why it refused pages for now stays until it takes one."""
        self._appending, self._ahead = None, ()
        self._pauses, self.is_refused = 0, True
        self._to(Storing.IDLE)

    def _to(self, state: Storing) -> None:
        assert state in STORING_TRANSITIONS[self.state], f"{self.state} to {state}"
        self.state = state
