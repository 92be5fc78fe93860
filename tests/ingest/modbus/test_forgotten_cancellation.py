"""A cancellation that an error hides."""

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from agent.ingest.errors import SourceLost
from agent.ingest.lifecycle import State
from agent.ingest.modbus.source import ModbusSource
from tests.ingest.plant import ingesting, modbus
from tests.waiting import LIMIT_S, wait_until_async


def test_a_source_stops_though_its_cancellation_became_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A life that answers its cancellation with an error is the last one: ingest stops, and begins
    no other."""
    lives = []

    async def run(_source: ModbusSource, _on_up: Callable[[], None]) -> None:
        lives.append(1)
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            if len(lives) == 1:
                raise SourceLost("request cancelled") from None
            raise

    monkeypatch.setattr(ModbusSource, "run", run)

    async def scenario() -> None:
        async with asyncio.timeout(LIMIT_S), ingesting(modbus(1, tmp_path)) as running:
            await wait_until_async(lambda: lives, "the first life")
        assert running.source("meter").state is State.STOPPED

    asyncio.run(scenario())
    assert len(lives) == 1
