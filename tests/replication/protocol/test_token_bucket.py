"""The bandwidth of a peer: the bucket alone, and receivers that share it, on a virtual clock."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.positions import NOTHING_READ, Position, last_of
from agent.replication.protocol.token_bucket import (
    OVERDRAWN_MS_MAX,
    PAGE_MS,
    REPAIR_SAVED_MS,
    REPAIR_WAITS_MS_MAX,
    SAVED_MS_MAX,
    Priority,
    TokenBucket,
)
from agent.replication.pulling.receiving.pull_events import (
    ArrivedPage,
    Asking,
    Event,
    Fetch,
    LinkDown,
    LinkUp,
    PageAppended,
    PageArrived,
    ReceiverSettings,
    Tick,
)
from agent.replication.pulling.receiving.receiver import Receiver
from agent.settings.peers import BYTES_PER_SECOND_MIN

ONE = "1" * 32
RATE = 100_000
PAGE_BYTES = 25_000


def test_pages_under_way_take_no_longer_than_one_of_the_largest() -> None:
    """At least one, at most so many as the caller takes."""
    size = RATE * PAGE_MS // 1000
    assert [TokenBucket(RATE).pages_ahead(part, 4) for part in (9 * size, size, size // 2, size // 9)] == [1, 1, 2, 4]


class Pull:
    """A receiver that shares a bucket, and the peer's side of its stream: a log that ends at `end_offset`, in pages of
    10 facts."""

    def __init__(self, bandwidth: TokenBucket, end_offset: int) -> None:
        self.core = Receiver(ReceiverSettings(wait_ms=60_000), bandwidth=bandwidth)
        self.bandwidth = bandwidth
        self.end_offset = end_offset
        self.asked: list[tuple[int, Fetch]] = []
        self.bytes = 0

    def __call__(self, event: Event, now_ms: int) -> None:
        for effect in self.core.handle(event, now_ms, 0.5):
            if isinstance(effect, Fetch):
                self.asked.append((now_ms, effect))

    def serve(self, now_ms: int, size: int) -> None:
        """Answer the open request, if there is something to answer with; the page is stored at once."""
        fetch = self.asked[-1][1] if self.asked else None
        read = last_of(fetch.trail or ()) if fetch and fetch.after is None else fetch.after if fetch else NOTHING_READ
        after = read.offset if read else 0
        if self.core.asking is not Asking.WAITING or fetch is None or after >= self.end_offset:
            return
        last = min(after + 10, self.end_offset)
        self.bandwidth.spend(size, now_ms)
        self.bytes += size
        page = ArrivedPage(
            0,
            after + 1,
            last,
            more=last < self.end_offset,
            end_offset=self.end_offset,
            after=read or NOTHING_READ,
            lives=(Position(bytes.fromhex(ONE), last),),
        )
        self(PageArrived(self.asked[-1][1].fetch_id, page), now_ms)
        self(PageAppended(), now_ms)

    def tick(self, now_ms: int) -> None:
        if self.core.deadline_ms is not None and now_ms >= self.core.deadline_ms:
            self(Tick(), now_ms)


@given(
    st.integers(BYTES_PER_SECOND_MIN, 10_000_000),
    st.lists(st.tuples(st.integers(0, 3_000), st.integers(1, 600_000), st.sampled_from(Priority)), max_size=60),
)
def test_the_rate_holds_over_any_time(rate: int, steps: list[tuple[int, int, Priority]]) -> None:
    """Requests sent no sooner than `ready_ms` bring, over any time, no more than the rate, the saved tokens, the
    allowed debt, and the page under way."""
    bandwidth, now_ms, spent = TokenBucket(rate), 0, 0
    for pause_ms, size, share in steps:
        now_ms = bandwidth.ready_ms(now_ms + pause_ms, share)
        most = rate * (now_ms + SAVED_MS_MAX + OVERDRAWN_MS_MAX) / 1000
        assert spent <= most, "before this page"
        bandwidth.spend(size, now_ms)
        spent += size


def test_a_backlog_keeps_to_the_rate_and_lets_live_facts_pass() -> None:
    """One peer has a stream with a day's backlog, and one at the end of its log with a fact every 200 ms. Together they
    bring what the rate allows. The backlog is requested only without debt, and each live fact is requested before it is
    written."""
    bandwidth = TokenBucket(RATE)
    backlog, live = Pull(bandwidth, 10**6), Pull(bandwidth, 0)
    backlog(LinkUp(), 0)
    live(LinkUp(), 0)
    live(PageArrived(live.asked[-1][1].fetch_id, ArrivedPage(0, 0, 0, more=False)), 0)
    waited_ms = []
    for now_ms in range(0, 60_000, 10):
        backlog.tick(now_ms)
        live.tick(now_ms)
        backlog.serve(now_ms, PAGE_BYTES)
        if now_ms % 200 == 0:
            assert live.core.asking is Asking.WAITING, "a live fact finds a request that waits for it"
            live.end_offset += 1
            live.serve(now_ms, 400)
            waited_ms.append(now_ms)
    assert len(waited_ms) == live.core.place.offset == 300
    assert backlog.core.asking is Asking.PACED
    assert backlog.core.pace.paced_ms(60_000) > 10_000
    assert backlog.bytes + live.bytes == pytest.approx(60 * RATE, rel=0.02)


def test_a_repair_takes_what_is_left_and_is_not_left_out() -> None:
    """Alone it gets the whole rate. With a backlog it requests once in half a minute, and the backlog gets nearly
    everything."""
    alone = TokenBucket(RATE)
    alone.spend(PAGE_BYTES, 0)
    assert alone.ready_ms(0, Priority.REPAIR) == REPAIR_SAVED_MS
    alone.spend(PAGE_BYTES, 125)
    assert alone.ready_ms(125, Priority.REPAIR) == 125 + PAGE_BYTES * 1000 // RATE
    bandwidth, asked_ms, began_ms = TokenBucket(RATE), list[int](), 0
    backlog = Pull(bandwidth, 10**6)
    backlog(LinkUp(), 0)
    for now_ms in range(0, 120_000, 10):
        backlog.tick(now_ms)
        backlog.serve(now_ms, PAGE_BYTES)
        if bandwidth.ready_ms(now_ms, Priority.REPAIR, now_ms - began_ms) <= now_ms:
            bandwidth.spend(PAGE_BYTES, now_ms)
            asked_ms.append(now_ms)
            began_ms = now_ms
    waits_ms = [later - earlier for earlier, later in pairwise([0, *asked_ms])]
    assert len(asked_ms) >= 3
    assert min(waits_ms) >= REPAIR_WAITS_MS_MAX
    assert max(waits_ms) <= REPAIR_WAITS_MS_MAX + 1_000
    assert backlog.bytes > 0.95 * 120 * RATE


def test_an_overdue_repair_does_not_go_before_live_facts() -> None:
    """A repair that has waited for half a minute requests when a live stream may, which is not before the debt is below
    two seconds."""
    bandwidth = TokenBucket(RATE)
    bandwidth.spend(10 * RATE, 0)
    overdue_ms = bandwidth.ready_ms(0, Priority.REPAIR, REPAIR_WAITS_MS_MAX)
    assert overdue_ms == bandwidth.ready_ms(0, Priority.LIVE) == 10_000 - SAVED_MS_MAX - OVERDRAWN_MS_MAX


def test_debt_and_waited_time_are_reported() -> None:
    """After ten seconds' worth at once, all except the saved tokens are owed; the debt shrinks with time, and only time
    with debt counts as waited. The pull reports for how long it is delayed."""
    bandwidth = TokenBucket(RATE)
    pull = Pull(bandwidth, 1_000)
    pull(LinkUp(), 0)
    pull.serve(0, 10 * RATE)
    assert (bandwidth.bytes_owed(0), bandwidth.bytes_waited_off) == (975_000, 0)
    assert (bandwidth.bytes_owed(4_000), bandwidth.bytes_waited_off) == (575_000, 400_000)
    assert pull.core.pace.paced_ms(4_000) == 4_000
    pull(LinkDown("gone"), 5_000)
    assert pull.core.pace.paced_ms(6_000) == 5_000
    pull(LinkUp(), 6_000)
    pull(Tick(), 6_000 + ReceiverSettings().spread_ms)
    pull(Tick(), 9_750)
    assert pull.core.asking is Asking.WAITING
    assert pull.core.pace.paced_ms(20_000) == 5_000 + 9_750 - 6_000 - ReceiverSettings().spread_ms
    assert (bandwidth.bytes_owed(20_000), bandwidth.bytes_waited_off) == (0, 975_000)


def test_live_facts_beyond_the_rate_are_paced_too() -> None:
    """A stream that is always at its end, with more bytes than the rate allows, is limited to the rate."""
    live = Pull(TokenBucket(RATE), 0)
    live(LinkUp(), 0)
    live(PageArrived(live.asked[-1][1].fetch_id, ArrivedPage(0, 0, 0, more=False)), 0)
    for now_ms in range(0, 60_000, 50):
        live.tick(now_ms)
        live.end_offset += 10
        live.serve(now_ms, PAGE_BYTES)
    assert live.bytes == pytest.approx(62 * RATE, rel=0.05)


def test_a_paced_receiver_survives_its_link() -> None:
    """The link is lost before a debt is paid off, and returns: the debt is remembered, and the pull continues after
    it."""
    pull = Pull(TokenBucket(RATE), 1_000)
    pull(LinkUp(), 0)
    pull.serve(0, 10 * RATE)
    assert pull.core.asking is Asking.PACED
    assert pull.core.deadline_ms == 9_750
    pull(LinkDown("gone"), 100)
    pull(LinkUp(), 200)
    pull(Tick(), 200 + ReceiverSettings().spread_ms)
    assert pull.core.asking is Asking.PACED
    pull(Tick(), 9_749)
    assert pull.core.asking is Asking.PACED
    pull(Tick(), 9_750)
    assert pull.core.asking is Asking.WAITING
