"""The lives of a source, with a driver whose fate the test decides."""

import asyncio
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest

from agent.ingest import supervisor
from agent.ingest.errors import SourceLost, SourceRefused
from agent.ingest.modbus.source import ModbusSource
from agent.ingest.quality import BAD_COMMUNICATION_ERROR
from agent.message import Sample
from tests.ingest.fakes import FakeStore, in_loop
from tests.ingest.plant import ingesting, modbus
from tests.waiting import wait_until_async

TAG = "tag,table,register,type\nplant/x,holding,1,int16\n"


def lives(monkeypatch: pytest.MonkeyPatch, *deaths: Exception | None) -> None:
    """Each life of the source delivers one sample and ends so; with None, and after all of them, it goes on."""
    left = list(deaths)

    async def run(self: ModbusSource, on_up: Callable[[], None]) -> None:
        on_up()
        (tag,) = self._delivery.points
        await self._delivery.deliver([Sample(tag, self.now_ns(), float(len(left)))], self.now_ns())
        death = left.pop(0) if left else None
        if death is not None:
            raise death
        await asyncio.Event().wait()

    monkeypatch.setattr(ModbusSource, "run", run)


@in_loop
async def test_a_lost_source_leaves_one_bad_sample(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Between the last value of a life and the first of the next one stands a bad one, so that the hole is in the
    data."""
    lives(monkeypatch, SourceLost("gone"))
    async with ingesting(modbus(1, tmp_path, TAG)) as run:
        await run.wait_good("plant/x", 1)
    assert [sample.quality for sample in run.store.of("plant/x")] == [0, BAD_COMMUNICATION_ERROR, 0]


@pytest.mark.parametrize("death", [AssertionError("ours"), ExceptionGroup("tasks", [AssertionError("ours")])])
def test_our_own_mistake_ends_the_process(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, death: Exception) -> None:
    """An assertion that fails, in a source or in one of its tasks, is not counted as a lost source."""
    lives(monkeypatch, death)

    async def scenario() -> None:
        async with asyncio.timeout(20), ingesting(modbus(1, tmp_path, TAG)):
            await asyncio.Event().wait()

    with pytest.raises(BaseExceptionGroup) as ended:
        asyncio.run(scenario())
    assert ended.group_contains(AssertionError, match="ours")


@in_loop
async def test_lives_that_end_at_once_come_ever_more_rarely(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Each short life counts as one more failure in a row, though it was connected."""
    lives(monkeypatch, *[SourceLost("gone")] * 3)
    failures = list[int]()
    wait_ms = supervisor.Backoff.wait_ms

    def noted(self: supervisor.Backoff, count: int, jitter: float) -> int:
        failures.append(count)
        return wait_ms(self, count, jitter)

    monkeypatch.setattr(supervisor.Backoff, "wait_ms", noted)
    async with ingesting(modbus(1, tmp_path, TAG)) as run:
        await run.wait_good("plant/x", 3)
    assert failures == [1, 2, 3]


@in_loop
async def test_each_reason_of_an_absence_is_told_once(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A server that is away, and then back but refusing our certificate, gets a line for each reason, however often
    they come; after its return the same reason is news again."""
    left: list[Exception | None] = [SourceLost("a"), SourceLost("a"), SourceRefused("b"), SourceLost("a"), None]
    left += [SourceLost("a"), None]

    async def run(_: ModbusSource, on_up: Callable[[], None]) -> None:
        death = left.pop(0)
        if death is not None:
            raise death
        on_up()
        if left:
            raise left.pop(0) or AssertionError("no death is left")
        await asyncio.Event().wait()

    monkeypatch.setattr(ModbusSource, "run", run)
    async with ingesting(modbus(1, tmp_path, TAG)) as running:
        await wait_until_async(lambda: not left and running.source("meter").connected, "the second return")
    told = [(r.action, getattr(r, "why", "")) for r in caplog.records if getattr(r, "action", "").startswith("source_")]
    assert [each for each in told if each[1]] == [
        ("source_lost", "SourceLost: a"),
        ("source_away", "SourceRefused: b"),
        ("source_lost", "SourceLost: a"),
    ]


@in_loop
async def test_stopping_waits_for_the_last_commit(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Ingest ends when what its sources delivered is committed, not when the store has taken it."""
    lives(monkeypatch, None)
    commits = list[Future[Any]]()

    class Slow(FakeStore):
        def append_samples(self, *_: object, **__: object) -> Future[Any]:  # type: ignore[override]
            commits.append(Future())
            return commits[-1]

    async def commit() -> None:
        await wait_until_async(lambda: commits, "the first sample")
        running.ingest.stop()
        for _ in range(20):
            await asyncio.sleep(0)
        states.append(running.source("meter").values_total)
        commits[0].set_result(None)

    states = list[int]()
    async with asyncio.TaskGroup() as group, ingesting(modbus(1, tmp_path, TAG), store=Slow()) as running:
        group.create_task(commit(), name="commit")
        await wait_until_async(lambda: states, "the commit")
    assert states == [0]
    assert running.source("meter").values_total == 1
