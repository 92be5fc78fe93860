"""FetchFacts, ConfirmReceipt and GetCursor, over a store whose futures the test resolves by hand.

Each test stops a request at one place and checks what the store has been asked by then and what has not been answered
yet.
"""

import asyncio
import contextlib
import itertools
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import Future
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from agent.batch import Origin
from agent.lease import NO_LEASE, Lease, LeaseClaim
from agent.pages import Page
from agent.positions import LifeList, LogLives, Position, Resolved
from agent.replication.protocol.codec import encode_heartbeat
from agent.replication.protocol.messages import (
    Confirm,
    ConfirmAnswer,
    ConfirmReceipt,
    FetchAnswer,
    FetchFacts,
    GetCursor,
    LogPosition,
    UnregisterConsumer,
)
from agent.replication.protocol.pacing import HEARTBEAT_MS
from agent.replication.protocol.token_bucket import SAVED_MS_MAX
from agent.replication.serving import admission
from agent.replication.serving.admission import Caller, PeerRights
from agent.replication.serving.limits import CONFIRM_COMMITS_PER_SECOND
from agent.replication.serving.operations.consumers import Consumers
from agent.replication.serving.operations.context import Context
from agent.replication.serving.outcomes import Drop, DropReason, Outcome, Refuse, Reply
from agent.settings.peers import CONSUMERS_BESIDE_STREAMS
from tests.replication.serving.support import Registered, stored
from tests.waiting import LIMIT_S, wait_until_async

STREAM, NAME = "facts.telemetry", "idmz.facts.telemetry"
ONE, TWO = Caller("idmz", "one", b"12345678", "rsp/one"), Caller("idmz", "two", b"87654321", "rsp/two")
ORIGIN = Origin("plant-a", bytes(16))
LIFE = "a1" * 16
CONFIRM = Confirm(last_offset=10, life=LIFE, first_offset=4)


class FencedError(Exception):
    """The store's error for a fenced instance."""


class Store:
    """Records its calls in order; the test resolves every future."""

    zone = node = "plant-a"
    life, signer = bytes.fromhex(LIFE), None

    def __init__(self) -> None:
        self.asked: list[tuple[Any, ...]] = []
        self.disk_reads: list[tuple[str, threading.Thread]] = []
        self.futures: dict[str, Future[Any]] = {}
        self.at_once: dict[str, Iterator[Any]] = {}  # results of calls that are not waited for
        self.held: Registered | None = Registered("idmz", STREAM, 10, Lease(3, "one"))
        self.end = 20
        self.consumers = self.reader = self

    def _later(self, name: str, *arguments: object) -> Future[Any]:
        self.asked.append((name, *arguments))
        self.futures[name] = Future()
        if name in self.at_once:
            self.futures[name].set_result(next(self.at_once[name]))
        return self.futures[name]

    def names(self) -> list[str]:
        """The names of the calls."""
        return [name for name, *_ in self.asked]

    def get(self, _: str) -> Registered | None:
        return self.held

    def end_offset(self, _: str) -> int:
        return self.end

    def is_in_memory(self, *_: object) -> bool:
        return True

    def register(self, *arguments: object, zone_max: int) -> Future[Any]:
        assert zone_max == CONSUMERS_BESIDE_STREAMS
        return self._later("register", *arguments)

    def unregister(self, *arguments: object) -> Future[Any]:
        return self._later("unregister", *arguments)

    def hold_lease(self, *arguments: object) -> Future[Any]:
        return self._later("hold_lease", *arguments)

    def confirm(
        self,
        name: str,
        last: int,
        first: int | None = None,
        *,
        claim: LeaseClaim | None = None,
        life: bytes | None = None,
        digest: bytes = b"",
        is_awaited: bool,
    ) -> Future[Any]:
        assert (life, digest) == (self.life, b"")
        assert not is_awaited, "who waits has it committed"
        return self._later("confirm", name, last, first, claim)

    def commit_deferred(self) -> None:
        self.asked.append(("commit",))

    def peer_reads_more(self, zone: str, why: str) -> None:
        self.asked.append(("peer_reads_more", zone, why))

    def log(self, _: str) -> LogLives:
        return LogLives(LifeList([(self.life, 1)]), self.end, self.life)

    def resolve(self, stream: str, position: Position) -> Resolved:
        self.disk_reads.append(("resolve", threading.current_thread()))
        return self.log(stream).resolve(position, lambda *_: False)

    def seen(self, _name: str, *, is_at_end: bool, waits_ms: int = 0) -> None:
        self.asked.append(("seen", is_at_end, waits_ms > 0))

    def read(self, _stream: str, after_offset: int, *_: object, until_offset: int | None = None, **_how: bool) -> Page:
        self.asked.append(("read", after_offset, until_offset))
        self.disk_reads.append(("read", threading.current_thread()))
        if after_offset >= self.end:
            return Page([], self.end)
        return Page([stored(after_offset + 1, self.end, 25, ORIGIN)], self.end)


