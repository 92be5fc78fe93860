"""Telemetry spans of one pull: its fetches, the storing of its pages, its confirmations, and its bootstrap.

The runner reports each event after the core has handled it and before it carries out the effects. Spans that have ended
are found by comparing states. A fetch that the core gives up ends with the event that caused it, and so do its
confirmations.
"""

from __future__ import annotations

from agent.positions import last_of
from agent.replication.pulling.receiving.pull_events import (
    Append,
    Appended,
    AppendFailed,
    Asking,
    Effect,
    Event,
    Fetch,
    FetchFailed,
    LinkDown,
    PageArrived,
    Tick,
)
from agent.replication.pulling.receiving.receiver import Receiver
from agent.telemetry import Side, Span, Started, Telemetry

CONFIRMS_MAX = 4
"""Confirmations under way at once. A page that is read ahead does not wait for the confirmation in its request, so the
next request confirms the same again."""
_FAILED = frozenset({Asking.BACKOFF, Asking.BLOCKED, Asking.FENCED, Asking.OFFLINE})


class PullSpans:
    """Created when the pull begins. `is_new`: nothing of the peer's stream has been stored yet."""

    def __init__(self, telemetry: Telemetry, peer: str, stream: str, *, is_new: bool) -> None:
        self._telemetry = telemetry
        self._about = {"peer": peer, "stream": stream}
        self._fetch: tuple[int, Started] | None = None
        self._append: Started | None = None
        self._confirms: dict[int, Started] = {}  # by offset, until the peer's frontier includes it
        self._bootstrap = self._start(Span.BOOTSTRAP) if is_new else None
        self._dropped = self._restarts = 0

    def after(self, event: Event, core: Receiver, end_offset: int) -> None:
        """The core has handled an event; `end_offset` is the last known end of the peer's log."""
        is_dropped = core.counters.pages_dropped > self._dropped
        self._dropped = core.counters.pages_dropped
        if self._fetch is not None and self._fetch[0] != core.open_fetch_id:
            self._end_fetch(event, is_dropped=is_dropped)
        if self._append is not None and isinstance(event, Appended | AppendFailed):
            if isinstance(event, Appended):
                self._telemetry.stop(self._append)
            else:
                self._telemetry.fail(self._append, event.reason)
            self._append = None
        self._update_confirms(event, core)
        self._update_bootstrap(core, end_offset)

    def carried_out(self, effect: Effect) -> None:
        """An effect is about to be carried out."""
        if isinstance(effect, Fetch):
            if (confirm := effect.confirm) is not None and confirm.offset not in self._confirms:
                self._confirms[confirm.offset] = self._start(Span.CONFIRM, offset=confirm.offset)
            after = effect.after or last_of(effect.trail or ())
            self._fetch = effect.fetch_id, self._start(Span.FETCH, after_offset=after.offset)
        elif isinstance(effect, Append):
            self._append = self._start(Span.APPEND, offset=effect.page.last_offset)

    def stopped(self) -> None:
        """The pull is being stopped: discard all open spans."""
        left = [self._append, self._bootstrap, self._fetch and self._fetch[1], *self._confirms.values()]
        for started in filter(None, left):
            self._telemetry.discard(started, "the node is being stopped")

    def _end_fetch(self, event: Event, *, is_dropped: bool) -> None:
        assert self._fetch is not None
        fetch_id, started = self._fetch
        self._fetch = None
        match event:
            case PageArrived() if event.fetch_id != fetch_id:
                self._telemetry.discard(started, "an earlier request's page has come")
            case PageArrived() if is_dropped:
                self._telemetry.discard(started, "not at our position")
            case PageArrived(_, page):
                self._telemetry.stop(started, first_offset=page.first_offset, last_offset=page.last_offset)
            case FetchFailed():
                self._telemetry.fail(started, event.code)
            case LinkDown():
                self._telemetry.fail(started, event.reason)
            case Tick():
                self._telemetry.fail(started, "timeout")
            case _:
                self._telemetry.discard(started, "the page is requested again")  # our store refused a page

    def _update_confirms(self, event: Event, core: Receiver) -> None:
        """A page names the peer's frontier. A confirmation that may not have been sent, or that was for another
        log, is sent again."""
        is_restarted = core.counters.restarts > self._restarts
        for offset in list(self._confirms):
            if is_restarted:
                self._telemetry.discard(self._confirms.pop(offset), "the peer's log was put back")
            elif isinstance(event, PageArrived) and offset <= core.place.frontier:
                self._telemetry.stop(self._confirms.pop(offset))
            elif isinstance(event, LinkDown) or (core.open_fetch_id is None and core.asking in _FAILED):
                self._telemetry.fail(self._confirms.pop(offset), core.contact.lost_reason or core.asking.value)
            elif len(self._confirms) > CONFIRMS_MAX:
                self._telemetry.discard(self._confirms.pop(offset), "a later confirmation includes it")

    def _update_bootstrap(self, core: Receiver, end_offset: int) -> None:
        if core.counters.restarts > self._restarts:
            self._restarts = core.counters.restarts
            if self._bootstrap is not None:
                self._telemetry.discard(self._bootstrap, "the peer's log was put back")
            self._bootstrap = self._start(Span.BOOTSTRAP)
        if self._bootstrap is None:
            return
        if core.asking in {Asking.BLOCKED, Asking.FENCED}:
            self._telemetry.fail(self._bootstrap, core.contact.lost_reason or core.asking.value)
            self._bootstrap = None
        elif not core.place.more and core.place.offset >= end_offset:
            self._telemetry.stop(self._bootstrap, offset=core.place.offset)
            self._bootstrap = None

    def _start(self, span: Span, **fields: object) -> Started:
        return self._telemetry.start(span, Side.ASKING, "", **self._about, **fields)
