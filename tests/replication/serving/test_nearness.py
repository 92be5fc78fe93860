"""Small pages are read at once, as long as the disk does not have to be waited for."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any

import pytest

from agent.fact_store.log.settings import StoreSettings
from agent.replication.protocol.messages import FetchRange, RangeAnswer
from agent.replication.serving.nearness import AWAY_NS, FACTS_MAX, SLOW_NS, Nearness
from tests.replication.nodes import STREAM, Node
from tests.support.mosquitto import Mosquitto


def test_large_pages_are_never_read_at_once() -> None:
    """However quick the disk is: checking a large page takes as long as a slow disk."""
    nearness = Nearness()
    assert nearness.is_near(FACTS_MAX, 0)
    assert not nearness.is_near(FACTS_MAX + 1, 0)


def test_one_slow_read_sends_the_next_ones_away_for_a_while() -> None:
    """Then one is tried at once again, and if it is quick, so are those after it."""
    nearness = Nearness()
    nearness.took(0, SLOW_NS)
    assert nearness.is_near(1, SLOW_NS)
    nearness.took(0, SLOW_NS + 1)
    over = SLOW_NS + 1 + AWAY_NS
    assert not nearness.is_near(1, over - 1)
    assert nearness.is_near(1, over)
    nearness.took(over, over + 1)
    assert nearness.is_near(1, over + 2)


@pytest.mark.system
def test_a_disk_that_has_to_be_waited_for_is_waited_for_in_threads(
    broker: Mosquitto, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As long as reads are quick the event loop does them; once each takes 20 ms, at most the first."""
    slow = threading.Event()
    took = threading.Event()

    class Disk:
        """A store whose reads are slow while `slow` is set; notes who read."""

        def __init__(self, store: Any) -> None:
            self._store = store
            self.by = list[bool]()

        def __getattr__(self, name: str) -> Any:
            return getattr(self._store, name)

        def read(self, *asked: Any, **limits: Any) -> Any:
            self.by.append(threading.current_thread() is threading.main_thread())
            if slow.is_set():
                took.wait(0.02)  # nobody sets it: this is the disk
            return self._store.read(*asked, **limits)

    async def run() -> None:
        plant = Node.open(broker, "plant-a", tmp_path, StoreSettings(batch_facts_target=100))
        idmz = Node.open(broker, "idmz", tmp_path)
        store, disk = plant.store, Disk(plant.store)
        plant.store = disk  # type: ignore[assignment]
        plant.serve({"idmz": [STREAM]})
        asker = idmz.asker("plant-a")
        await plant.append(0, 300)
        async with plant.running(), idmz.running():

            async def ask(first: int) -> None:
                asked = FetchRange(stream=STREAM, first_offset=first, last_offset=first + 99, limit=100)
                reply = await asker.ask(asked, 5)
                assert isinstance(reply.answer, RangeAnswer)
                assert reply.answer.covered() == (first, first + 99)

            async with asyncio.timeout(20):
                while not (disk.by and disk.by[-1]):  # this machine may be slow for a while, too
                    await ask(1)
            monkeypatch.setattr("agent.replication.serving.nearness.AWAY_NS", 3600 * 10**9)
            slow.set()
            disk.by.clear()
            for first in (1, 101, 201, 1, 101):
                await ask(first)
            assert disk.by[1:] == 4 * [False]
        store.close()
        idmz.store.close()

    asyncio.run(run())