def at(offset: int, life: str = LIFE) -> LogPosition:
    """A position in the log."""
    return LogPosition(offset=offset, life=life)


def fetch(**fields: object) -> FetchFacts:
    """A fetch of idmz at its position 10."""
    given = {"consumer_name": NAME, "limit": 100, "lease": 3, "after": at(10), **fields}
    return FetchFacts(**given)


def receipt(**fields: object) -> ConfirmReceipt:
    """A confirmation of idmz."""
    given = {"consumer_name": NAME, "offset": 10, "first_offset": 4, "lease": 3, "life": LIFE, **fields}
    return ConfirmReceipt(**given)


async def stands(task: asyncio.Task[Outcome]) -> bool:
    """Whether a request still waits after everything that can run has run."""
    for _ in range(20):
        await asyncio.sleep(0)
    return not task.done()


def page_of(outcome: Outcome) -> FetchAnswer:
    """The page in the answer."""
    assert isinstance(outcome, Reply), outcome
    assert isinstance(outcome.answer, FetchAnswer)
    return outcome.answer


@contextlib.asynccontextmanager
async def play() -> AsyncIterator[tuple[Store, Consumers]]:
    """Run a scenario with a store and the shell above it."""
    store = Store()
    link: Any = SimpleNamespace(require=lambda: SimpleNamespace(packet_bytes_max=1_000_000))
    context = Context(link, store, {"hub": PeerRights(set())} | dict.fromkeys(("mill", "idmz"), PeerRights({STREAM})))  # type: ignore[arg-type]
    async with asyncio.timeout(LIMIT_S):
        yield store, Consumers(context)


async def test_a_confirmation_is_answered_when_it_is_durable() -> None:
    """ConfirmReceipt passes the whole range and the lease to the store, and answers after the commit with the store's
    frontier."""
    async with play() as (store, consumers):
        task = asyncio.create_task(consumers.confirm(ONE, receipt()))
        assert await stands(task)
        assert store.asked == [("confirm", NAME, 10, 4, LeaseClaim("one", 3)), ("commit",)]
        store.futures["confirm"].set_result(12)
        outcome = await task
        assert isinstance(outcome, Reply)
        assert isinstance(outcome.answer, ConfirmAnswer)
        assert (outcome.answer.cursor_advanced_to, outcome.answer.lease) == (12, 3)


async def test_a_removed_consumer_leaves_no_fetch_parked() -> None:
    """Its fetch ends without an answer when the removal is durable, and takes no place of its zone any more."""
    async with play() as (store, consumers):
        parked = asyncio.create_task(consumers.fetch(ONE, fetch(after=at(20), wait_ms=9_000)))
        assert await stands(parked)
        asked = UnregisterConsumer(consumer_name=NAME, lease=3)
        removing = asyncio.create_task(consumers.unregister(ONE, asked))
        assert await stands(removing)
        assert not parked.done()
        store.reader.held = None
        store.futures["unregister"].set_result(True)
        assert isinstance(await removing, Reply)
        assert await parked == Drop(DropReason.SUPERSEDED)
        assert consumers.parked() == 0


async def test_a_position_of_another_log_ends_a_fetch() -> None:
    """An incident names each peer, once while it repeats the position; a position that may have another digest here is
    looked up in a thread."""
    async with play() as (store, consumers):
        for node in ("mill", "idmz", "idmz"):
            store.held = Registered(node, STREAM, 10, Lease(3, "one"))
            request = fetch(consumer_name=f"{node}.{STREAM}", confirm=CONFIRM, after=at(10, "bb" * 16))
            outcome = await consumers.fetch(replace(ONE, node=node), request)
            assert isinstance(outcome, Refuse)
            assert outcome.code == "life_unknown"
        assert [asked[:2] for asked in store.asked] == [("peer_reads_more", "mill"), ("peer_reads_more", "idmz")]
        named = LogPosition(offset=5, life=LIFE, digest="d1" * 16)
        await consumers.fetch(ONE, fetch(after=named))
        assert [thread is threading.current_thread() for name, thread in store.disk_reads if name == "resolve"] == [
            *(True, True, True, False)
        ]


