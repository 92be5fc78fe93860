"""The pulling shell: one stream of one peer, on asyncio.

`pull_runner` knows what to do. This module gives it a clock, a connection, and a thread that checks large pages, so
that a page read ahead is checked while the previous one is written. Everything that happens becomes an event in one
bounded queue, and one task passes the events to the runner.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial

from agent.concurrency import TaskGroup
from agent.errors import StoreError
from agent.pages import ReceivedPage
from agent.replication.mqtt import Requester
from agent.replication.protocol.codec import ArrivedAnswer
from agent.replication.protocol.errors import ConnectionLost, TransportError
from agent.replication.protocol.pacing import Alarm
from agent.replication.protocol.ports import ReceivingStore
from agent.replication.protocol.token_bucket import TokenBucket
from agent.replication.pulling.catch_up import CatchUp
from agent.replication.pulling.page_check import PageRefused
from agent.replication.pulling.page_judge import PageJudge
from agent.replication.pulling.pull_runner import PullRunner, PullSettings, not_sent
from agent.replication.pulling.receiving.pull_events import (
    Append,
    Asking,
    Event,
    Fetch,
    FetchFailed,
    LinkDown,
    LinkUp,
    PageArrived,
    ReceiverCounters,
    Tick,
)
from agent.replication.pulling.throttled_requester import ThrottledRequester
from agent.telemetry import Telemetry

EVENTS_MAX = 512
"""Room for an answer to every remembered request, and a few more. Only answers can exceed it; they are requested
again."""
CHECKED_INLINE_BYTES_MAX = 16 * 1024
"""Smaller pages are checked in the event loop: up to 2,000 facts, in 0.2 ms, as long as the thread switch would
take."""


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

    peer_node: str
    stream: str
    asking: Asking
    lost_reason: str | None
    offset: int
    lease: int
    peer_end_offset: int
    counters: ReceiverCounters
    last_answer_ms: int | None
    """Monotonic clock."""
    level_ms: int | None
    """What the peer had then has arrived; None: not known since the start. Monotonic clock."""
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
        chance: Callable[[], float] = random.random,
        bandwidth: TokenBucket | None = None,
        telemetry: Telemetry | None = None,
        judge: PageJudge | None = None,
    ) -> None:
        self._bandwidth = bandwidth
        self._requester = requester
        self._chance = chance
        self._events: asyncio.Queue[Event] = asyncio.Queue(EVENTS_MAX)
        self._checks = ThreadPoolExecutor(1, "bsfg-check")  # its thread begins with the first large page
        throttled = ThrottledRequester(requester, bandwidth, telemetry=telemetry)
        self._runner = PullRunner(store, settings, throttled, self._start_check, bandwidth, judge=judge)
        loop = asyncio.get_running_loop()
        self._alarm = Alarm(lambda delay_s, call: loop.call_later(delay_s, call).cancel, self._deadline_passed)
        self._untaken: int | None = None  # the newest request, until the broker has taken it
        self._last_answer_ms: int | None = None
        self.begun = asyncio.Event()
        """Set by the peer's first answer in this life: the consumer is registered there."""

    def statistics(self) -> PullStatistics:
        runner, core = self._runner, self._runner.core
        return PullStatistics(
            peer_node=runner.settings.peer_node,
            stream=runner.settings.stream,
            asking=core.asking,
            lost_reason=core.contact.lost_reason,
            offset=core.place.offset,
            lease=core.lease.epoch,
            peer_end_offset=runner.peer_end_offset,
            counters=replace(core.counters),
            last_answer_ms=self._last_answer_ms,
            level_ms=core.contact.level_ms,
            catch_up=runner.catch_up.now,
            page_waits=core.pages.waits or runner.artifacts.waits,
            pacing=self._pacing(core.pace.paced_ms(_now_ms())),
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
            with self._checks:
                self._requester.link.watch(
                    lambda: self._happened(LinkUp()), lambda reason: self._happened(LinkDown(reason))
                )
                async with TaskGroup() as group:
                    while True:
                        for effect in runner.handle(await self._events.get(), _now_ms(), self._chance()):
                            if isinstance(effect, Append):
                                group.create_task(self._store(effect), name="store page")
                            else:
                                self._send(effect)
                        self._alarm.set(runner.core.deadline_ms, _now_ms())
        finally:
            self._alarm.cancel()

    async def _store(self, page: Append) -> None:
        self._happened(await self._runner.store_page(page))

    def _send(self, fetch: Fetch) -> None:
        fetch_id, core = fetch.fetch_id, self._runner.core

        def sent(future: asyncio.Future[None]) -> None:
            if future.cancelled():
                return
            error = future.exception()
            if isinstance(error, ConnectionLost):
                core.contact.cut_off()
            else:
                core.contact.taken()
            if isinstance(error, TransportError):
                self._happened(not_sent(fetch_id, error))
            else:
                core.taken(fetch_id, _now_ms())
                if self._untaken == fetch_id:
                    self._untaken = None

        request, expiry_s = self._runner.request(fetch)
        try:
            sending = self._requester.send(
                request,
                partial(self._answered, fetch_id),
                expiry_s,
                lambda: core.still_waits(fetch_id, _now_ms()),
            )
        except TransportError as error:
            self._happened(not_sent(fetch_id, error))
        else:
            self._untaken = fetch_id
            sending.add_done_callback(sent)

    def _answered(self, fetch_id: int, arrived: ArrivedAnswer) -> None:
        if self._bandwidth is not None:
            self._bandwidth.spend(len(arrived.payload), _now_ms())
        event = self._runner.answered(fetch_id, arrived)
        if isinstance(event, PageArrived):
            self._last_answer_ms = _now_ms()
            self.begun.set()
        self._happened(event)

    def _start_check(self, check: Callable[[], ReceivedPage], size: int) -> Awaitable[ReceivedPage]:
        loop = asyncio.get_running_loop()
        if size > CHECKED_INLINE_BYTES_MAX:
            checked: asyncio.Future[ReceivedPage] = loop.run_in_executor(self._checks, check)
            checked.add_done_callback(_retrieve)
            return checked
        checked = loop.create_future()
        try:
            checked.set_result(check())
        except (PageRefused, StoreError) as error:
            checked.set_exception(error)
            _retrieve(checked)
        return checked

    def _deadline_passed(self) -> None:
        """Most deadlines are moved before they come: the alarm is then set again."""
        deadline_ms, now_ms = self._runner.core.deadline_ms, _now_ms()
        if deadline_ms is None or deadline_ms > now_ms:
            self._alarm.set(deadline_ms, now_ms)
            return
        is_untaken = self._untaken == self._runner.core.open_fetch_id
        self._happened(Tick(is_behind=is_untaken or self._requester.link.is_behind()))

    def _happened(self, event: Event) -> None:
        """Queue an event. Only answers could fill the queue, and those may be dropped."""
        if isinstance(event, PageArrived | FetchFailed) and self._events.qsize() >= EVENTS_MAX // 2:
            return
        self._events.put_nowait(event)


def _retrieve(future: asyncio.Future[ReceivedPage]) -> None:
    """Mark the exception as retrieved, so that asyncio does not log it: the result is never awaited if the page is
    dropped."""
    if not future.cancelled():
        future.exception()


def _now_ms() -> int:
    return time.monotonic_ns() // 1_000_000
