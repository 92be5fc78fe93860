"""Small pages are read inline, by the event loop, as long as the disk is fast."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

from agent.fact_store import FactStore
from agent.positions import Position, Resolved
from agent.replication.protocol.messages import FetchFacts, FetchRange, LogPosition
from agent.replication.serving.reading import INLINE_FACTS_MAX, INLINE_PAUSE_FACTOR, SLOW_READ_NS, InlineReads
from tests.replication.nodes import STREAM
from tests.replication.serving.support import filled, serving


def test_large_pages_are_never_read_inline() -> None:
    """Even with a fast disk: checking a large page takes as long as waiting for a slow disk."""
    reads = InlineReads()
    assert reads.allows(INLINE_FACTS_MAX, 0)
    assert not reads.allows(INLINE_FACTS_MAX + 1, 0)


def test_one_slow_read_pauses_inline_reads() -> None:
    """After the pause, which is proportional to the slow read, one read is tried inline, and if it is fast, so are the
    following ones."""
    reads = InlineReads()
    reads.took(0, SLOW_READ_NS)
    assert reads.allows(1, SLOW_READ_NS)
    for slow_ns in (SLOW_READ_NS + 1, 20 * SLOW_READ_NS):
        reads.took(0, slow_ns)
        over = slow_ns + INLINE_PAUSE_FACTOR * slow_ns
        assert not reads.allows(1, over - 1)
        assert reads.allows(1, over)
        reads.took(over, over + 1)
        assert reads.allows(1, over + 2)


async def test_a_disk_that_has_to_be_waited_for_is_waited_for_in_threads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As long as reads are fast the event loop does them; once each takes 20 ms, it does at most the first."""
    slow, never, read, in_loop = threading.Event(), threading.Event(), FactStore.read, list[bool]()

    def read_slowly(*asked: Any, **limits: Any) -> Any:
        in_loop.append(threading.current_thread() is threading.main_thread())
        if slow.is_set():
            never.wait(0.02)
        return read(*asked, **limits)

    monkeypatch.setattr(FactStore, "read", read_slowly)
    async with serving(tmp_path) as (server, peer):
        for _ in range(3):
            await filled(server, 100)

        async def ask(first: int) -> None:
            where = {"first_offset": first, "last_offset": first + 99, "life": server._store.life.hex()}
            answer = await peer.ask(FetchRange(stream=STREAM, limit=100, **where))
            assert answer.covered() == (first, first + 99)

        monkeypatch.setattr("agent.replication.serving.reading.INLINE_PAUSE_FACTOR", 0)
        while not (in_loop and in_loop[-1]):  # this machine may be slow for a while, too
            await ask(1)
        monkeypatch.setattr("agent.replication.serving.reading.INLINE_PAUSE_FACTOR", 10**6)
        slow.set()
        in_loop.clear()
        for first in (1, 101, 201, 1, 101):
            await ask(first)
        assert in_loop[1:] == 4 * [False]


async def test_the_position_after_the_page_that_was_read_last_is_not_looked_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A pull that catches up names the end of its last page, in the middle of the log. A position with another digest,
    or of a page that was not read here, is looked up, and refused."""
    looked_up, resolve = list[int](), FactStore.resolve

    def noted(store: FactStore, stream: str, position: Position) -> Resolved:
        looked_up.append(position.offset)
        return resolve(store, stream, position)

    monkeypatch.setattr(FactStore, "resolve", noted)
    async with serving(tmp_path) as (server, peer):
        for _ in range(3):
            await filled(server, 100)
        asked = {"consumer_name": "idmz.reader", "stream": STREAM, "limit": 100}
        first = await peer.ask(FetchFacts(**asked))
        second = await peer.ask(FetchFacts(**asked, after=first.lives[-1]))
        assert (second.covered(), looked_up) == ((101, 200), [])
        other = LogPosition(offset=200, life=second.lives[-1].life, digest="00" * 16)
        refused = await peer.ask(FetchFacts(**asked, after=other))
        assert refused.error.code == "life_unknown"
        assert looked_up == [200]
