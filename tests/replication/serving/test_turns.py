"""Turns: the wait of a zone does not depend on how much others ask, for any work and over all links; and what reading
and answering take of a zone's share."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from agent.replication.protocol.token_bucket import SAVED_MS_MAX
from agent.replication.serving.admission import PeerRights
from agent.replication.serving.limits import READ_MS_PER_SECOND, SHARED_MS
from agent.replication.serving.operations.context import Context, Turns, give_place
from agent.replication.serving.turns import Dispatcher, FairQueue, ReadTurns
from agent.settings.peers import PeerLimits
from tests.waiting import LIMIT_S

LONGEST_MS = 40
HONEST = "idmz"
ZONES = ("evil", "idmz", "cloud")
NO_SHRINKING = (Phase.explicit, Phase.reuse, Phase.generate)  # an example is seconds of a node, step by step


def test_zones_take_turns() -> None:
    """However much work of one zone came first, each zone's first piece comes before any zone's second."""
    queue = FairQueue[str](1)
    for work in ("evil 1", "evil 2", "evil 3", "idmz 1", "cloud 1", "idmz 2"):
        queue.add(work.split()[0], work)
    order = []
    while (work := queue.take_work()) is not None:
        order.append(work)
        queue.end_work(work.split()[0])
    assert order == ["evil 1", "idmz 1", "cloud 1", "evil 2", "idmz 2", "evil 3"]


def test_a_zone_that_was_just_served_goes_behind_those_that_came_meanwhile() -> None:
    """Even if its own next piece came before theirs."""
    queue = FairQueue[str](1)
    queue.add("evil", "evil 1")
    assert queue.take_work() == "evil 1"
    for work in ("evil 2", "idmz 1"):
        queue.add(work.split()[0], work)
    queue.end_work("evil")
    assert queue.take_work() == "idmz 1"


def test_a_zone_takes_only_its_places() -> None:
    """With three places and two for one zone, another zone's work begins at once while the first zone's waits."""
    queue = FairQueue[str](3, lambda *_: 2)
    for number in range(5):
        queue.add("evil", f"evil {number}")
    assert [queue.take_work(), queue.take_work(), queue.take_work()] == ["evil 0", "evil 1", None]
    queue.add("idmz", "idmz 0")
    assert queue.take_work() == "idmz 0"
    queue.add("cloud", "cloud 0")
    assert queue.take_work() is None, "all places are taken"
    queue.end_work("evil")
    assert queue.take_work() == "cloud 0", "it has nothing under way, evil has"


def test_a_zone_that_may_not_begin_delays_no_other() -> None:
    """A zone that waits for its tokens keeps its place in the queue, and the others overtake it. The next time at which
    one of them may begin is known, except of a zone of which it is not."""
    ready = {"evil": 60_000, "idmz": 0, "cloud": None, "erp": 1_000}
    queue = FairQueue[str](4, ready_ms=lambda node, _: ready[node])
    for zone in ready:
        queue.add(zone, zone)
    assert [queue.take_work(0), queue.take_work(0)] == ["idmz", None]
    assert (queue.due_ms(0), queue.due_ms(1_000), queue.due_ms(60_000)) == (1_000, 60_000, None)
    assert [queue.take_work(60_000), queue.take_work(60_000), queue.take_work(60_000)] == ["evil", "erp", None]


def test_no_work_is_left_waiting_while_time_passes() -> None:
    """Work that is not due yet is begun by the alarm, which is set for the earliest; that of a zone whose time comes
    while other work begins, too."""
    alarms, begun, looks = list[tuple[float, Callable[[], object]]](), list[str](), [0, 999, 1_000, 60_000]
    queue = FairQueue[str](3, ready_ms=lambda node, _: {"evil": 60_000, "idmz": 1_000}[node])
    queue.add("evil", "evil")
    queue.add("idmz", "idmz")

    def call_later(delay_s: float, callback: Callable[[], object]) -> Callable[[], None]:
        alarms.append((delay_s, callback))
        return alarms.clear

    dispatcher = Dispatcher(queue, begun.append, lambda: looks.pop(0), call_later)
    dispatcher.begin_due()
    assert [delay_s for delay_s, _ in alarms] == [1.0]
    for delays, done in (([0.001], []), ([59.0], ["idmz"]), ([], ["idmz", "evil"])):
        (_, ring), *_ = alarms
        alarms.clear()
        ring()
        assert ([delay_s for delay_s, _ in alarms], begun) == (delays, done)


def test_work_that_is_not_wanted_any_more_is_withdrawn() -> None:
    """It is not taken, and the zone has no queue left."""
    queue = FairQueue[str](1)
    queue.add("evil", "a")
    queue.add("evil", "b")
    assert not queue.leave("evil", "a"), "it had no place"
    assert queue.take_work() == "b"
    assert queue.is_empty()
    queue.add("evil", "c")
    assert queue.leave("evil", "b"), "its place is free"
    assert queue.take_work() == "c"
    queue.add("evil", "d")
    assert not queue.leave("evil", "d")
    assert queue.is_empty()


@given(st.lists(st.tuples(st.sampled_from(ZONES), st.booleans()), max_size=60), st.integers(1, 4), st.integers(1, 4))
def test_no_work_is_lost_and_the_zone_with_least_under_way_goes_first(
    events: list[tuple[str, bool]], places: int, of_zone: int
) -> None:
    """All work is taken once, in its zone's order; the limits are never exceeded; and no zone begins a second piece
    while another one with none under way waits for its first."""
    queue = FairQueue[tuple[str, int]](places, lambda *_: of_zone)
    added, taken, under_way = list[tuple[str, int]](), list[tuple[str, int]](), Counter[str]()

    def take_all() -> None:
        while (work := queue.take_work()) is not None:
            zone = work[0]
            waiting = [other for other in ZONES if other != zone and other in queue._queues]
            assert all(under_way[other] >= under_way[zone] for other in waiting)
            taken.append(work)
            under_way[zone] += 1
            assert under_way.total() <= places
            assert under_way[zone] <= of_zone

    def end(zone: str) -> None:
        under_way[zone] -= 1
        queue.end_work(zone)
        take_all()

    for number, (zone, is_end) in enumerate(events):
        if is_end and under_way[zone]:
            end(zone)
        else:
            added.append((zone, number))
            queue.add(zone, (zone, number))
            take_all()
    while under_way.total():
        end(next(zone for zone, count in under_way.items() if count))
    assert sorted(taken) == sorted(added)
    for zone in ZONES:
        assert [work for work in taken if work[0] == zone] == [work for work in added if work[0] == zone]


class Read(NamedTuple):
    """A read for a zone."""

    zone: str
    number: int
    took_ms: int


class Node:
    """A node that reads for zones: at most `LONGEST_MS` at once, each read in a thread of its own."""

    def __init__(self) -> None:
        self.turns = ReadTurns[Read]()
        self.now_ms = 0
        self.under_way = dict[Read, int]()  # when each ends
        self.asked_ms = dict[Read, int]()
        self.waited_ms = Counter[Read]()
        self.took_ms = Counter[str]()
        self._numbers = 0

    def ask(self, zone: str, took_ms: int) -> None:
        self._numbers += 1
        read = Read(zone, self._numbers, took_ms)
        self.asked_ms[read] = self.now_ms
        self.turns.ask(zone, read, lambda now_ms: now_ms, self.now_ms)

    def waiting(self, zone: str) -> int:
        """How many reads of a zone have no place yet."""
        return sum(read.zone == zone and read not in self.under_way for read in self.asked_ms)

    def pass_ms(self) -> None:
        """Give places, and let a millisecond pass. If work waits and no place is given, the time until then is
        known."""
        while (read := self.turns.take_work(self.now_ms)) is not None:
            self.under_way[read] = self.now_ms + read.took_ms
            self.waited_ms[read] = self.now_ms - self.asked_ms[read]
        if self.asked_ms and not self.under_way:
            due_ms = self.turns.due_ms(self.now_ms)
            assert due_ms is not None, "no event would ever give these a place"
            assert due_ms > self.now_ms
        self.now_ms += 1
        for read in [read for read, at_ms in self.under_way.items() if at_ms <= self.now_ms]:
            del self.under_way[read], self.asked_ms[read]
            self.took_ms[read.zone] += read.took_ms
            self.turns.end_read(read.zone, read, read.took_ms * 1000, self.now_ms)


@settings(max_examples=10, phases=NO_SHRINKING)
@given(
    st.lists(st.integers(1, LONGEST_MS), min_size=1, max_size=20),
    st.lists(st.tuples(st.integers(0, 300), st.integers(1, 5)), min_size=1, max_size=20),
    st.integers(1, 5),
)
def test_whatever_others_ask_a_zone_waits_for_one_read_of_each(
    reads: list[int], pauses: list[tuple[int, int]], floods: int
) -> None:
    """Some zones always have more to read, and one reads less than its share from time to time: it gets its place after
    at most one read of each of the others. While it asks, each of them uses no more than its share of the time, its
    saved tokens and one read."""
    node, zones = Node(), [f"evil-{number}" for number in range(floods)]
    while node.now_ms < 1500:
        pause_ms, took_ms = pauses[node.now_ms % len(pauses)]
        node.ask(HONEST, took_ms)
        until_ms = node.now_ms + pause_ms + took_ms * 1000 // READ_MS_PER_SECOND
        while node.now_ms < until_ms or node.waiting(HONEST):
            for number, zone in enumerate(zones):
                while node.waiting(zone) < 4:
                    node.ask(zone, reads[(node.now_ms + number) % len(reads)])
            node.pass_ms()
    assert max(ms for read, ms in node.waited_ms.items() if read.zone == HONEST) <= floods * LONGEST_MS
    for zone in zones:
        saved_ms = READ_MS_PER_SECOND * SAVED_MS_MAX // 1000
        assert node.took_ms[zone] <= node.now_ms * READ_MS_PER_SECOND // 1000 + saved_ms + LONGEST_MS


def test_a_zone_that_is_alone_again_pays_no_debt() -> None:
    """Once no other zone asks, a zone that has used more than its share reads at once. What it used while it was alone
    is no debt either."""
    turns = ReadTurns[str]()
    turns.ask("evil", "alone", lambda now_ms: now_ms, 0)
    assert turns.take_work(0) == "alone"
    turns.end_read("evil", "alone", 60_000_000, 0)
    for zone, work in ((HONEST, "short"), ("evil", "long"), ("evil", "next")):
        turns.ask(zone, work, lambda now_ms: now_ms, 0)
    assert {turns.take_work(0), turns.take_work(0)} == {"short", "long"}
    turns.end_read(HONEST, "short", 1, 1)
    turns.end_read("evil", "long", 60_000_000, 1)
    assert turns.take_work(SHARED_MS - 1) is None
    assert turns.take_work(SHARED_MS + 1) == "next"


class Clocked(Context):
    """A link of a node, with a clock that the test sets and no alarm."""

    clock_ms = 0

    def now_ns(self) -> int:
        return self.clock_ms * 1_000_000

    def call_later(self, *_: object) -> Callable[[], None]:
        return lambda: None


async def stands(task: asyncio.Task[Any]) -> bool:
    """Whether a task still waits after everything that can run has run."""
    for _ in range(5):
        await asyncio.sleep(0)
    return not task.done()


async def read(of: Clocked, zone: str, may_end: asyncio.Event) -> None:
    """A read that lasts until it is allowed to end."""
    async with of.reading(zone):
        await may_end.wait()


async def test_the_zones_of_all_links_share_the_places() -> None:
    """Two zones with a broker each: while idmz reads, evil has one place instead of two, as on one link; when idmz has
    not asked for long, evil has two again."""
    turns, may_end = Turns(), asyncio.Event()
    nothing: Any = SimpleNamespace()
    evils, honest = (Clocked(nothing, nothing, {zone: PeerRights()}, turns=turns) for zone in ("evil", "idmz"))
    async with asyncio.TaskGroup() as group:
        reading = group.create_task(read(honest, "idmz", may_end))
        first = group.create_task(read(evils, "evil", may_end))
        assert await stands(reading)
        assert await stands(first)
        begun = list[str]()

        async def note(zone: str) -> None:
            async with evils.reading(zone):
                begun.append(zone)

        second = group.create_task(note("evil"))
        assert await stands(second)
        assert begun == []
        evils.clock_ms = honest.clock_ms = SHARED_MS
        third = group.create_task(note("evil"))
        assert not await stands(third)
        assert begun == ["evil", "evil"]
        may_end.set()


async def test_who_has_left_is_given_no_place() -> None:
    """A request was cancelled in the moment in which its place became free."""
    left: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
    left.cancel()
    give_place(left)
    assert left.cancelled()


class Calls:
    """Calls that are due later, by the delay; a cancelled one is gone."""

    def __init__(self) -> None:
        self.due: dict[float, Callable[[], object]] = {}

    def later(self, delay_s: float, callback: Callable[[], object]) -> Callable[[], None]:
        self.due[delay_s] = callback
        return lambda: self.due.pop(delay_s, None)  # type: ignore[return-value]


def context_of() -> Context:
    """The context of a server without a link."""
    nothing: Any = SimpleNamespace(signer=None)
    return Context(nothing, nothing, {"idmz": PeerRights()})


@pytest.mark.parametrize("fails", [False, True])
async def test_reading_is_paid_by_the_time_that_it_takes(monkeypatch: pytest.MonkeyPatch, *, fails: bool) -> None:
    """Processor time, in microseconds, also of a read that fails."""
    context, times_ns, ended = context_of(), [1_000_000, 6_000_000], list[tuple[str, int]]()
    monkeypatch.setattr(context, "cpu_ns", lambda: times_ns.pop(0))
    end = context.turns.end_read

    def noted(zone: str, work: Any, took_us: int, now_ms: int) -> None:
        ended.append((zone, took_us))
        end(zone, work, took_us, now_ms)

    monkeypatch.setattr(context.turns, "end_read", noted)

    def read() -> None:
        if fails:
            raise OSError("disk")

    try:
        await context.in_turn("idmz", read)
    except OSError:
        assert fails
    assert ended == [("idmz", 5_000)]


async def test_an_answer_is_paid_by_its_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    """No more is read for its zone until the debt is paid off, and then without another event; for another zone it is
    at once."""
    calls, now_ms = Calls(), 0
    monkeypatch.setattr(Context, "call_later", lambda _, *how: calls.later(*how))
    monkeypatch.setattr(Context, "now_ms", lambda _: now_ms)
    connection = SimpleNamespace(outgoing_bytes=0, publish_answer=lambda *_: None)
    link: Any = SimpleNamespace(require=lambda: connection)
    rights = PeerRights(limits=PeerLimits(answer_bytes_per_second_max=100_000))
    context = Context(link, context_of().store, {"idmz": rights, "erp": rights})
    context.send("idmz", "topic", bytes(1_000_000), b"c" * 16)
    reading = asyncio.create_task(context.in_turn("idmz", lambda: "a page"))
    async with asyncio.timeout(LIMIT_S):
        await asyncio.sleep(0)  # it asks for its place
        assert await context.in_turn("erp", lambda: "another") == "another"
        ((delay_s, ring),) = calls.due.items()
        assert delay_s == pytest.approx(9.75, abs=0.01)
        now_ms = 9_760
        assert not reading.done()
        ring()
        assert await reading == "a page"
