"""Decides for one stream of one peer when to request a page, what to store, what to confirm and when to wait.

A core: takes events and the time, returns effects. `pull_runner` carries the effects out in their order and reports
their outcomes. The loop: request a page; when it arrives, pass it to the store and, if the peer has more, request the
next one at once (at most two pages are read ahead); when the page is durable, confirm it with the next request.

The receiver joins what two modules know: the place in the peer's log and the accepted pages (`log_place`), and the open
request, its pace and the peer (`peer_contact`). There are two states, each with its table: towards the peer (`Asking`)
and towards the store (`Storing`). Each life of a receiver
holds a lease and stops when another instance has a newer one (0036). DESIGN.md gives the reasons. Randomness is an
argument (`jitter`, 0 to 1).
"""

from __future__ import annotations

from dataclasses import replace

from agent.positions import Trail, last_of
from agent.replication.protocol.errors import UnprovenAnswer
from agent.replication.protocol.token_bucket import TokenBucket
from agent.replication.pulling.receiving.log_place import AcceptedPages, LogPlace
from agent.replication.pulling.receiving.peer_contact import (
    AnsweringLives,
    FetchPace,
    HeldLease,
    OpenFetch,
    PeerContact,
)
from agent.replication.pulling.receiving.pull_events import (
    ASKING_TRANSITIONS,
    Append,
    AppendFailed,
    ArrivedPage,
    Asking,
    Check,
    Effect,
    Event,
    Fetch,
    FetchFailed,
    LinkDown,
    LinkUp,
    Note,
    NoteKind,
    PageAppended,
    PageArrived,
    ReceiverCounters,
    ReceiverSettings,
    Tick,
)

_WAITS = {Asking.BACKOFF, Asking.BLOCKED, Asking.PACED}


