"""What operations share: the alarm, and the time that reading takes."""

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from agent.replication.serving.operations.context import Context
from agent.settings.peers import PeerLimits
from tests.waiting import LIMIT_S


class Calls:
    """Calls that are due later, by the delay; a cancelled one is gone."""

    def __init__(self) -> None:
        self.due: dict[float, Callable[[], object]] = {}

    def later(self, delay_s: float, callback: Callable[[], object]) -> Callable[[], None]:
        self.due[delay_s] = callback
        return lambda: self.due.pop(delay_s, None)  # type: ignore[return-value]


def context_of() -> Context:
    """The context of a server without a link."""
    nothing: Any = SimpleNamespace(signer=None)
    return Context(nothing, nothing, {"idmz": frozenset()})


@pytest.mark.parametrize("fails", [False, True])
async def test_reading_is_paid_by_the_time_that_it_takes(monkeypatch: pytest.MonkeyPatch, *, fails: bool) -> None:
    """Processor time, in microseconds, also of a read that fails."""
    context, times_ns, ended = context_of(), [1_000_000, 6_000_000], list[tuple[str, int]]()
    monkeypatch.setattr(context, "cpu_ns", lambda: times_ns.pop(0))
    end = context.turns.end_read

    def noted(zone: str, work: Any, took_us: int, now_ms: int) -> None:
        ended.append((zone, took_us))
        end(zone, work, took_us, now_ms)

    monkeypatch.setattr(context.turns, "end_read", noted)

    def read() -> None:
        if fails:
            raise OSError("disk")

    try:
        await context.in_turn("idmz", read)
    except OSError:
        assert fails
    assert ended == [("idmz", 5_000)]


async def test_an_answer_is_paid_by_its_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    """No more is read for its zone until the debt is paid off, and then without another event; for another zone it is
    at once."""
    calls, now_ms = Calls(), 0
    monkeypatch.setattr(Context, "call_later", lambda _, *how: calls.later(*how))
    monkeypatch.setattr(Context, "now_ms", lambda _: now_ms)
    connection = SimpleNamespace(outgoing_bytes=0, publish_answer=lambda *_: None)
    link: Any = SimpleNamespace(require=lambda: connection)
    limits = dict.fromkeys(("idmz", "erp"), PeerLimits(answer_bytes_per_second_max=100_000))
    context = Context(link, context_of().store, dict.fromkeys(limits, frozenset()), limits=limits)
    context.send("idmz", "topic", bytes(1_000_000), b"c" * 16)
    reading = asyncio.create_task(context.in_turn("idmz", lambda: "a page"))
    async with asyncio.timeout(LIMIT_S):
        await asyncio.sleep(0)  # it asks for its place
        assert await context.in_turn("erp", lambda: "another") == "another"
        ((delay_s, ring),) = calls.due.items()
        assert delay_s == pytest.approx(9.75, abs=0.01)
        now_ms = 9_760
        assert not reading.done()
        ring()
        assert await reading == "a page"
