"""What an earlier process stored, and what it could not: the time without a process is declared."""

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, cast

import pytest

from agent.columns import SampleColumns
from agent.ingest.errors import SourceLost
from agent.ingest.lifecycle import DeclaredGap, Newest
from agent.ingest.modbus.source import ModbusSource
from agent.ingest.ports import StoredFacts
from agent.message import Sample
from tests.ingest.fakes import FakeStore
from tests.ingest.lives import TAG, OrderedStore, gaps, lives, reasons
from tests.ingest.plant import ingesting, modbus
from tests.waiting import wait_until_async


class StoredBefore:
    """What an earlier process stored: the newest sample of each tag, or, where those lie too deep, the node's last."""

    def __init__(self, *, is_found: bool = True) -> None:
        self._is_found = is_found

    def newest_samples(self, _: str, numbers: Sequence[int]) -> dict[int, Newest]:
        return {n: Newest(Sample(n, 10**9, 1.0), 10**9) for n in numbers} if self._is_found else {}

    def last_sample(self, _: str) -> Newest:
        return Newest(Sample(9, 2 * 10**9, 1.0), 0)

    def declared_gaps(self, _: str) -> list[DeclaredGap]:
        return []


@pytest.mark.parametrize("is_found", [True, False])
async def test_the_time_without_a_process_is_declared(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, *, is_found: bool
) -> None:
    """From the newest sample in the store up to the first value, ahead of it, in one fact. From the node's last sample
    where those of the source lie too deep: then also at once, because another source may record a later one."""
    lives(monkeypatch)
    store, stored = OrderedStore(), cast(StoredFacts, StoredBefore(is_found=is_found))
    async with ingesting(modbus(1, tmp_path, TAG), store=store, stored=stored) as run:
        await run.wait_good("plant/x", 0)
    facts = 1 if is_found else 2
    assert reasons(store) == ["agent_stopped"] * facts
    assert store.gaps_before[0] == facts
    assert {first for first, *_ in gaps(store)} == {f"1970-01-01T00:00:0{1 if is_found else 2}Z"}


async def test_a_value_of_an_earlier_process_is_the_last_one(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A quiet source records nothing after a restart; its last value is the one in the store, not none."""

    async def run_quietly(*_: object) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(ModbusSource, "run", run_quietly)
    async with ingesting(modbus(1, tmp_path, TAG), stored=cast(StoredFacts, StoredBefore())) as run:
        await wait_until_async(lambda: run.ingest.statistics()[0].last_value_unix_ms == 1_000, "the stored time")


@pytest.mark.parametrize("is_complete", [True, False])
async def test_the_time_without_a_process_is_declared_ahead_of_a_value_that_comes_early(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, *, is_complete: bool
) -> None:
    """A value that arrives before the source is connected: the gap is ahead of it. If other values can still be missed,
    another fact says so when the source is connected."""
    up = asyncio.Event()

    async def run(self: ModbusSource, on_up: Callable[[], None]) -> None:
        self.is_complete = is_complete
        now_ns = self.now_ns()
        await self._delivery.deliver(SampleColumns.of([Sample(1, now_ns, 2.0)]), now_ns)
        on_up()
        await self._delivery.deliver_due(now_ns)
        up.set()
        await asyncio.Event().wait()

    monkeypatch.setattr(ModbusSource, "run", run)
    store = OrderedStore()
    async with ingesting(modbus(1, tmp_path, TAG), store=store, stored=cast(StoredFacts, StoredBefore())):
        await up.wait()
    assert store.gaps_before[0] == 1
    assert reasons(store) == ["agent_stopped"] * (1 if is_complete else 2)


async def test_the_time_without_a_process_is_declared_ahead_of_a_loss(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A source that does not answer after a restart: its bad samples, which are newer than the stop, come after the gap
    fact. Otherwise a process that ends here would hide the gap from the next one."""

    async def run(_: ModbusSource, __: Callable[[], None]) -> None:
        raise SourceLost("gone")

    monkeypatch.setattr(ModbusSource, "run", run)
    store = OrderedStore()
    async with ingesting(modbus(1, tmp_path, TAG), store=store, stored=cast(StoredFacts, StoredBefore())) as running:
        await wait_until_async(lambda: running.store.of("plant/x"), "the bad sample")
        assert store.gaps_before == [1]


async def test_events_are_missing_since_the_outage_before_a_stop(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The last process recorded values again after an outage, and was killed: events of the outage may not have come.
    They are missing since it began, and values since the last gap that was told."""
    second = 10**9

    class Stored:
        def newest_samples(self, _: str, numbers: Sequence[int]) -> dict[int, Newest]:
            return {n: Newest(Sample(n, 1_000 * second, 1.0), 1_000 * second) for n in numbers}

        def declared_gaps(self, _: str) -> list[DeclaredGap]:
            return [DeclaredGap(300 * second, 995 * second, is_outage=True)]

    class Events:
        def statistics(self) -> tuple[int, int, int, int]:
            return 0, 0, 0, 0

        def note_stop(self, first_ns: int, _: object) -> None:
            noted.append(first_ns)

        async def end(self) -> None: ...

    noted: list[int] = []
    lives(monkeypatch)
    made = ModbusSource.__init__

    def made_with_events(source: ModbusSource, *arguments: Any) -> None:
        made(source, *arguments)
        source.events = Events()  # type: ignore[assignment]

    monkeypatch.setattr(ModbusSource, "__init__", made_with_events)
    store, stored = FakeStore(), cast(StoredFacts, Stored())
    async with ingesting(modbus(1, tmp_path, TAG), store=store, stored=stored) as run:
        await run.wait_good("plant/x", 0)
    assert noted == [300 * second]
    assert {first for first, *_ in gaps(store)} == {"1970-01-01T00:16:35Z"}
