"""Spans of the serving side: how each ends."""

from pathlib import Path

import msgspec
import pytest

from agent.replication.protocol.messages import (
    AcquireLease,
    AppendFact,
    FetchFacts,
    FetchRange,
    GetDigests,
    GetLatest,
    LogPosition,
    Request,
    operation_of,
)
from agent.telemetry import Span, Started, Telemetry
from tests.replication.nodes import STREAM
from tests.replication.serving.support import filled, new_message, serving
from tests.waiting import wait_until_async


def ends(telemetry: Telemetry, operation: str) -> tuple[int, int, int, int]:
    """Started, stopped, failed, discarded."""
    counted = next(counted for counted in telemetry.statistics() if counted.step == (Span.SERVE, operation))
    return counted.started, counted.stopped, counted.failed, counted.discarded


async def test_requests_are_counted_by_operation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Answered ones stop, refused ones fail, one that waits when the node is stopped is discarded; an unreadable
    request has no operation. The time for which a fetch waits for facts is no serving time."""
    telemetry, waited_ns, stop = Telemetry(), list[int](), Telemetry.stop

    def stopped(self: Telemetry, span: Started, excluded_ns: int = 0, **fields: object) -> None:
        waited_ns.append(excluded_ns)
        stop(self, span, excluded_ns, **fields)

    monkeypatch.setattr(Telemetry, "stop", stopped)
    async with serving(tmp_path, {"idmz": frozenset({STREAM})}, telemetry=telemetry) as (server, peer):
        life = (await filled(server, 5)).life.hex()
        good: list[Request] = [
            AppendFact(stream=STREAM, messages=[new_message("a")]),
            AcquireLease(stream=STREAM, producer="idmz.mes"),
            FetchRange(stream=STREAM, first_offset=1, last_offset=1, life=life, limit=10),
            GetLatest(stream=STREAM),
            GetDigests(stream=STREAM),
        ]
        for request in good:
            await peer.ask(request)
            await peer.refusal(msgspec.structs.replace(request, stream="facts.unknown"))
        await peer.refusal(b"{")
        waits = FetchFacts(consumer_name="idmz.c", stream=STREAM, limit=1, after=LogPosition(offset=6, life=life))
        await peer.ask(msgspec.structs.replace(waits, wait_ms=1_000))
        peer.send(msgspec.structs.replace(waits, wait_ms=60_000))
        await wait_until_async(lambda: server.statistics().parked, "the fetch to wait")
    for request in good:
        assert ends(telemetry, operation_of(request)) == (2, 1, 1, 0), request
    assert ends(telemetry, "FetchFacts") == (2, 1, 0, 1)
    assert ends(telemetry, "") == (1, 0, 1, 0)
    assert max(waited_ns) > 0
