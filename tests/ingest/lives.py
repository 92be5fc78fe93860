"""The lives of a Modbus source, with a driver whose fate the test decides."""

import asyncio
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

import pytest

from agent.columns import SampleColumns
from agent.ingest.completeness import Moment
from agent.ingest.modbus.source import ModbusSource
from agent.message import Sample
from tests.ingest.fakes import FakeStore

TAG = "tag,table,register,type\nplant/x,holding,1,int16\n"


def lives(
    monkeypatch: pytest.MonkeyPatch, *deaths: Exception | None, value: float = 1.0, alive_ns: int | None = None
) -> None:
    """Each life of the source delivers one sample and ends so; with None, and after all of them, it goes on."""
    left = list(deaths)

    async def run(self: ModbusSource, on_up: Callable[[], None]) -> None:
        on_up()
        (tag,) = self._delivery.points
        self.complete = Moment(self.clock.now_ns() if alive_ns is None else alive_ns)
        at_ns = self.complete.time_ns
        await self._delivery.deliver(SampleColumns.of([Sample(tag, at_ns, value)]), at_ns)
        death = left.pop(0) if left else None
        if death is not None:
            raise death
        await asyncio.Event().wait()

    monkeypatch.setattr(ModbusSource, "run", run)


def gaps(store: FakeStore) -> list[tuple[str, str, int, bool]]:
    """First and last time, count and exactness of each gap fact of a lost source."""
    return [(g["first_time"], g["last_time"], g["count"], g["count_exact"]) for g in store.told()]


class OrderedStore(FakeStore):
    """Remembers behind how many gap facts each append of samples came."""

    def __init__(self) -> None:
        super().__init__()
        self.gaps_before: list[int] = []

    def append_columns(self, stream: str, columns: SampleColumns) -> Future[Any]:
        self.gaps_before.append(len(self.messages))
        return super().append_columns(stream, columns)


def reasons(store: FakeStore) -> list[str]:
    """Why values are missing, by the gap facts in order."""
    return [fact["reason"] for fact in store.told()]
