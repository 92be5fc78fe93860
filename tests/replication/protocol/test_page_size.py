"""The size of the next page."""

from __future__ import annotations

import pytest

from agent.positions import NOTHING_READ, Position
from agent.replication.protocol.pacing import BYTES_MAX, BYTES_MIN, BYTES_START, QUICK_MS, SLOW_MS, PageSize
from agent.replication.pulling.receiving.pull_events import (
    Appended,
    ArrivedPage,
    Event,
    Fetch,
    LinkUp,
    PageArrived,
    ReceiverSettings,
)
from agent.replication.pulling.receiving.receiver import Receiver


def test_pages_grow_while_they_come_at_once_and_stop_at_the_largest() -> None:
    """Each quick page is followed by one twice as large, up to the packet size of a broker."""
    size, asked = PageSize(), []
    for _ in range(4):
        asked.append(size.bytes)
        size.arrived(QUICK_MS)
    assert asked == [BYTES_START, 2 * BYTES_START, BYTES_MAX, BYTES_MAX]


def test_pages_shrink_while_they_take_long_and_stop_at_the_smallest() -> None:
    """A page that took half of the time-out, or timed out, is followed by a smaller one, down to the smallest."""
    size = PageSize()
    size.arrived(SLOW_MS)
    assert size.bytes == BYTES_START // 2
    for _ in range(10):
        size.timed_out()
    assert size.bytes == BYTES_MIN


def test_no_page_is_larger_than_the_configured_limit() -> None:
    """A limit below the smallest size of a page holds, whether pages are quick or slow."""
    size = PageSize(BYTES_MIN // 4)
    for happens in (size.timed_out, lambda: size.arrived(SLOW_MS), lambda: size.arrived(QUICK_MS)):
        happens()
        assert size.bytes == BYTES_MIN // 4


def test_latency_alone_does_not_shrink_pages() -> None:
    """Between quick and slow nothing changes: a satellite's 600 ms are no reason for small pages."""
    size = PageSize()
    for _ in range(10):
        size.arrived(600)
    assert size.bytes == BYTES_START


@pytest.mark.parametrize("bytes_per_ms", [2, 8, 125, 12_500])
def test_on_any_link_pages_settle_at_a_size_that_arrives_in_time(bytes_per_ms: int) -> None:
    """From 16 kbit/s to 100 Mbit/s, after a few pages each page arrives within the time-out of 3 s, if the smallest
    can."""
    size = PageSize()
    for _ in range(20):
        took_ms = size.bytes // bytes_per_ms
        size.arrived(took_ms) if took_ms < 3_000 else size.timed_out()
    assert size.bytes // bytes_per_ms < 3_000 or size.bytes == BYTES_MIN


def test_only_a_page_that_did_not_wait_for_facts_is_measured() -> None:
    """The time of a page that waited at the peer for facts says nothing about the link. A page that was requested while
    more was there took as long as the link takes."""
    receiver = Receiver(ReceiverSettings())
    asked: list[Fetch] = []
    now_ms = 0

    def happens(event: Event, after_ms: int = 0) -> None:
        nonlocal now_ms
        now_ms += after_ms
        asked.extend(effect for effect in receiver.handle(event, now_ms, 0.5) if isinstance(effect, Fetch))

    def page(first: int, last: int, *, more: bool) -> PageArrived:
        after, lives = Position(b"l" * 16, first - 1) if first > 1 else NOTHING_READ, (Position(b"l" * 16, last),)
        run = {"first_offset": first, "last_offset": last, "more": more, "after": after, "lives": lives}
        found = ArrivedPage(frontier=0, **run)
        return PageArrived(asked[-1].fetch_id, found)

    happens(LinkUp())
    happens(page(1, 10, more=False), 1)
    happens(Appended())
    happens(page(11, 20, more=True), SLOW_MS)  # it waited at the peer until there were facts
    assert asked[-1].bytes_max == BYTES_START
    happens(page(21, 30, more=True), SLOW_MS)
    assert asked[-1].bytes_max == BYTES_START // 2
