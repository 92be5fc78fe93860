"""The pulling shell: one stream of one peer, on asyncio.

`receiver` decides and `pull_runner` carries out its decisions. This module gives them a clock, a connection, and a
thread that checks large pages, so that a page read ahead is checked while the previous one is written. Everything that
happens becomes an event in one bounded queue, and one task passes the events to the runner.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from typing import Any

from agent.batch import Batch
from agent.concurrency import TaskGroup
from agent.pages import LackingDefinitions, OriginRange, PutResult
from agent.replication.mqtt import Requester
from agent.replication.protocol.arrived_answer import ArrivedAnswer
from agent.replication.protocol.errors import TransportError
from agent.replication.protocol.messages import FetchFacts
from agent.replication.protocol.ports import ReceivingStore
from agent.replication.protocol.token_bucket import TokenBucket
from agent.replication.pulling.artifact_pull import ArtifactPull
from agent.replication.pulling.catch_up import CatchUp, CatchUpEvent
from agent.replication.pulling.definition_pull import DefinitionPull
from agent.replication.pulling.page_check import PageRefused
from agent.replication.pulling.page_judge import JudgedPage, PageJudge
from agent.replication.pulling.pull_events import (
    Asking,
    FetchFailed,
    LinkDown,
    LinkUp,
    Note,
    NoteKind,
    PageArrived,
    ReceiverCounters,
    Tick,
)
from agent.replication.pulling.pull_runner import PullEvent, PullRunner, PullSettings
from agent.replication.pulling.throttled_requester import ThrottledRequester
from agent.telemetry import Telemetry

EVENTS_MAX = 512
"""Room for an answer to every remembered request, and a few more. Only answers can exceed it; they are requested
again."""
CHECKED_INLINE_BYTES_MAX = 16 * 1024
"""Smaller pages are checked in the event loop: up to 2,000 facts, in 0.2 ms, as long as the thread switch would
take."""

CHECKS_MAX = 8
"""Pages being checked or waiting for it: three that are read ahead, and a few late ones. A peer could answer 256
requests at once with 1 MiB each; further answers count as lost."""

_log = logging.getLogger(__name__)
_INFORMATIVE = {NoteKind.PEER_RETURNED, NoteKind.STORE_ACCEPTS}
_FOR_OPERATOR = {NoteKind.PEER_REFUSES, NoteKind.PAGE_REFUSED, NoteKind.RECEIVER_FENCED}
"""The pull stops until an operator acts, so an incident is recorded."""


@dataclass(frozen=True, slots=True)
class Pacing:
    """The effect of a peer's bandwidth limit. `paced_ms`: how long this pull has waited because of it. For all pulls of
    the peer together, `bytes_owed` arrived before they were due and are not yet paid off; `bytes_waited_off` are."""

    bytes_per_second_max: int
    paced_ms: int
    bytes_owed: int
    bytes_waited_off: int


@dataclass(frozen=True, slots=True)
class PullStatistics:
    """The state of a pull, and its counters since the start."""

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
    counters: ReceiverCounters
    last_answer_ms: int | None
    """Monotonic clock."""
    catch_up: CatchUp | None
    """None unless this pull is far behind."""
    page_waits: str
    """Why the store repeatedly refuses a page for now; "" while it does not."""
    pacing: Pacing | None
    """None unless the peer's bandwidth is limited."""


