"""Where a pull is in its peer's log: which page follows, what to ask for and what to confirm (one value); and the
accepted pages, which are stored one after the other. Core.

The place is a trail (agent/positions.py) with two ends: the pages after `stored` up to `accepted` are on their way to
the store. A page follows if it begins at the accepted end, whichever request it answers, or where the peer's log parts
from the trail, if the newest request named that. Nothing is skipped: facts that the peer no longer has are holes of a
page. What is stored may be confirmed, not what is merely accepted.
"""

from __future__ import annotations

from typing import NamedTuple

from agent.positions import NOTHING_READ, Position, Trail, continues, extended, last_of
from agent.replication.protocol.pacing import backoff_ms
from agent.replication.pulling.receiving.peer_contact import OpenFetch
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


class LogPlace(NamedTuple):
    """`log_end` is where the peer's log ends, if that is before the place. `more`: the peer had more behind its last
    page."""

    stored: Trail = ()
    accepted: Trail = ()
    is_placed: bool = True
    """Otherwise the place is the end of the log, where the consumer is registered, until an answer names it."""
    names_trail: bool = True
    """Whether the next request names the trail."""
    log_end: Position | None = None
    frontier: int = 0
    """What the peer knows as confirmed."""
    more: bool = True

    @property
    def offset(self) -> int:
        """How far the peer's log is stored here."""
        return last_of(self.stored).offset

    @property
    def after(self) -> Position | None:
        """Where the next page must begin, if the request does not name the trail."""
        return last_of(self.accepted) if self.is_placed and not self.names_trail else None

    @property
    def trail(self) -> Trail | None:
        """The trail, if the next request names it."""
        return self.accepted if self.is_placed and self.names_trail else None

    @property
    def confirm(self) -> Position | None:
        """What the next request confirms."""
        position = self.log_end or last_of(self.stored)
        return position if position.offset > self.frontier else None

    def fits(self, page: ArrivedPage, fetch: OpenFetch | None) -> bool:
        """Whether a page may follow the accepted ones. `fetch` is the newest request, if the page answers it; only that
        one's answer chooses a place for a pull that has none."""
        if not self.is_placed:
            return fetch is not None
        is_answer_to_trail = fetch is not None and fetch.names_trail
        return continues(self.accepted, page.after, is_answer_to_trail=is_answer_to_trail)

    def parts(self, page: ArrivedPage) -> bool:
        """Whether a page begins elsewhere: the log was read further, or is another one."""
        return self.is_placed and page.after[:2] != last_of(self.accepted)[:2]

    def accept(self, page: ArrivedPage) -> LogPlace:
        """The place after a page that fits."""
        return self._replace(
            stored=self.stored if self.is_placed or page.after == NOTHING_READ else (page.after,),
            accepted=extended(self.accepted, page.lives),
            is_placed=True,
            names_trail=False,
            log_end=None,
            more=page.more,
        )

    def accept_end(self, page: ArrivedPage) -> LogPlace:
        """The place after a page without offsets, which says where the log ends. If that is before the place, the next
        facts follow another position of the trail."""
        stored, accepted = self.stored, self.accepted
        if not self.is_placed:
            stored = accepted = () if page.after == NOTHING_READ else (page.after,)
        names_trail = page.after[:2] != last_of(accepted)[:2]
        is_stored = any(point.life == page.after.life and point.offset >= page.after.offset for point in stored)
        log_end = page.after if names_trail and is_stored else None
        return LogPlace(
            stored, accepted, names_trail=names_trail, log_end=log_end, frontier=self.frontier, more=page.more
        )

    def store(self, page: ArrivedPage) -> LogPlace:
        """The place when the oldest accepted page is durable."""
        return self._replace(stored=extended(self.stored, page.lives))

    def drop(self) -> LogPlace:
        """The place without the accepted pages, which are requested again."""
        return self._replace(accepted=self.stored, names_trail=True)

    def doubt(self) -> LogPlace:
        """The same place; the next request names the trail."""
        return self._replace(names_trail=True)


class AcceptedPages:
    """The accepted pages, on their way to the store one after the other. One that the store cannot take now is offered
    again after a pause; one that it refuses for good is dropped with those behind it, because a page is never skipped.

    `waits` says why the store repeatedly refuses a page for now, "" while it does not. `is_refused`: it has refused
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
    def is_empty(self) -> bool:
        """Whether all pages are stored."""
        return self._appending is None and not self._ahead

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
