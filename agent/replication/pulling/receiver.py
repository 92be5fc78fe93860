"""Decides for one stream of one peer when to request a page, what to store, what to confirm and when to wait.

A core: takes events and the time, returns effects. `pull_runner` carries the effects out in their order and reports
their outcomes. The loop: request a page; when it arrives, pass it to the store and, if the peer has more, request the
next one at once (at most two pages are read ahead); when the page is durable, confirm it with the next request.

A page is accepted if it starts where the accepted pages end, whichever request it answers, or where the peer's log
parts from the trail, if the newest request named that (agent/positions.py); any other is dropped and counted. Nothing
is skipped: a page that the store cannot take now is offered again, and one that it refuses for good is requested again,
rarely, until an operator acts. Each life of a receiver holds a lease and stops when another instance has a newer one
(0036). DESIGN.md gives the reasons.

There are two states, each with its table: towards the peer (`Asking`) and towards the store (`Storing`). Randomness is
an argument (`jitter`, 0 to 1).
"""

from __future__ import annotations

from dataclasses import replace

from agent.positions import NOTHING_READ, Position, Trail, continues, extended, last_of
from agent.replication.protocol.errors import UnprovenAnswer
from agent.replication.protocol.pacing import HEARTBEAT_MS, PageSize, backoff_ms
from agent.replication.protocol.token_bucket import Priority, TokenBucket
from agent.replication.pulling.pull_events import (
    ASKING_TRANSITIONS,
    STORING_TRANSITIONS,
    Append,
    Appended,
    AppendFailed,
    ArrivedPage,
    Asking,
    Effect,
    Event,
    Fetch,
    FetchFailed,
    LinkDown,
    LinkUp,
    Note,
    NoteKind,
    OpenFetch,
    PageArrived,
    ReceiverCounters,
    ReceiverSettings,
    Storing,
    Tick,
)

PAGES_AHEAD_MAX = 2
"""One page can be under way while another waits for the disk. With only one, the times of round trip and check would
add up."""
FORMER_LIVES_MAX = 8
"""Former answering lives of the peer that are remembered. Two machines under one name need two."""

_WAITS = {Asking.BACKOFF, Asking.BLOCKED, Asking.PACED}