class Puller:
    """Pulls one stream of one peer. Must be created before the requester's link runs. All pullers of one peer share
    `bandwidth`, which is None if it is not limited."""

    def __init__(
        self,
        requester: Requester,
        store: ReceivingStore,
        settings: PullSettings,
        store_errors: tuple[type[Exception], ...],
        chance: Callable[[], float] = random.random,
        bandwidth: TokenBucket | None = None,
        telemetry: Telemetry | None = None,
        judge: PageJudge | None = None,
    ) -> None:
        telemetry = telemetry or Telemetry()
        self._bandwidth = bandwidth
        self._requester = requester
        self._store = store
        self._settings = settings
        self._store_errors = store_errors
        self._check_errors: tuple[type[Exception], ...] = (PageRefused, *store_errors)
        self._chance = chance
        self._loop = asyncio.get_running_loop()
        self._events: asyncio.Queue[PullEvent] = asyncio.Queue(EVENTS_MAX)
        self._runner = PullRunner(*(self, store, settings, store_errors), bandwidth, telemetry, judge=judge)
        self._checker: ThreadPoolExecutor | None = None
        self._checks_open = 0
        self._group: TaskGroup | None = None
        self._untaken: int | None = None  # the newest request, until the broker has taken it
        self._timer: asyncio.TimerHandle | None = None
        self._timer_ms = 0
        self._facts_stored = 0
        self._facts_duplicate = 0
        self._last_answer_ms: int | None = None
        throttled = ThrottledRequester(requester, bandwidth, telemetry=telemetry)
        self._artifacts = ArtifactPull(throttled, store.artifacts, store_errors)
        self._definitions = DefinitionPull(throttled, store.inbound)
        self.begun = asyncio.Event()
        """Set by the peer's first answer in this life: the consumer is registered there."""

    def statistics(self) -> PullStatistics:
        core, peer_end_offset = self._runner.core, self._runner.peer_end_offset
        return PullStatistics(
            peer_zone=self._settings.peer_zone,
            stream=self._settings.stream,
            asking=core.asking,
            lost_reason=core.lost_reason,
            offset=core.stored_offset,
            frontier=core.frontier,
            lease=core.lease,
            peer_end_offset=peer_end_offset,
            is_caught_up=core.is_caught_up and core.stored_offset >= peer_end_offset,
            facts_stored=self._facts_stored,
            facts_duplicate=self._facts_duplicate,
            counters=replace(core.counters),
            last_answer_ms=self._last_answer_ms,
            catch_up=self._runner.catch_up.now,
            page_waits=core.page_waits or self._artifacts.waits,
            pacing=self._pacing(core.paced_ms(_now_ms())),
        )

    def _pacing(self, paced_ms: int) -> Pacing | None:
        limit, now_ms = self._bandwidth, _now_ms()
        if limit is None:
            return None
        return Pacing(limit.bytes_per_second_max, paced_ms, limit.bytes_owed(now_ms), limit.bytes_waited_off)

    async def run(self) -> None:
        """Pull until cancelled; may be called once. At the end, a page that is being stored is stored as a whole or not
        at all."""
        runner = self._runner
        try:
            with ThreadPoolExecutor(1, "bsfg-check") as self._checker:
                self._requester.link.watch(
                    lambda: self.happened(LinkUp()), lambda reason: self.happened(LinkDown(reason))
                )
                async with TaskGroup() as self._group:
                    while True:
                        runner.handle(await self._events.get(), _now_ms(), self._chance())
                        self._set_timer()
        finally:
            runner.spans.stopped()
            self._checker = self._group = None
            if self._timer is not None:
                self._timer.cancel()

    def _set_timer(self) -> None:
        """Have a tick at the core's deadline. A timer that is due earlier stays and is set again then: most deadlines
        are moved before they come."""
        deadline_ms = self._runner.core.deadline_ms
        if deadline_ms is None:
            return
        if self._timer is not None:
            if self._timer_ms <= deadline_ms:
                return
            self._timer.cancel()
        self._timer_ms = deadline_ms
        self._timer = self._loop.call_at(deadline_ms / 1000 + 0.001, self._timer_due)

    def _timer_due(self) -> None:
        self._timer = None
        deadline_ms = self._runner.core.deadline_ms
        if deadline_ms is not None and deadline_ms <= _now_ms():
            is_untaken = self._untaken == self._runner.core.open_fetch_id
            self.happened(Tick(is_behind=is_untaken or self._requester.link.is_behind()))
        else:
            self._set_timer()

    # ----------------------------------------------------------------------------------------- what the runner asks for

    def happened(self, event: PullEvent) -> None:
        """Queue an event. Only answers could fill the queue, and those may be dropped."""
        if isinstance(event, PageArrived | FetchFailed) and self._events.qsize() >= EVENTS_MAX // 2:
            return
        self._events.put_nowait(event)

    def send(self, fetch_id: int, request: FetchFacts, expiry_s: int) -> None:
        runner = self._runner

        def sent(future: asyncio.Future[None]) -> None:
            if future.cancelled():
                return
            error = future.exception()
            if isinstance(error, TransportError):
                runner.send_failed(fetch_id, error)
            else:
                runner.core.taken(fetch_id, _now_ms())
                if self._untaken == fetch_id:
                    self._untaken = None

        try:
            sending = self._requester.send(
                request,
                lambda arrived: self._answered(fetch_id, arrived),
                expiry_s,
                lambda: runner.core.still_waits(fetch_id, _now_ms()),
            )
        except TransportError as error:
            runner.send_failed(fetch_id, error)
        else:
            self._untaken = fetch_id
            sending.add_done_callback(sent)

    def _answered(self, fetch_id: int, arrived: ArrivedAnswer) -> None:
        if self._bandwidth is not None:
            self._bandwidth.spend(len(arrived.payload), _now_ms())
        if self._checks_open >= CHECKS_MAX:
            return
        if self._runner.answered(fetch_id, arrived):
            self._last_answer_ms = _now_ms()
            self.begun.set()

    def check(self, check: Callable[[], JudgedPage], size: int) -> Awaitable[JudgedPage]:
        if self._checker is not None and size > CHECKED_INLINE_BYTES_MAX:
            checked: asyncio.Future[JudgedPage] = self._loop.run_in_executor(self._checker, check)
            self._checks_open += 1
            checked.add_done_callback(self._check_ended)
            return checked
        checked = self._loop.create_future()
        try:
            checked.set_result(check())
        except self._check_errors as error:
            checked.set_exception(error)
            _retrieve(checked)
        return checked

    def _check_ended(self, checked: asyncio.Future[JudgedPage]) -> None:
        self._checks_open -= 1
        _retrieve(checked)  # the result is never awaited if the page is dropped

    def begin(self, storing: Coroutine[Any, Any, None]) -> None:
        assert self._group is not None
        self._group.create_task(storing, name="store page")

    def durable(self, future: Future[PutResult]) -> Awaitable[PutResult]:
        return asyncio.wrap_future(future)

    def fetch_artifacts(self, batches: list[Batch]) -> Awaitable[bool]:
        return self._artifacts.fetch(batches)

    def fetch_definitions(self, lacking: Sequence[LackingDefinitions]) -> Awaitable[None]:
        return self._definitions.fetch(lacking)

    def note(self, note: Note) -> None:
        settings = self._settings
        level = logging.INFO if note.kind in _INFORMATIVE else logging.WARNING
        _log.log(level, note.kind.value, extra={**self._about(), "reason": note.reason})
        if note.kind in _FOR_OPERATOR:
            with contextlib.suppress(*self._store_errors):  # the store is full: log and status still report it
                self._store.inbound.note("pull_stands", settings.stream, settings.peer_zone, note.reason)

    def stored(self, result: PutResult) -> None:
        self._facts_stored += result.stored_facts
        self._facts_duplicate += result.duplicate_facts
        self._log_ranges("facts_refused", result.refused)

    def caught_up(self, event: CatchUpEvent, progress: CatchUp) -> None:
        _log.info(event.value, extra={**self._about(), "percent": round(progress.percent, 1), **asdict(progress)})

    def _about(self) -> dict[str, object]:
        return {"peer": self._settings.peer_zone, "stream": self._settings.stream}

    def _log_ranges(self, event: str, ranges: Iterable[OriginRange]) -> None:
        for one in ranges:
            where = {"first_sequence": one.first_sequence, "last_sequence": one.last_sequence}
            _log.warning(event, extra={**self._about(), "origin": one.zone, "life": one.life.hex(), **where})


def _retrieve(future: asyncio.Future[JudgedPage]) -> None:
    """Mark the exception as retrieved, so that asyncio does not log it."""
    if not future.cancelled():
        future.exception()


def _now_ms() -> int:
    return time.monotonic_ns() // 1_000_000