async def test_a_page_read_ahead_goes_out_while_its_confirmation_is_written() -> None:
    """With a position the page is sent, whatever the later result of the confirmation, which went to the store
    whole and under its lease."""
    async with play() as (store, consumers):
        answer = page_of(await consumers.fetch(ONE, fetch(confirm=CONFIRM)))
        assert (answer.runs(), answer.frontier) == ([(11, 20)], 10)
        assert ("confirm", NAME, 10, 4, LeaseClaim("one", 3)) in store.asked
        store.futures["confirm"].set_exception(FencedError())  # no task waits for it any more
        await asyncio.sleep(0)


async def test_a_page_read_ahead_reports_a_failed_confirmation() -> None:
    """The confirmation fails while the page is served: the requester gets the error at once, not with its next
    request."""
    async with play() as (store, consumers):
        task = asyncio.create_task(consumers.fetch(ONE, fetch(confirm=CONFIRM, after=at(20), wait_ms=3_600_000)))
        assert await stands(task)
        store.futures["confirm"].set_exception(FencedError())
        assert await stands(task)
        store.end = 30
        consumers.committed(asyncio.get_running_loop(), {STREAM: 30})
        with pytest.raises(FencedError):
            await task
        assert store.names()[-1] == "read"


@pytest.mark.parametrize(
    "after, asked, frontier, runs",
    [(None, ["confirm", "commit"], 15, [(16, 20)]), (at(20), ["confirm", "read", "commit"], 10, [])],
)
async def test_only_a_page_with_facts_and_a_position_goes_out_before_the_confirmation(
    after: LogPosition | None, asked: list[str], frontier: int, runs: list[tuple[int, int]]
) -> None:
    """Without a position the page begins at the frontier after the confirmation, so that must be durable before
    anything is read. An answer without facts is not read ahead: the frontier in it is durable."""
    async with play() as (store, consumers):
        task = asyncio.create_task(consumers.fetch(ONE, fetch(after=after, confirm=CONFIRM)))
        assert await stands(task)
        assert store.names() == asked
        store.futures["confirm"].set_result(frontier)
        assert page_of(await task).runs() == runs


async def test_from_its_first_lease_on_a_fetch_shows_that_and_not_that_it_asks() -> None:
    """If it claimed 0 again after the wait, the store would take the lease back from a newer instance. Nothing is
    recorded before the store has decided."""
    async with play() as (store, consumers):
        store.held = Registered("idmz", STREAM, 10, Lease(3, "two"))
        store.at_once["hold_lease"] = iter([Lease(4, "one"), Lease(5, "two")])
        await consumers.fetch(ONE, fetch(lease=0, confirm=CONFIRM))
        assert [(name, more[-1]) for name, *more in store.asked if name in {"hold_lease", "confirm"}] == [
            ("hold_lease", LeaseClaim("one", 0)),
            ("confirm", LeaseClaim("one", 4)),
            ("hold_lease", LeaseClaim("one", 4)),
        ]
        assert store.names() == ["hold_lease", "confirm", "read", "hold_lease", "seen"]


@pytest.mark.parametrize("after", [2, 3])
async def test_a_claim_after_an_old_lease_gets_the_lease_in_force(after: int) -> None:
    """Nothing is confirmed, begun or read for a caller that claims the lease after one that is no longer in force."""
    async with play() as (store, consumers):
        store.held = Registered("idmz", STREAM, 10, Lease(3, "two"))
        store.at_once["hold_lease"] = itertools.repeat(Lease(4, "one"))
        answer = page_of(await consumers.fetch(ONE, fetch(lease=0, lease_after=after, confirm=CONFIRM)))
        if after == 3:
            assert (answer.lease, answer.lease_in_force) == (4, None)
        else:
            assert (answer.lease_in_force, answer.more, answer.runs()) == (3, True, [])
            assert store.asked == []


@pytest.mark.parametrize("after", [at(21), at(10, "b2" * 16), at(0, "b2" * 16)])
async def test_a_position_that_is_not_in_this_log_changes_nothing(after: LogPosition) -> None:
    """Nothing is registered, leased, confirmed or read; an incident names the peer, and it must name its trail."""
    async with play() as (store, consumers):
        store.held = None
        outcome = await consumers.fetch(ONE, fetch(stream=STREAM, after=after, confirm=CONFIRM))
        assert isinstance(outcome, Refuse)
        assert outcome.code == "life_unknown"
        assert store.names() == ["peer_reads_more"]


