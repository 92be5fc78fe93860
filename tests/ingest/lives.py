"""A Modbus source whose lives the test plays, and what the store says of them."""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from agent.columns import SampleColumns
from agent.ingest.completeness import Moment, Stored
from agent.ingest.lifecycle import Newest
from agent.ingest.modbus.source import ModbusSource
from agent.ingest.ports import StoredFacts
from agent.ingest.quality import BAD_COMMUNICATION_ERROR
from agent.message import Sample
from agent.settings.sources import ModbusSourceSettings
from tests.ingest.fakes import FakeStore
from tests.ingest.plant import Running, ingesting, modbus

TAGS = "tag,table,register,type,stream\nplant/x,holding,1,int16,\nplant/y,holding,2,int16,facts.slow\n"
Life = Callable[[ModbusSource, Callable[[], None]], Awaitable[None]]


class PlayedSource:
    """A source with two tags, each in a stream of its own, that fare alike (see `ingesting`). Made by the fixture
    `played`."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
        self._monkeypatch, self._folder = monkeypatch, folder

    def settings(self, tags: str = TAGS, **changed: object) -> ModbusSourceSettings:
        """Its settings, with this tag file."""
        return modbus(**{"port": 1, "folder": self._folder, "tags": tags, **changed})

    def other(self) -> ModbusSourceSettings:
        """The settings of another source like it, with tags of its own."""
        file = self._folder / "other.csv"
        file.write_text(TAGS.replace("plant/", "press/"))
        return replace(self.settings(), name="other", tags_file=file)

    def ingesting(self, **more: Any) -> AbstractAsyncContextManager[Running]:
        """Ingest of it (see `ingesting`)."""
        return ingesting(self.settings(), **more)

    def lives(self, life: Life) -> None:
        """Each life is this, from when it may record."""

        async def run(source: ModbusSource, on_up: Callable[[], None]) -> None:
            while source._delivery.is_standby:
                await source._delivery.stand_by(0.01)
            source._delivery.take_over_map(source.clock.now_ns())
            await life(source, on_up)

        self._monkeypatch.setattr(ModbusSource, "run", run)

    def dies(self, *deaths: Exception | None, value: float = 1.0, alive_ns: int | None = None) -> None:
        """Each life delivers one sample and ends so; with None, and after all of them, it goes on."""
        left = list(deaths)

        async def life(source: ModbusSource, on_up: Callable[[], None]) -> None:
            on_up()
            source.complete = Moment(source.clock.now_ns() if alive_ns is None else alive_ns)
            await deliver(source, source.complete.time_ns, value)
            death = left.pop(0) if left else None
            if death is not None:
                raise death
            await asyncio.Event().wait()

        self.lives(life)


async def deliver(source: ModbusSource, at_ns: int, value: float | None = None) -> None:
    """A value of each tag; without one it is another than before."""
    value = float(at_ns) if value is None else value
    samples = [Sample(tag, at_ns, value) for tag in source._delivery.points]
    await source._delivery.deliver(SampleColumns.of(samples), at_ns)


def gaps(store: FakeStore) -> list[tuple[str, str, int, bool]]:
    """First and last time, count and exactness of each gap fact of a lost source."""
    return [(g["first_time"], g["last_time"], g["count"], g["count_exact"]) for g in store.told()]


def reasons(store: FakeStore) -> list[str]:
    """Why values are missing, by the gap facts in order."""
    return [fact["reason"] for fact in store.told()]


class Before:
    """What the store holds: the newest sample of each tag, and up to when this node was complete, if it was."""

    def __init__(self, complete: Mapping[str, Stored], newest_ns: int, lost_ns: int) -> None:
        self._complete, self._newest_ns, self._lost_ns = complete, newest_ns, lost_ns

    def newest_samples(self, stream: str, numbers: Collection[int]) -> dict[int, Newest]:
        at_ns = self._newest_ns
        good_ns = at_ns - (stream == "facts.slow")
        if self._lost_ns:
            return {n: Newest(Sample(n, self._lost_ns, None, BAD_COMMUNICATION_ERROR), good_ns) for n in numbers}
        return {n: Newest(Sample(n, at_ns, 1.0), good_ns) for n in numbers} if at_ns else {}

    def completeness(self, _: str) -> Mapping[str, Stored]:
        return self._complete

    def completeness_of_others(self, *_: object) -> Mapping[str, Stored]:
        return {}


def before(
    complete_ns: int | None, newest_ns: int = 10**9, lost_ns: int = 0, parts: Collection[str] = ("",)
) -> StoredFacts:
    """As the port: these parts were complete up to then. `lost_ns`: the newest sample of each tag is bad since then,
    and another one was good before."""
    complete = {} if complete_ns is None else dict.fromkeys(parts, Stored(complete_ns))
    return cast(StoredFacts, Before(complete, newest_ns, lost_ns))
