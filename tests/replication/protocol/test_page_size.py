"""The size of the next page."""

from __future__ import annotations

import pytest

from agent.replication.protocol.pacing import BYTES_MAX, BYTES_MIN, BYTES_START, QUICK_MS, SLOW_MS, PageSize


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


@pytest.mark.parametrize("bytes_per_ms", [2, 8, 125, 12_500])
def test_on_any_link_pages_settle_at_a_size_that_arrives_in_time(bytes_per_ms: int) -> None:
    """From 16 kbit/s to 100 Mbit/s, after a few pages each page arrives within the time-out of 3 s, if the smallest
    can."""
    size = PageSize()
    for _ in range(20):
        took_ms = size.bytes // bytes_per_ms
        size.arrived(took_ms) if took_ms < 3_000 else size.timed_out()
    assert size.bytes // bytes_per_ms < 3_000 or size.bytes == BYTES_MIN