@pytest.mark.parametrize(
    "trail, after",
    [
        ([at(4), at(12)], 12),
        ([at(12), at(30, "b2" * 16)], 12),
        ([at(30, "b2" * 16), at(12)], 12),
        ([at(9, "b2" * 16), at(9, "c3" * 16)], 0),
        ([], 0),
    ],
)
async def test_a_trail_is_read_on_from_where_it_is_valid_furthest(trail: list[LogPosition], after: int) -> None:
    """Wherever in the trail that position is; from the beginning if none is of this log."""
    async with play() as (_, consumers):
        page = page_of(await consumers.fetch(ONE, fetch(after=None, trail=trail)))
        assert (page.after.offset, page.runs()[0][:2]) == (after, (after + 1, 20))


@pytest.mark.parametrize("name", ["enterprise.facts", "local.mes", "idmz", "idmz-2.facts", "plant-a.own"])
async def test_a_zone_uses_only_names_that_begin_with_it(name: str) -> None:
    """The answer does not depend on whether a consumer of that name exists, in any operation."""
    async with play() as (store, consumers):
        for store.held in (None, Registered("idmz", STREAM, 0), Registered("enterprise", STREAM, 0)):
            for outcome in (
                await consumers.fetch(ONE, fetch(consumer_name=name, stream=STREAM)),
                await consumers.confirm(ONE, receipt(consumer_name=name)),
                await consumers.get_cursor(ONE, GetCursor(consumer_name=name)),
                await consumers.unregister(ONE, UnregisterConsumer(consumer_name=name)),
            ):
                assert isinstance(outcome, Refuse)
                assert (outcome.code, store.asked) == ("consumer_not_yours", [])


@pytest.mark.parametrize(
    "held, epoch, is_asked",
    [
        (NO_LEASE, None, False),
        (NO_LEASE, 0, True),
        (Lease(2, "one"), 2, False),
        (Lease(2, "one"), 0, False),
        (Lease(3, "two"), 2, True),
        (Lease(3, "two"), None, True),
        (Lease(3, "two"), 4, True),
    ],
)
async def test_the_store_is_asked_only_where_a_lease_would_change(
    held: Lease, epoch: int | None, *, is_asked: bool
) -> None:
    """The holder is answered from memory. Before anything is confirmed, the store decides claims that would change the
    lease or fence the caller."""
    async with play() as (store, consumers):
        store.held = Registered("idmz", STREAM, 10, held)
        store.at_once = {"hold_lease": itertools.repeat(held), "confirm": itertools.repeat(10)}
        await consumers.confirm(ONE, receipt(lease=epoch))
        assert store.names() == [*["hold_lease"] * is_asked, "confirm", "commit"]


async def test_confirmations_that_wait_together_share_a_commit() -> None:
    """Of a zone that waits for one confirmation after the other, a limited number a second has a commit of its own.
    Further ones wait for the next commit and share it; another zone's are not delayed."""
    async with play() as (store, consumers):
        context, now_ms = consumers._context, 0
        context.now_ns = lambda: now_ms * 1_000_000  # type: ignore[method-assign]
        saved = CONFIRM_COMMITS_PER_SECOND * SAVED_MS_MAX // 1000 + 1
        tasks = [asyncio.create_task(consumers.confirm(ONE, receipt())) for _ in range(2 * saved)]
        await wait_until_async(lambda: store.names().count("confirm") == 2 * saved, "the confirmations")
        assert await stands(tasks[-1])
        assert store.names().count("commit") == saved
        consumers._commit_awaited("cloud")
        assert store.names().count("commit") == saved + 1
        now_ms = 1_000 // CONFIRM_COMMITS_PER_SECOND
        await wait_until_async(lambda: store.names().count("commit") == saved + 2, "the commit that they share")
        assert await stands(tasks[-1])
        assert store.names().count("commit") == saved + 2
        now_ms *= 2
        consumers._commit_awaited("idmz")
        consumers._commit_awaited("idmz")
        now_ms *= 2
        await wait_until_async(lambda: store.names().count("commit") == saved + 4, "the next ones share another")
        for task in tasks:
            task.cancel()


async def test_a_parked_fetch_is_answered_by_the_commit_that_brings_facts() -> None:
    """A commit of another stream wakes no fetch; the waited time is counted separately."""
    async with play() as (store, consumers):
        task = asyncio.create_task(consumers.fetch(ONE, fetch(after=at(20), wait_ms=3_600_000)))
        assert await stands(task)
        asked = list(store.asked)
        loop, failures = asyncio.get_running_loop(), list[dict[str, Any]]()
        loop.set_exception_handler(lambda _, failure: failures.append(failure))
        consumers.committed(loop, {"facts.other": 1})
        assert await stands(task)
        assert store.asked == asked
        store.end = 25
        for _ in range(2):  # the second commit comes before the fetch has gone on
            consumers.committed(loop, {STREAM: 25})
        outcome = await task
        assert failures == []
        assert page_of(outcome).runs() == [(21, 25)]
        assert isinstance(outcome, Reply)
        assert outcome.waited_ns > 0


