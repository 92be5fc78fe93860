"""The pulling shell: brings one stream of one peer into the store, doing what `receiver` decides.

Everything that happens becomes an event in one bounded queue, and one task hands the events to the core and carries out
what it asks.  A page is checked in two steps (`checking`): its header when it arrives, its batches in a thread of this pull,
begun at once, so that a page read ahead is checked while the one before it is written.  What the batches claim about their
history, the store compares.

A page that fails a check is the peer's fault and final: it is asked for again rarely, and the log says why, once.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from functools import partial

from agent.batch import Batch, Kind, Origin
from agent.pages import OriginRange, PeerPosition, PutResult, ReceivedDefinition
from agent.replication.mqtt import Requester
from agent.replication.protocol.codec import decode_answer
from agent.replication.protocol.errors import ERRORS, MalformedMessage, TransportError, advice
from agent.replication.protocol.messages import Confirm, ErrorAnswer, FetchFacts, HeldEnd, TakenEnd
from agent.replication.protocol.page_check import PageContent, PageRefused, check_batches, check_page
from agent.replication.protocol.ports import ReceivingStore
from agent.replication.protocol.pull_events import (
    Append,
    Appended,
    AppendFailed,
    Asking,
    Effect,
    Event,
    Fetch,
    FetchFailed,
    LinkDown,
    LinkUp,
    Note,
    NoteKind,
    PageArrived,
    Settings,
    Tick,
)
from agent.replication.pulling.artifact_pull import ArtifactPull
from agent.replication.pulling.progress import CatchUp, Progress, Said
from agent.replication.pulling.pull_spans import PullSpans
from agent.replication.pulling.receiver import Receiver
from agent.replication.pulling.throttled_requester import PayingAsker
from agent.replication.pulling.token_bucket import Bandwidth
from agent.telemetry import Telemetry

EVENTS_MAX = 512
"""Answers to every request still remembered, and a few more: what does not fit is an answer, and is asked for again."""
ORIGINS_MAX = 500
"""Origins whose known definitions a request names; beyond, some definitions are sent twice."""

CHECKED_INLINE_BYTES_MAX = 16 * 1024
"""Checked in the event loop: up to 2,000 facts, or 0.2 ms, which is what a hop to the thread and back costs."""

_log = logging.getLogger(__name__)
_QUIET = {NoteKind.PEER_RETURNED, NoteKind.STORE_ACCEPTS}
_STANDS = {NoteKind.PEER_REFUSES, NoteKind.PAGE_REFUSED, NoteKind.RECEIVER_FENCED}


@dataclass(frozen=True, slots=True)
class PullSettings:
    """What to pull from whom.  `origins` are the zones whose facts this peer may bring: itself and those it relays."""

    peer_zone: str
    stream: str
    consumer_name: str
    origins: frozenset[str]
    limit: int = 262_144
    """Facts of a page: sixteen of the largest batches, so that bytes and not facts are the bound."""
    verify: bool = True
    """Open each batch once before storing it."""
    receiver: Settings = field(default_factory=Settings)


@dataclass(frozen=True, slots=True)
class _Arrived:
    """A page's content, and its batches once they are checked, or a PageRefused."""

    content: PageContent
    checked: asyncio.Future[list[Batch]]


@dataclass(frozen=True, slots=True)
class Pacing:
    """What a limit of the peer's bandwidth does to a pull: for how long it has not asked because of it; and, of all streams of this peer
    together, the bytes that came early and are not waited off yet, and those that are."""

    bytes_per_second_max: int
    paced_ms: int
    bytes_owed: int
    bytes_waited_off: int


@dataclass(frozen=True, slots=True)
class PullStatistics:
    """Where this pull stands, and what it has done so far."""

    peer_zone: str
    stream: str
    asking: Asking
    lost_reason: str | None
    offset: int
    frontier: int
    lease: int
    peer_end_offset: int
    is_caught_up: bool
    facts_stored: int
    facts_duplicate: int
    pages: int
    pages_late: int
    pages_dropped: int
    timeouts: int
    restarts: int
    last_answer_ms: int | None
    """Monotonic clock."""
    catch_up: CatchUp | None
    """While this pull is far behind."""
    page_waits: str
    """Why the page that was last offered to the store is not in it yet, while it is offered again."""
    pacing: Pacing | None
    """Where the peer's bandwidth is limited."""


