"""Small pages are read inline, by the event loop, as long as they are in memory."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

from agent.fact_store import FactStore
from agent.fact_store.core import catalog
from agent.positions import Position, Resolved
from agent.replication.protocol.messages import FetchFacts, FetchRange, LogPosition
from agent.replication.serving.reading import INLINE_FACTS_MAX
from tests.replication.nodes import STREAM
from tests.replication.serving.support import filled, serving


async def test_a_small_page_of_the_newest_batches_is_read_in_the_event_loop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is in memory. A page from the file, which may have to wait for the disk, and a large one are read in a
    thread."""
    read, in_loop = FactStore.read, list[bool]()

    def noted(*asked: Any, **limits: Any) -> Any:
        in_loop.append(threading.current_thread() is threading.main_thread())
        return read(*asked, **limits)

    monkeypatch.setattr(FactStore, "read", noted)
    async with serving(tmp_path) as (server, peer):
        with monkeypatch.context() as patched:
            patched.setattr(catalog, "TAIL_BYTES_MAX", 0)
            life = (await filled(server, 100)).life.hex()
        await filled(server, INLINE_FACTS_MAX + 1)
        end = 100 + INLINE_FACTS_MAX + 1
        for first, limit, is_in_loop in ((1, 100, False), (101, INLINE_FACTS_MAX, True), (101, end, False)):
            asked = FetchRange(stream=STREAM, first_offset=first, last_offset=end, life=life, limit=limit)
            assert (await peer.ask(asked)).covered()[0] == first
            assert in_loop.pop() is is_in_loop, asked


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