async def test_waiting_fetches_are_named_until_none_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """One heartbeat to each requester at each interval, which names all its fetches, of whatever stream or consumer;
    none without a fetch that waits. Of those that are more than may wait, none does. The node stops
    while they wait: none is left."""
    monkeypatch.setattr(admission, "PARKED_PER_NODE_MAX", 3)
    async with play() as (store, consumers):
        context, sent, due = consumers._context, list[tuple[object, ...]](), list[Callable[[], object]]()
        context.send = lambda *what: sent.append(what)  # type: ignore[method-assign, assignment]

        def call_later(delay_s: float, callback: Callable[[], object]) -> Callable[[], None]:
            if delay_s == HEARTBEAT_MS / 1000:
                due.append(callback)
            return lambda: None

        context.call_later = call_later  # type: ignore[method-assign]
        waits, tasks = fetch(after=at(20), wait_ms=3_600_000), list[asyncio.Task[Outcome]]()
        again = Caller(ONE.node, ONE.instance, b"abcdefgh", ONE.answer_to)
        for caller, name in ((ONE, NAME), (TWO, "idmz.b"), (again, "idmz.c")):
            store.held = Registered("idmz", STREAM, 10, Lease(3, caller.instance))
            asked = msgspec.structs.replace(waits, consumer_name=name)
            tasks.append(asyncio.create_task(consumers.fetch(caller, asked)))
            assert await stands(tasks[-1])
        fourth = asyncio.create_task(consumers.fetch(again, msgspec.structs.replace(waits, consumer_name="idmz.d")))
        assert not await stands(fourth)
        both = encode_heartbeat([ONE.correlation, again.correlation])
        heartbeats = [
            ("idmz", ONE.answer_to, both, b""),
            ("idmz", TWO.answer_to, encode_heartbeat([TWO.correlation]), b""),
        ]
        for count in (1, 2):
            due.pop()()
            assert sent == heartbeats * count
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
        assert (consumers.parked(), consumers._waiters.count_others("idmz", "")) == (0, 0)
        due.pop()()
        assert (sent, due) == (heartbeats * 2, [])


async def test_a_wait_that_ends_gives_an_empty_page() -> None:
    """At the end of the log, which is then recorded."""
    async with play() as (store, consumers):
        answer = page_of(await consumers.fetch(ONE, fetch(after=at(20), wait_ms=20)))
        assert (answer.runs(), answer.more) == ([], False)
        assert store.asked[-1] == ("seen", True, False)
        assert consumers.parked() == 0


async def test_a_commit_before_parking_wakes_the_fetch() -> None:
    """The log grows between the decision to wait and the wait, when the writer has no waiter to wake."""
    async with play() as (store, consumers):
        seen = store.seen

        def grown(name: str, *, is_at_end: bool, waits_ms: int = 0) -> None:
            store.end = 25
            seen(name, is_at_end=is_at_end, waits_ms=waits_ms)

        store.seen = grown  # type: ignore[method-assign]
        answer = page_of(await consumers.fetch(ONE, fetch(after=at(20), wait_ms=3_600_000)))
        assert answer.runs() == [(21, 25)]


async def test_a_newer_fetch_takes_the_place_of_the_parked_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """The earlier fetch gets no answer, also where no more may wait: a peer that lost its connection asks again for all
    its streams. A taken lease ends its wait too, with the store's error."""
    monkeypatch.setattr(admission, "PARKED_PER_NODE_MAX", 1)
    async with play() as (store, consumers):
        waits = fetch(after=at(20), wait_ms=3_600_000)
        earlier = asyncio.create_task(consumers.fetch(ONE, waits))
        assert await stands(earlier)
        later = asyncio.create_task(consumers.fetch(ONE, waits))
        assert await stands(later)
        assert await earlier == Drop(DropReason.SUPERSEDED)
        other = asyncio.create_task(consumers.fetch(TWO, fetch(after=at(10), lease=0)))
        assert await stands(other)
        store.reader.held = Registered("idmz", STREAM, 10, Lease(4, "two"))
        store.futures.pop("hold_lease").set_result(store.reader.held.lease)
        assert page_of(await other).lease == 4
        assert await stands(later)
        store.futures["hold_lease"].set_exception(FencedError())
        with pytest.raises(FencedError):
            await later
        assert (consumers.parked(), consumers._waiters.count_others("idmz", "")) == (0, 0)