class Receiver:
    """One stream of one peer. `trail` is that stored with the last page, empty before the first. `bandwidth` is shared
    by all streams of the peer; None if it is not limited."""

    def __init__(self, settings: ReceiverSettings, trail: Trail = (), bandwidth: TokenBucket | None = None) -> None:
        self._settings = settings
        self.place = LogPlace(trail, trail, is_placed=bool(trail) or settings.start == "oldest")
        self.pages = AcceptedPages(settings)
        self.pace = FetchPace(settings, bandwidth)
        self.contact = PeerContact(settings)
        self.lives = AnsweringLives()
        self.lease = HeldLease()
        self.asking = Asking.OFFLINE
        self.counters = ReceiverCounters()
        self._open: OpenFetch | None = None
        self._last_fetch_id = 0
        self._effects: list[Effect] = []

    @property
    def open_fetch_id(self) -> int | None:
        """The id of the open request; None if none is open."""
        return None if self._open is None else self._open.fetch_id

    @property
    def deadline_ms(self) -> int | None:
        """When to call `handle(Tick())` if no other event comes first; None for never."""
        times = (
            None if self._open is None else self._open.deadline_ms,
            self.contact.ask_at_ms if self.asking in _WAITS else None,
            self.pages.offer_at_ms,
        )
        return min((time_ms for time_ms in times if time_ms is not None), default=None)

    def handle(self, event: Event, now_ms: int, jitter: float) -> list[Effect]:
        """What to do now that `event` has happened."""
        assert not self._effects
        match event:
            case LinkUp() | LinkDown() | PageArrived() | FetchFailed() if self.asking is Asking.FENCED:
                pass  # another instance holds the lease: no further request is sent (0036)
            case LinkUp():
                self._link_up(now_ms, jitter)
            case LinkDown():
                self._link_down(event)
            case PageArrived():
                self._page_arrived(event, now_ms, jitter)
            case FetchFailed():
                self._fetch_failed(event, now_ms, jitter)
            case PageAppended():
                self._appended(event)
            case AppendFailed():
                self._append_failed(event, now_ms, jitter)
            case Tick():
                self._tick(event, now_ms, jitter)
        append = self.pages.next(now_ms)
        self._ask_next(now_ms)
        self.pace.note_wait(now_ms, waits=self.asking is Asking.PACED and not self.pace.is_repeated)
        effects, self._effects = self._effects, []
        return effects if append is None else [*effects, append]  # the request first: it travels while we store

    def taken(self, fetch_id: int, now_ms: int) -> None:
        """The broker has taken this request."""
        if self._open is not None and self._open.fetch_id == fetch_id:
            self._open = self._open.taken(now_ms)

    def still_waits(self, fetch_id: int, now_ms: int) -> None:
        """The peer says that this fetch waits there. A fetch that no heartbeat names was lost, or its answer was, or
        the peer is gone."""
        if self._open is not None and self._open.fetch_id == fetch_id:
            self._open = self._open.still_waits(now_ms, self._settings.answer_timeout_ms)
            self.contact.note_level(self._open.sent_ms + self._open.waited_ms, is_stored=self.pages.is_empty)

    # ----------------------------------------------------------------------------------------------------------- asking

    def _ask_next(self, now_ms: int) -> None:
        """Send a fetch if there is room for its page and the bandwidth allows it."""
        place = self.place
        if self.asking is not Asking.HOLDING or not self.pages.has_room:
            return
        if self.pages.is_storing and not place.more:
            return  # at the end of the log: the request after this append confirms the page, and then waits at the peer
        ready_ms = self.pace.ready_ms(now_ms, is_live=not place.more)
        if ready_ms > now_ms:
            self.contact.ask_at_ms = ready_ms
            self._to(Asking.PACED)
            return
        self._last_fetch_id += 1
        self.pace.note_asked(now_ms)
        wait_ms, answer_ms, trail = self.contact.wait_ms(), self.contact.answer_ms(), place.trail
        if self.pace.is_repeated and not place.more:
            wait_ms = 0
        self._open = OpenFetch.sent(self._last_fetch_id, now_ms, wait_ms, answer_ms, names_trail=trail is not None)
        self._effects.append(
            Fetch(
                self._last_fetch_id,
                place.after,
                trail,
                place.confirm,
                wait_ms,
                self.pace.page_bytes(),
                self.lease.epoch,
                None if self.lease.epoch else self.lease.after,
            )
        )
        self._to(Asking.WAITING)

    def _page_arrived(self, event: PageArrived, now_ms: int, jitter: float) -> None:
        page, fetch = event.page, self._open
        self.lease = self.lease.granted(page.lease)
        if self.asking is Asking.OFFLINE:
            self.counters.pages_dropped += 1  # sent before the connection was lost
            return
        if fetch is not None and event.fetch_id != fetch.fetch_id:
            fetch = None  # it answers an earlier request
        if fetch is not None:
            self._note_life(page.life, now_ms)
            self.place = self.place._replace(frontier=page.frontier)
        if page.lease_in_force is not None:
            if fetch is not None:
                self._ask_after(page.lease_in_force, now_ms, jitter)
            return
        if page.first_offset == 0:
            if fetch is not None:
                self._log_ended(page, fetch, now_ms)
        elif self._fits(page, fetch):
            self.counters.pages_late += fetch is None
            if fetch is not None and page.more and self.place.more:  # it did not wait
                self.pace.size.arrived(now_ms - fetch.sent_ms)
            self._accept(page, event.content)
            self._note_level(page, fetch)
        else:
            self.counters.pages_dropped += 1
            if fetch is not None:
                asked = last_of(self.place.accepted).offset
                reason = f"page starts at {page.first_offset}, asked for after {asked}"
                self._back_off("page_not_at_position", reason, now_ms, jitter)
        if fetch is not None:
            self._block_twins(now_ms)

    def _note_level(self, page: ArrivedPage, fetch: OpenFetch | None) -> None:
        """A page that was made after its request, and ends with the log."""
        if fetch is not None and not page.more:
            self.contact.note_level(fetch.sent_ms, is_stored=self.pages.is_empty)

    def _note_life(self, life: str, now_ms: int) -> None:
        self.lives = self.lives.answered(life, now_ms, self._settings.twins_ms)

    def _ask_after(self, lease_in_force: int, now_ms: int, jitter: float) -> None:
        """The lease in force is not the one that the request named: ask again at once, naming this one. If it changes
        again, another instance is starting at the same time, and the random back-off decides which comes first."""
        self.lease = self.lease.taken(lease_in_force)
        if self.lease.missed > 1:
            self._back_off("lease_taken", f"another instance has taken lease {lease_in_force}", now_ms, jitter)
        else:
            self._close(Asking.HOLDING)

    def _fits(self, page: ArrivedPage, fetch: OpenFetch | None) -> bool:
        return self.pages.has_room and self.place.fits(page, fetch)

    def _log_ended(self, page: ArrivedPage, fetch: OpenFetch, now_ms: int) -> None:
        """A page without offsets."""
        self.place = self.place.accept_end(page)
        self._note_level(page, fetch)
        self._answered()
        self._ask_at(fetch.again_ms(now_ms), now_ms)

    def _accept(self, page: ArrivedPage, content: object) -> None:
        """Accept the page. It is stored once the previous one is durable."""
        self._answered()
        self.counters.pages += 1
        if self.place.parts(page):
            self.counters.restarts += 1
            before = last_of(self.place.accepted)
            read = f"offset {before.offset} of life {before.life.hex()} was read"
            self._add_note(NoteKind.PEER_RESTORED, f"{read}, and the log goes on after offset {page.after.offset}")
        self.place = self.place.accept(page)
        self.pages.accept(Append(page, content))
        self._effects.append(Check(content))
        self._close(Asking.HOLDING)

    def _fetch_failed(self, event: FetchFailed, now_ms: int, jitter: float) -> None:
        is_unproven = event.code == UnprovenAnswer.code
        self.counters.unproven += is_unproven
        if self._open is None or event.fetch_id != self._open.fetch_id:
            return
        if event.life and not is_unproven:
            self._note_life(event.life, now_ms)
        if is_unproven:  # no answer yet (0052): the peer's own may still come before the time-out
            self._open = replace(self._open, unproven=event.reason)
        elif event.code == "life_unknown" and not self._open.names_trail:
            self.contact.restart(now_ms)
            self.place = self.place.doubt()
            self._ask_at(self.contact.ask_at_ms, now_ms)
        elif event.code == "fenced":
            self._lose(NoteKind.RECEIVER_FENCED, event.reason)
            self._close(Asking.FENCED)
        elif event.code == "lease_unknown":
            self.lease = self.lease.unknown()
            self._back_off(event.code, event.reason, now_ms, jitter)
        elif event.is_retryable:
            self._back_off(event.code, event.reason, now_ms, jitter)
        else:
            self._block(NoteKind.PEER_REFUSES, event.reason, now_ms)
        self._block_twins(now_ms)

    def _block_twins(self, now_ms: int) -> None:
        """While two machines answer, each answer is followed by a pause, whatever it is: errors of one would else be
        asked about at the other without end."""
        if self.lives.twins and self.asking in {Asking.HOLDING, Asking.BACKOFF}:
            self._block(NoteKind.PEER_REFUSES, f"{self.lives.twins}: does its node run twice? Stop one.", now_ms)

    def _tick(self, event: Tick, now_ms: int, jitter: float) -> None:
        if self._open is not None and event.is_behind:
            self._open = self._open.behind(now_ms)
        if self._open is not None and now_ms >= self._open.deadline_ms:
            self.counters.timeouts += 1
            self.pace.size.timed_out()
            unproven = self._open.unproven
            self._back_off(UnprovenAnswer.code if unproven else "timeout", unproven or "no answer", now_ms, jitter)
        elif self.asking in _WAITS and now_ms >= self.contact.ask_at_ms:
            self._to(Asking.HOLDING)

    def _link_up(self, now_ms: int, jitter: float) -> None:
        self.place = self.place.doubt()
        self._to(Asking.HOLDING if self.contact.connected(now_ms, jitter) else Asking.BACKOFF)

    def _link_down(self, event: LinkDown) -> None:
        self._lose(NoteKind.PEER_LOST, event.reason)
        self._close(Asking.OFFLINE)

    def _back_off(self, code: str, reason: str, now_ms: int, jitter: float) -> None:
        self._lose(NoteKind.PEER_LOST, reason if reason.startswith(f"{code}: ") else f"{code}: {reason}")
        self.contact.back_off(now_ms, jitter)
        self.place = self.place.doubt()
        self._close(Asking.BACKOFF)

    def _block(self, kind: NoteKind, reason: str, now_ms: int) -> None:
        self._lose(kind, reason)
        self.contact.block(now_ms)
        self.place = self.place.doubt()
        self._close(self.asking if self.asking in {Asking.OFFLINE, Asking.FENCED} else Asking.BLOCKED)

    def _lose(self, kind: NoteKind, reason: str) -> None:
        if self.asking is Asking.FENCED:
            # The reason concerns a page that was being stored; why the pull has stopped does not change.
            self._add_note(kind, reason)
        elif self.lives.twins and kind is NoteKind.PEER_LOST and self.contact.lost_reason:
            pass  # two machines answer in turn: an error of one is no news
        elif (note := self.contact.lose(kind, reason)) is not None:
            self._effects.append(note)

    def _answered(self) -> None:
        """The peer has answered. After the store has refused its page, it counts as lost until a page is stored."""
        if self.asking is not Asking.FENCED:
            note = self.contact.answered(is_lost=self.pages.is_refused or bool(self.lives.twins))
            self._effects += [] if note is None else [note]

    def _ask_at(self, ask_at_ms: int, now_ms: int) -> None:
        self.contact.ask_at_ms = ask_at_ms
        self._close(Asking.HOLDING if ask_at_ms <= now_ms else Asking.BACKOFF)

    def _close(self, state: Asking) -> None:
        """No request is open now."""
        self._open = None
        if self.asking is not state:
            self._to(state)

    def _to(self, state: Asking) -> None:
        assert state in ASKING_TRANSITIONS[self.asking], f"{self.asking} to {state}"
        self.asking = state

    def _add_note(self, kind: NoteKind, reason: str) -> None:
        self._effects.append(Note(kind, reason))

    # ---------------------------------------------------------------------------------------------------------- storing

    def _appended(self, event: PageAppended) -> None:
        self.counters.facts_stored += event.facts_stored
        self.counters.facts_duplicate += event.facts_duplicate
        self.pace.note_stored(event.facts_stored)
        waited, was_refused = self.pages.waits, self.pages.is_refused
        self.place = self.place.store(self.pages.stored())
        if self.pages.is_empty:
            self.contact.note_stored()
        if waited:
            self._add_note(NoteKind.PAGE_STORED, "")
        if was_refused:
            self._answered()

    def _append_failed(self, event: AppendFailed, now_ms: int, jitter: float) -> None:
        if event.is_retryable:
            if not self.pages.waits:
                self._add_note(NoteKind.PAGE_WAITS, event.reason)
            self.pages.pause(event.reason, now_ms, jitter)
        else:
            self.pages.refuse()
            self.contact.note_dropped()
            self.place = self.place.drop()
            self._block(NoteKind.PAGE_REFUSED, event.reason, now_ms)
