"""Small pages are read inline, by the event loop, as long as the disk is fast."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any

import pytest

from agent.replication.protocol.messages import FetchRange, RangeAnswer
from agent.replication.serving.reading import INLINE_FACTS_MAX, INLINE_PAUSE_FACTOR, SLOW_READ_NS, InlineReads
from agent.settings.store import StoreSettings
from tests.replication.nodes import STREAM, Node
from tests.support.mosquitto import Mosquitto
from tests.waiting import LIMIT_S


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


@pytest.mark.system
async def test_a_disk_that_has_to_be_waited_for_is_waited_for_in_threads(
    broker: Mosquitto, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As long as reads are fast the event loop does them; once each takes 20 ms, it does at most the first."""
    slow = threading.Event()
    took = threading.Event()

    class Disk:
        """A store whose reads are slow while `slow` is set; records the reading threads."""

        def __init__(self, store: Any) -> None:
            self._store = store
            self.by = list[bool]()

        def __getattr__(self, name: str) -> Any:
            return getattr(self._store, name)

        def read(self, *asked: Any, **limits: Any) -> Any:
            self.by.append(threading.current_thread() is threading.main_thread())
            if slow.is_set():
                took.wait(0.02)  # never set: a slow disk
            return self._store.read(*asked, **limits)

    plant = Node.open(broker, "plant-a", tmp_path, StoreSettings(batch_facts_target=100))
    idmz = Node.open(broker, "idmz", tmp_path)
    store, disk = plant.store, Disk(plant.store)
    plant.store = disk  # type: ignore[assignment]
    plant.serve({"idmz": [STREAM]})
    asker = idmz.requester("plant-a")
    await plant.append(0, 300)
    async with plant.running(), idmz.running():

        async def ask(first: int) -> None:
            asked = FetchRange(stream=STREAM, first_offset=first, last_offset=first + 99, limit=100)
            reply = await asker.ask(asked, 5)
            assert isinstance(reply.answer, RangeAnswer)
            assert reply.answer.covered() == (first, first + 99)

        monkeypatch.setattr("agent.replication.serving.reading.INLINE_PAUSE_FACTOR", 0)
        async with asyncio.timeout(LIMIT_S):
            while not (disk.by and disk.by[-1]):  # this machine may be slow for a while, too
                await ask(1)
        monkeypatch.setattr("agent.replication.serving.reading.INLINE_PAUSE_FACTOR", 10**6)
        slow.set()
        disk.by.clear()
        for first in (1, 101, 201, 1, 101):
            await ask(first)
        assert disk.by[1:] == 4 * [False]
    store.close()
    idmz.store.close()