class Receiver:
    """One stream of one peer. `trail` is that stored with the last page, empty before the first. `bandwidth` is shared
    by all streams of the peer; None if it is not limited. `lost_reason` says why the peer sends no facts at present,
    None while it does; `page_waits` why the store repeatedly refuses a page for now, "" while it does not."""

    def __init__(
        self,
        settings: ReceiverSettings,
        trail: Trail = (),
        bandwidth: TokenBucket | None = None,
    ) -> None:
        self._settings = settings
        self._stored = trail
        self._accepted = trail  # with the pages that are not stored yet
        self._is_placed = bool(trail) or settings.start == "oldest"
        self._names_trail = True  # in the next request
        self._log_end: Position | None = None  # where the peer's log ends, if that is before our position
        self._bandwidth = bandwidth
        self._page_size = PageSize(settings.page_bytes_max)
        self.asking = Asking.OFFLINE
        self.storing = Storing.IDLE
        self.counters = ReceiverCounters()
        self.frontier = 0
        self.lease = 0
        self._lease_after = 0
        self._leases_missed = 0
        self.is_caught_up = False
        self._life = ""  # of the process that answered last
        self._former_lives: tuple[str, ...] = ()
        self._twins = ""  # the two lives that answer in turn
        self._twins_until_ms = 0
        self._restart_at_ms = 0  # no request after another refused position before this time
        self._appending: Append | None = None
        self._read_ahead: tuple[Append, ...] = ()
        self._is_answering = False
        self._peer_has_more = False
        self._open: OpenFetch | None = None
        self._last_fetch_id = 0
        self._unproven = ""  # why an answer to the open request was not accepted
        self._ask_at_ms = 0
        self._append_at_ms = 0
        self._failures = 0
        self._handled_ms = 0
        self._was_linked = False
        self._returning_until_ms = 0
        self._pauses = 0
        self.page_waits = ""
        self.lost_reason: str | None = None
        self._is_page_refused = False
        self._effects: list[Effect] = []

    @property
    def stored_offset(self) -> int:
        """How far the peer's log is stored here."""
        return last_of(self._stored).offset

    @property
    def open_fetch_id(self) -> int | None:
        """The id of the open request; None if none is open."""
        return None if self._open is None else self._open.fetch_id

    @property
    def deadline_ms(self) -> int | None:
        """When to call `handle(Tick())` if no other event comes first; None for never."""
        times = []
        if self._open is not None:
            times.append(self._open.deadline_ms)
        if self.asking in _WAITS:
            times.append(self._ask_at_ms)
        if self.storing is Storing.PAUSED:
            times.append(self._append_at_ms)
        return min(times, default=None)

    def paced_ms(self, now_ms: int) -> int:
        """How long in all this pull has waited for the peer's bandwidth."""
        return self.counters.paced_ms + (now_ms - self._handled_ms if self.asking is Asking.PACED else 0)

    def handle(self, event: Event, now_ms: int, jitter: float) -> list[Effect]:
        """What to do now that `event` has happened."""
        assert not self._effects
        self.counters.paced_ms = self.paced_ms(now_ms)
        self._handled_ms = now_ms
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
            case Appended():
                self._appended(event)
            case AppendFailed():
                self._append_failed(event, now_ms, jitter)
            case Tick():
                self._tick(event, now_ms, jitter)
        self._store_next()
        self._ask_next(now_ms)
        effects, self._effects = self._effects, []
        effects.sort(key=lambda effect: isinstance(effect, Append))  # send the request first: it travels while we store
        return effects

    def taken(self, fetch_id: int, now_ms: int) -> None:
        """The broker has taken this request, which may have waited for seconds behind others: the time for its answer
        begins now."""
        if (fetch := self._open) is not None and fetch.fetch_id == fetch_id:
            last_ms = fetch.last_ms + now_ms - fetch.sent_ms
            self._open = replace(fetch, deadline_ms=last_ms - max(0, fetch.wait_ms - HEARTBEAT_MS), last_ms=last_ms)

    def still_waits(self, fetch_id: int, now_ms: int) -> None:
        """The peer says that this fetch waits there: its answer may take until after the next heartbeat. A fetch that
        no heartbeat names was lost, or its answer was, or the peer is gone."""
        if (fetch := self._open) is not None and fetch.fetch_id == fetch_id:
            next_ms = now_ms + HEARTBEAT_MS + self._settings.answer_timeout_ms
            self._open = replace(fetch, deadline_ms=max(fetch.deadline_ms, min(next_ms, fetch.last_ms)))

    # ----------------------------------------------------------------------------------------------------------- asking

    def _ask_next(self, now_ms: int) -> None:
        """Send a fetch if there is room for its page and the bandwidth allows it."""
        if self.asking is not Asking.HOLDING or len(self._read_ahead) >= PAGES_AHEAD_MAX:
            return
        if self._appending is not None and not self._peer_has_more:
            return  # at the end of the log: the request after this append confirms the page, and then waits at the peer
        if self._must_wait(now_ms):
            return
        settings = self._settings
        self._last_fetch_id += 1
        self._unproven = ""
        wait_ms = settings.wait_ms if self._is_answering else 0  # a peer that may be absent should answer at once
        answer_ms = settings.answer_timeout_ms << min(self._failures, 3)
        names_trail = self._names_trail and self._is_placed
        deadline_ms = now_ms + min(wait_ms, HEARTBEAT_MS) + answer_ms
        last_ms = now_ms + wait_ms + answer_ms
        self._open = OpenFetch(self._last_fetch_id, now_ms, deadline_ms, last_ms, wait_ms, names_trail)
        # What is stored, not what is merely accepted.
        confirm = self._log_end or last_of(self._stored)
        must_confirm = confirm.offset > self.frontier
        self._effects.append(
            Fetch(
                self._last_fetch_id,
                last_of(self._accepted) if self._is_placed and not names_trail else None,
                self._accepted if names_trail else None,
                confirm if must_confirm else None,
                wait_ms,
                self._page_bytes(),
                self.lease,
                None if self.lease else self._lease_after,
            )
        )
        self._to(Asking.WAITING)

    def _page_bytes(self) -> int:
        found = self._page_size.bytes
        return found if self._bandwidth is None else self._bandwidth.page_bytes(found)

    def _must_wait(self, now_ms: int) -> bool:
        """Whether the peer's bandwidth is used up. If so, the fetch is sent when bandwidth is available."""
        if self._bandwidth is None:
            return False
        priority = Priority.LIVE if self.is_caught_up else Priority.BACKLOG
        self._ask_at_ms = self._bandwidth.ready_ms(now_ms, priority)
        if self._ask_at_ms <= now_ms:
            return False
        self._to(Asking.PACED)
        return True

    def _page_arrived(self, event: PageArrived, now_ms: int, jitter: float) -> None:
        page = event.page
        self.lease = max(self.lease, page.lease)
        is_newest = self._open is not None and event.fetch_id == self._open.fetch_id
        if self.asking is Asking.OFFLINE:
            self.counters.pages_dropped += 1  # sent before the connection was lost
            return
        if is_newest:
            assert self._open is not None
            self._note_life(page.life, now_ms)
            self.frontier = page.frontier
        if page.lease_in_force is not None:
            if is_newest:
                self._ask_after(page.lease_in_force, now_ms, jitter)
            return
        if page.first_offset == 0:
            if is_newest:
                self._page_without_offsets(page, now_ms)
        elif self._fits(page, is_newest=is_newest):
            self.counters.pages_late += not is_newest
            if self._open is not None and is_newest and page.more and not self.is_caught_up:  # it did not wait
                self._page_size.arrived(now_ms - self._open.sent_ms)
            self._accept(page, event.content)
        else:
            self.counters.pages_dropped += 1
            if is_newest:
                reason = f"page starts at {page.first_offset}, asked for after {last_of(self._accepted).offset}"
                self._back_off("page_not_at_position", reason, now_ms, jitter)
        if is_newest:
            self._block_twins(now_ms)

    def _note_life(self, life: str, now_ms: int) -> None:
        """A process has answered. A process never answers again after the next one has, so if its life returns, two
        machines answer in the peer's name, or an old memory was put back."""
        if life != self._life:
            if life in self._former_lives:
                one, other = sorted((life, self._life))
                self._twins, self._twins_until_ms = (
                    f"lives {one} and {other} answer in turn",
                    now_ms + self._settings.twins_ms,
                )
            self._former_lives = (*(one for one in self._former_lives if one != life), self._life)[-FORMER_LIVES_MAX:]
            self._life = life
        elif self._twins and now_ms >= self._twins_until_ms:
            self._twins = ""

    def _ask_after(self, lease_in_force: int, now_ms: int, jitter: float) -> None:
        """The lease in force is not the one that the request named: ask again at once, naming this one. If it changes
        again, another instance is starting at the same time, and the random back-off decides which comes first."""
        self._lease_after = lease_in_force
        self._leases_missed += 1
        if self._leases_missed > 1:
            self._back_off("lease_taken", f"another instance has taken lease {lease_in_force}", now_ms, jitter)
        else:
            self._close(Asking.HOLDING)

    def _fits(self, page: ArrivedPage, *, is_newest: bool) -> bool:
        """Whether there is room for the page and it may follow the accepted ones. Without a position, the answer to the
        newest fetch chooses one. Facts that the peer no longer has are holes of the page, so no offset is ever skipped
        silently."""
        if len(self._read_ahead) >= PAGES_AHEAD_MAX:
            return False
        if not self._is_placed:
            return is_newest
        is_answer_to_trail = is_newest and self._open is not None and self._open.names_trail
        return continues(self._accepted, page.after, is_answer_to_trail=is_answer_to_trail)

    def _page_without_offsets(self, page: ArrivedPage, now_ms: int) -> None:
        assert self._open is not None
        if not self._is_placed:  # registered at the end of the peer's log
            self._is_placed = True
            self._accepted = self._stored = () if page.after == NOTHING_READ else (page.after,)
        # Where the peer's log ends before the position, the next facts follow another one of the trail.
        self._names_trail = page.after[:2] != last_of(self._accepted)[:2]
        is_stored = any(one.life == page.after.life and one.offset >= page.after.offset for one in self._stored)
        self._log_end = page.after if self._names_trail and is_stored else None
        self._answered()
        self.is_caught_up = not page.more
        if self._open.wait_ms and now_ms - self._open.sent_ms < self._settings.empty_ms_min:
            self._ask_at_ms = self._open.sent_ms + self._settings.empty_ms_min
            self._close(Asking.BACKOFF)
        else:
            self._close(Asking.HOLDING)

    def _accept(self, page: ArrivedPage, content: object) -> None:
        """Accept the page. It is stored once the previous one is durable."""
        assert len(self._read_ahead) < PAGES_AHEAD_MAX
        self._answered()
        self.counters.pages += 1
        if not self._is_placed and page.after != NOTHING_READ:
            self._stored = (page.after,)
        elif self._is_placed and page.after[:2] != (before := last_of(self._accepted))[:2]:
            self._peer_restored(before, page.after)
        self._is_placed, self._names_trail, self._log_end = True, False, None
        self._accepted = extended(self._accepted, page.lives)
        self._peer_has_more = page.more
        self.is_caught_up = not page.more
        self._read_ahead = (*self._read_ahead, Append(page, content))
        self._close(Asking.HOLDING)

    def _peer_restored(self, before: Position, after: Position) -> None:
        """The peer's log was read further, or is another one: it is read on from where both are the same."""
        self.counters.restarts += 1
        read = f"offset {before.offset} of life {before.life.hex()} was read"
        self._effects.append(Note(NoteKind.PEER_RESTORED, f"{read}, and the log goes on after offset {after.offset}"))

    def _ask_anew(self, now_ms: int) -> None:
        """Ask again, at once unless the peer has made that necessary a moment ago."""
        self._names_trail = True
        self._ask_at_ms = max(now_ms, self._restart_at_ms)
        self._restart_at_ms = self._ask_at_ms + self._settings.restart_ms
        self._close(Asking.HOLDING if self._ask_at_ms == now_ms else Asking.BACKOFF)

    def _fetch_failed(self, event: FetchFailed, now_ms: int, jitter: float) -> None:
        self.counters.unproven += event.code == UnprovenAnswer.code
        if self._open is None or event.fetch_id != self._open.fetch_id:
            return
        if event.life and event.code != UnprovenAnswer.code:
            self._note_life(event.life, now_ms)
        if event.code == UnprovenAnswer.code:
            self._unproven = event.reason  # no answer yet (0052): the peer's own may still come before the time-out
        elif event.code == "life_unknown" and not self._open.names_trail:
            self._ask_anew(now_ms)
        elif event.code == "fenced":
            self._lose(NoteKind.RECEIVER_FENCED, event.reason)
            self._close(Asking.FENCED)
        elif event.code == "lease_unknown":  # the peer's store is new or restored, or has removed the consumer
            self.lease = self._lease_after = 0
            self._back_off(event.code, event.reason, now_ms, jitter)
        elif event.is_retryable:
            self._back_off(event.code, event.reason, now_ms, jitter)
        else:
            self._block(NoteKind.PEER_REFUSES, event.reason, now_ms)
        self._block_twins(now_ms)

    def _block_twins(self, now_ms: int) -> None:
        """While two machines answer, each answer is followed by a pause, whatever it is: errors of one would else be
        asked about at the other without end."""
        if self._twins and self.asking in {Asking.HOLDING, Asking.BACKOFF}:
            self._block(NoteKind.PEER_REFUSES, f"{self._twins}: does its node run twice? Stop one.", now_ms)

    def _tick(self, event: Tick, now_ms: int, jitter: float) -> None:
        fetch, settings = self._open, self._settings
        if fetch is not None and event.is_behind and now_ms < fetch.last_ms + settings.behind_ms_max:
            # A node that is late itself would ask again what is answered already, and be later for it.
            self._open = replace(fetch, deadline_ms=max(fetch.deadline_ms, now_ms + settings.behind_ms))
        elif fetch is not None and now_ms >= fetch.deadline_ms:
            self.counters.timeouts += 1
            self._page_size.timed_out()
            if self._unproven:
                self._back_off(UnprovenAnswer.code, self._unproven, now_ms, jitter)
            else:
                self._back_off("timeout", "no answer", now_ms, jitter)
        elif self.asking in _WAITS and now_ms >= self._ask_at_ms:
            self._to(Asking.HOLDING)
        if self.storing is Storing.PAUSED and now_ms >= self._append_at_ms:
            self._offer()

    def _link_up(self, now_ms: int, jitter: float) -> None:
        """Forget earlier failures: the same outage may have cut off the peer."""
        self._failures, self._names_trail = 0, True
        if not self._was_linked:
            self._was_linked = True
            self._to(Asking.HOLDING)
            return
        self._returning_until_ms = now_ms + self._settings.returning_ms
        self._ask_at_ms = now_ms + int(self._settings.spread_ms * jitter)
        self._to(Asking.BACKOFF)

    def _link_down(self, event: LinkDown) -> None:
        self._lose(NoteKind.PEER_LOST, event.reason)
        self._open = None
        if self.asking is not Asking.OFFLINE:
            self._to(Asking.OFFLINE)

    def _back_off(self, code: str, reason: str, now_ms: int, jitter: float) -> None:
        self._lose(NoteKind.PEER_LOST, reason if reason.startswith(f"{code}: ") else f"{code}: {reason}")
        settings = self._settings
        most_ms = settings.backoff_ms_max
        if now_ms < self._returning_until_ms:
            most_ms = min(most_ms, settings.backoff_ms_returning)
        self._ask_at_ms = now_ms + backoff_ms(settings.backoff_ms_min, most_ms, self._failures, jitter)
        self._failures, self._names_trail = self._failures + 1, True
        self._close(Asking.BACKOFF)

    def _block(self, kind: NoteKind, reason: str, now_ms: int) -> None:
        self._lose(kind, reason)
        self._ask_at_ms = now_ms + self._settings.blocked_ms
        self._open, self._names_trail = None, True
        if self.asking not in {Asking.OFFLINE, Asking.BLOCKED, Asking.FENCED}:
            self._to(Asking.BLOCKED)

    def _lose(self, kind: NoteKind, reason: str) -> None:
        """Log once why no facts come, and again only if a reason for an operator replaces a passing one."""
        self._is_answering = False
        if self.asking is Asking.FENCED:
            # The reason concerns a page that was being stored; why the pull has stopped does not change.
            self._effects.append(Note(kind, reason))
            return
        before = self.lost_reason or ""
        is_unproven = reason.startswith(UnprovenAnswer.code) and not before.startswith(UnprovenAnswer.code)
        if not before or is_unproven or (kind is not NoteKind.PEER_LOST and before != reason):
            self._effects.append(Note(kind, reason))
            self.lost_reason = reason

    def _answered(self) -> None:
        """The peer has answered. After the store has refused its page, it counts as lost until a page is stored."""
        if self.asking is Asking.FENCED:
            return
        self._failures = 0
        self._is_answering = True
        if self.lost_reason is not None and not self._is_page_refused and not self._twins:
            self._effects.append(Note(NoteKind.PEER_RETURNED, self.lost_reason))
            self.lost_reason = None

    def _close(self, state: Asking) -> None:
        self._open = None
        if self.asking is not state:
            self._to(state)

    # ---------------------------------------------------------------------------------------------------------- storing

    def _store_next(self) -> None:
        if self.storing is Storing.IDLE and self._read_ahead:
            self._appending, *later = self._read_ahead
            self._read_ahead = tuple(later)
            self._offer()

    def _offer(self) -> None:
        assert self._appending is not None
        self._to_storing(Storing.APPENDING)
        self._effects.append(self._appending)

    def _appended(self, event: Appended) -> None:
        assert self._appending is not None
        self.counters.facts_stored += event.facts_stored
        self.counters.facts_duplicate += event.facts_duplicate
        page = self._appending.page
        self._appending = None
        self._stored = extended(self._stored, page.lives)
        if self._pauses:
            self._pauses = 0
            self.page_waits = ""
            self._effects.append(Note(NoteKind.STORE_ACCEPTS, ""))
        if self._is_page_refused:
            self._is_page_refused = False
            self._answered()
        self._to_storing(Storing.IDLE)

    def _append_failed(self, event: AppendFailed, now_ms: int, jitter: float) -> None:
        if event.is_retryable:
            if not self._pauses:
                self._effects.append(Note(NoteKind.STORE_REFUSES, event.reason))
            settings = self._settings
            self._append_at_ms = now_ms + backoff_ms(settings.pause_ms_min, settings.pause_ms_max, self._pauses, jitter)
            self._pauses += 1
            self.page_waits = event.reason
            self._to_storing(Storing.PAUSED)
            return
        assert self._appending is not None
        self._appending = None
        self._to_storing(Storing.IDLE)
        self._read_ahead, self._accepted, self._names_trail = (), self._stored, True
        self._is_page_refused = True
        self.page_waits = ""
        self._block(NoteKind.PAGE_REFUSED, event.reason, now_ms)

    # ----------------------------------------------------------------------------------------------------------- states

    def _to(self, state: Asking) -> None:
        assert state in ASKING_TRANSITIONS[self.asking], f"{self.asking} to {state}"
        self.asking = state

    def _to_storing(self, state: Storing) -> None:
        assert state in STORING_TRANSITIONS[self.storing], f"{self.storing} to {state}"
        self.storing = state