class Puller:
    """One stream of one peer.  Made before the asker's link runs; the pullers of one peer share its `bandwidth`, if it is limited."""

    def __init__(
        self,
        asker: Requester,
        store: ReceivingStore,
        settings: PullSettings,
        store_errors: tuple[type[Exception], ...],
        chance: Callable[[], float] = random.random,
        bandwidth: Bandwidth | None = None,
        telemetry: Telemetry | None = None,
    ) -> None:
        self._bandwidth = bandwidth
        self._asker = asker
        self._telemetry = telemetry or Telemetry()
        self._store = store
        self._settings = settings
        self._store_errors = store_errors
        self._chance = chance
        self._loop = asyncio.get_running_loop()
        self._events: asyncio.Queue[Event[_Arrived]] = asyncio.Queue(EVENTS_MAX)
        self._checker: ThreadPoolExecutor | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._core: Receiver[_Arrived] | None = None
        self._crash: BaseException | None = None
        self._facts_stored = 0
        self._facts_duplicate = 0
        self._uncompared = set[OriginRange]()
        self._peer_end_offset = 0
        self._last_answer_ms: int | None = None
        self._progress = Progress()
        self._artifacts = ArtifactPull(
            PayingAsker(asker, bandwidth, telemetry=self._telemetry), store.artifacts, store_errors
        )
        self._group: asyncio.TaskGroup | None = None
        self.begun = asyncio.Event()
        """The peer has answered for the first time in this life, so it knows our consumer."""

    def statistics(self) -> PullStatistics:
        core = self._core or Receiver(self._settings.receiver, None, 0)
        counters = core.counters
        return PullStatistics(
            peer_zone=self._settings.peer_zone,
            stream=self._settings.stream,
            asking=core.asking,
            lost_reason=core.lost_reason,
            offset=core.stored_offset,
            frontier=core.frontier,
            lease=core.lease,
            peer_end_offset=self._peer_end_offset,
            is_caught_up=core.is_caught_up and core.stored_offset >= self._peer_end_offset,
            facts_stored=self._facts_stored,
            facts_duplicate=self._facts_duplicate,
            pages=counters.pages,
            pages_late=counters.pages_late,
            pages_dropped=counters.pages_dropped,
            timeouts=counters.timeouts,
            restarts=counters.restarts,
            last_answer_ms=self._last_answer_ms,
            catch_up=self._progress.now,
            page_waits=core.page_waits,
            pacing=self._pacing(core),
        )

    def _pacing(self, core: Receiver[_Arrived]) -> Pacing | None:
        limit, now_ms = self._bandwidth, _now_ms()
        if limit is None:
            return None
        return Pacing(
            limit.bytes_per_second_max, core.paced_ms(now_ms), limit.bytes_owed(now_ms), limit.bytes_waited_off
        )

    async def run(self) -> None:
        """Pull until cancelled, once in a puller's life: what was under way then may still end, and is no news to another.  A page
        on its way to disk is stored, or not, as a whole."""
        assert self._core is None, "a puller runs once"
        settings = self._settings
        store = self._store
        position = store.inbound.peer_position(settings.peer_zone, settings.stream)
        counts = store.definition_counts()
        epoch, offset = (position.epoch.hex(), position.offset) if position is not None else (None, 0)
        last_batch = None if position is None else position.last_batch
        self._core = Receiver(settings.receiver, epoch, offset, self._relevant(counts), self._bandwidth, last_batch)
        spans = PullSpans(self._telemetry, settings.peer_zone, settings.stream, is_new=position is None)
        try:
            with ThreadPoolExecutor(1, "bsfg-check") as self._checker:
                self._asker.link.watch(lambda: self._tell(LinkUp()), lambda reason: self._tell(LinkDown(reason)))
                async with asyncio.TaskGroup() as self._group:
                    await self._drive(self._core, spans)
        finally:
            spans.stopped()
            self._checker = self._group = None
            if self._timer is not None:
                self._timer.cancel()

    async def _drive(self, core: Receiver[_Arrived], spans: PullSpans) -> None:
        while True:
            event = await self._events.get()
            if self._crash is not None:
                raise self._crash
            effects = core.handle(event, _now_ms(), self._chance())
            spans.after(event, core, self._peer_end_offset)
            if isinstance(event, Appended | PageArrived):
                self._note_progress(core)  # first, for the store is told whether it is backlog that comes
            for effect in effects:
                spans.carried_out(effect)
                self._carry_out(effect)
            self._set_timer(core.deadline_ms)

    def _note_progress(self, core: Receiver[_Arrived]) -> None:
        said = self._progress.look(_now_ms(), core.stored_offset, self._peer_end_offset)
        if said is None:
            return
        state = self._progress.now
        assert state is not None
        fields = {"peer": self._settings.peer_zone, "stream": self._settings.stream, "percent": round(state.percent, 1)}
        _log.info(said.value, extra={**fields, **asdict(state)})
        if said is Said.DONE:
            self._progress.forget()

    def _relevant(self, counts: Mapping[Origin, int]) -> dict[str, int]:
        known = {str(origin): count for origin, count in counts.items() if origin.zone in self._settings.origins}
        return dict(list(known.items())[:ORIGINS_MAX])

    def _tell(self, event: Event[_Arrived]) -> None:
        """Note an event.  Only answers come in numbers that could fill the queue, and those may be lost."""
        if isinstance(event, PageArrived | FetchFailed) and self._events.qsize() >= EVENTS_MAX // 2:
            return
        self._events.put_nowait(event)

    def _set_timer(self, deadline_ms: int | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if deadline_ms is not None:
            self._timer = self._loop.call_at(deadline_ms / 1000 + 0.001, self._tell, Tick())

    # ---------------------------------------------------------------------------------------------------------- effects

    def _carry_out(self, effect: Effect[_Arrived]) -> None:
        match effect:
            case Fetch():
                self._fetch(effect)
            case Append():
                self._append(effect)
            case Note():
                level = logging.INFO if effect.kind in _QUIET else logging.WARNING
                settings = self._settings
                fields = {"peer": settings.peer_zone, "stream": settings.stream, "reason": effect.reason}
                _log.log(level, effect.kind.value, extra=fields)
                if effect.kind in _STANDS:
                    with contextlib.suppress(*self._store_errors):  # no room now: the log and the status have it
                        self._store.inbound.note("pull_stands", settings.stream, settings.peer_zone, effect.reason)

    def _fetch(self, effect: Fetch) -> None:
        settings = self._settings
        confirm = None if effect.confirm_offset is None else Confirm(last_offset=effect.confirm_offset)
        request = FetchFacts(
            consumer_name=settings.consumer_name,
            stream=settings.stream,
            start=settings.receiver.start,
            limit=settings.limit,
            bytes_max=effect.bytes_max,
            wait_ms=effect.wait_ms,
            epoch=effect.epoch,
            after_offset=effect.after_offset,
            confirm=confirm,
            lease=effect.lease,
            lease_after=effect.lease_after,
            definitions_known=dict(list(effect.definitions_known.items())[-ORIGINS_MAX:]),
            taken=effect.last_batch
            and TakenEnd(last_offset=effect.last_batch.last_offset, digest=effect.last_batch.digest.hex()),
            held=self._held(effect.epoch) if effect.must_show else None,
            told=effect.after_offset if effect.epoch is not None else None,
        )
        fetch_id = effect.fetch_id
        expiry_s = (effect.wait_ms + settings.receiver.answer_timeout_ms) // 1000 + 1
        try:
            sent = self._asker.send(request, lambda payload: self._answered(fetch_id, payload), expiry_s)
        except TransportError as error:
            self._send_failed(fetch_id, error)
        else:
            sent.add_done_callback(lambda future: self._sent(fetch_id, future))

    def _held(self, epoch: str | None) -> HeldEnd | None:
        """The last of the peer's own facts of this epoch that is here, by whatever path."""
        if epoch is None:
            return None
        settings = self._settings
        ranges = self._store.held(settings.stream).get(Origin(settings.peer_zone, bytes.fromhex(epoch)))
        return HeldEnd(last_sequence=ranges[-1].last_sequence, digest=ranges[-1].last_digest.hex()) if ranges else None

    def _sent(self, fetch_id: int, future: asyncio.Future[None]) -> None:
        error = None if future.cancelled() else future.exception()
        if isinstance(error, TransportError):
            self._send_failed(fetch_id, error)

    def _send_failed(self, fetch_id: int, error: TransportError) -> None:
        self._tell(FetchFailed(fetch_id, "transport", str(error), error.retryable))

    def _append(self, effect: Append[_Arrived]) -> None:
        arrived = effect.page.content
        if arrived.checked.done():
            self._put(effect, arrived)
        else:
            arrived.checked.add_done_callback(lambda _: self._put(effect, arrived))

    def _put(self, effect: Append[_Arrived], arrived: _Arrived) -> None:
        if arrived.checked.cancelled():
            return  # we are being stopped
        refused = arrived.checked.exception()
        if isinstance(refused, PageRefused):
            self._append_failed(refused)
        elif any(batch.header.kind is Kind.MESSAGES for batch in arrived.checked.result()):
            if self._group is not None:  # else we are being stopped
                self._group.create_task(self._put_after_artifacts(effect, arrived), name="artifacts")
        else:
            self._put_checked(effect, arrived)

    async def _put_after_artifacts(self, effect: Append[_Arrived], arrived: _Arrived) -> None:
        """Messages may refer to artifacts, which come first."""
        try:
            await self._artifacts.bring(arrived.checked.result())
        except TransportError as error:
            self._append_failed(error)
        except self._store_errors as error:
            self._append_failed(error)
        else:
            self._put_checked(effect, arrived)

    def _put_checked(self, effect: Append[_Arrived], arrived: _Arrived) -> None:
        definitions: list[ReceivedDefinition] = []
        for page in (*effect.definitions_before, effect.page):
            definitions += page.content.content.definitions
        settings = self._settings
        position = PeerPosition(bytes.fromhex(effect.epoch), effect.offset, effect.page.last_batch)
        try:
            future = self._store.inbound.put_batches(
                settings.peer_zone,
                settings.stream,
                arrived.checked.result(),
                definitions,
                position,
                holes=arrived.content.holes,
                is_backlog=self._progress.takes_backlog,
            )
        except self._store_errors as error:
            self._append_failed(error)
        else:
            asyncio.wrap_future(future).add_done_callback(self._appended)

    def _appended(self, future: asyncio.Future[PutResult]) -> None:
        if future.cancelled():
            return
        error = future.exception()
        if error is None:
            result = future.result()
            self._facts_stored += result.stored_facts
            self._facts_duplicate += result.duplicate_facts
            self._log_ranges("facts_refused", result.refused)
            self._log_ranges("facts_uncompared", [one for one in result.uncompared if one not in self._uncompared])
            self._uncompared.update(result.uncompared)  # said once, though each page of an old epoch says it again
            self._tell(Appended())
        elif isinstance(error, self._store_errors):
            self._append_failed(error)
        else:
            self._crash = error  # our own mistake: it ends the task, and with it the node
            self._tell(Tick())

    def _log_ranges(self, event: str, ranges: Iterable[OriginRange]) -> None:
        for one in ranges:
            fields = {"peer": self._settings.peer_zone, "stream": self._settings.stream, "origin": one.zone}
            where = {"first_sequence": one.first_sequence, "last_sequence": one.last_sequence}
            _log.warning(event, extra={**fields, "epoch": one.epoch.hex(), **where})

    def _append_failed(self, error: BaseException) -> None:
        self._tell(
            AppendFailed(f"{type(error).__name__}: {error}", is_retryable=bool(getattr(error, "retryable", False)))
        )

    # ---------------------------------------------------------------------------------------------------------- answers

    def _answered(self, fetch_id: int, payload: bytes) -> None:
        settings = self._settings
        if self._bandwidth is not None:
            self._bandwidth.spend(len(payload), _now_ms())
        try:
            answer, sealed = decode_answer(payload)
            if isinstance(answer, ErrorAnswer):
                error = answer.error
                reason = f"{error.code}: {advice(error.message, error.hint)}"
                self._tell(FetchFailed(fetch_id, error.code, reason, error.retryable, answer.epoch))
                return
            page = check_page(answer, sealed, settings.peer_zone, settings.stream, settings.origins, self._start_check)
        except MalformedMessage as error:
            self._tell(_unreadable(fetch_id, error))
        except PageRefused as error:
            self._tell(FetchFailed(fetch_id, "page_refused", str(error), is_retryable=False))
        else:
            self._last_answer_ms = _now_ms()
            self.begun.set()
            self._peer_end_offset = page.end_offset
            self._tell(PageArrived(fetch_id, page))

    def _start_check(self, content: PageContent) -> _Arrived:
        settings = self._settings
        check = partial(
            check_batches,
            content.entries,
            content.sealed,
            settings.stream,
            settings.origins,
            is_opened=settings.verify,
        )
        if self._checker is not None and sum(map(len, content.sealed)) > CHECKED_INLINE_BYTES_MAX:
            checked: asyncio.Future[list[Batch]] = self._loop.run_in_executor(self._checker, check)
            checked.add_done_callback(_seen)  # a page that is dropped is not asked how its check ended
            return _Arrived(content, checked)
        checked = self._loop.create_future()
        try:
            checked.set_result(check())
        except PageRefused as error:
            checked.set_exception(error)
            _seen(checked)
        return _Arrived(content, checked)


def _unreadable(fetch_id: int, error: MalformedMessage) -> FetchFailed:
    """An answer in another major version stays one until somebody updates a node; any other may have been spoilt on its way."""
    if error.code == "unsupported_version":
        return FetchFailed(fetch_id, error.code, f"{error.why}. {ERRORS[error.code].hint}", is_retryable=False)
    return FetchFailed(fetch_id, "malformed", f"unreadable answer: {error.why}", is_retryable=True)


def _seen(future: asyncio.Future[list[Batch]]) -> None:
    if not future.cancelled():
        future.exception()


def _now_ms() -> int:
    return time.monotonic_ns() // 1_000_000
