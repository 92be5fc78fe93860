"""Spans of a pull and of the serving side: how each ends."""

import asyncio
from concurrent.futures import Future
from pathlib import Path

import msgspec
import pytest

from agent.lease import LeaseClaim
from agent.positions import NOTHING_READ, Position
from agent.replication.protocol.messages import (
    AcquireLease,
    AppendFact,
    Confirm,
    FetchFacts,
    FetchRange,
    GetDigests,
    GetLatest,
    LogPosition,
    Request,
    operation_of,
)
from agent.replication.pulling.pull_spans import CONFIRMS_MAX, PullSpans
from agent.replication.pulling.receiving.pull_events import (
    Appended,
    AppendFailed,
    ArrivedPage,
    Event,
    FetchFailed,
    LinkDown,
    LinkUp,
    PageArrived,
    ReceiverSettings,
    Tick,
)
from agent.replication.pulling.receiving.receiver import Receiver
from agent.replication.serving.consumer_effects import StartConfirm
from agent.replication.serving.operations.consumers import BOOTSTRAPS_MAX, BootstrapSpans, Consumers
from agent.replication.serving.operations.context import Context
from agent.telemetry import Side, Span, SpanStatistics, Started, Telemetry
from tests.replication.nodes import STREAM
from tests.replication.serving.support import filled, new_message, serving
from tests.waiting import wait_until_async

ONE = "1" * 32
PATIENCE = ReceiverSettings(wait_ms=1_000, answer_timeout_ms=500, backoff_ms_min=100, backoff_ms_max=400)


class Pull:
    """A receiver, its spans, and a clock."""

    def __init__(self, life: str | None = ONE) -> None:
        self.core = Receiver(PATIENCE)
        self.telemetry = Telemetry()
        self.spans = PullSpans(self.telemetry, "plant-a", STREAM, is_new=life is None)
        self.now_ms = 0

    def __call__(self, *events: Event, after_ms: int = 1) -> None:
        for event in events:
            self.now_ms += after_ms
            effects = self.core.handle(event, self.now_ms, 0.5)
            self.spans.after(event, self.core, end_offset=20)
            for effect in effects:
                self.spans.carried_out(effect)

    def ends(self, span: Span) -> tuple[int, int, int, int]:
        """Started, stopped, failed, discarded."""
        return ends(self.telemetry, span)


def ends(telemetry: Telemetry, span: Span, side: Side = Side.ASKING, operation: str = "") -> tuple[int, int, int, int]:
    """Started, stopped, failed, discarded."""
    counted = of(telemetry, span, side, operation)
    return counted.started, counted.stopped, counted.failed, counted.discarded


def of(telemetry: Telemetry, span: Span, side: Side = Side.ASKING, operation: str = "") -> SpanStatistics:
    """Counters of one step."""
    return next(counted for counted in telemetry.statistics() if counted.step == (span, side, operation))


def page(first: int, last: int, *, more: bool = False, frontier: int = 0) -> ArrivedPage:
    """A page with one run of offsets."""
    run = {"first_offset": first, "last_offset": last, "more": more, "life": ONE}
    run |= {"after": at(first - 1 if first else frontier), "lives": (at(last),) if last else ()}
    return ArrivedPage(frontier=frontier, **run)


def at(offset: int) -> Position:
    """A position in the peer's log."""
    return Position(bytes.fromhex(ONE), offset) if offset else NOTHING_READ


RESTORED = FetchFailed(2, "life_unknown", "it was restored", is_retryable=True)


@pytest.mark.parametrize(
    "events, fetches",
    [
        ([PageArrived(1, page(1, 10))], (1, 1, 0, 0)),
        ([PageArrived(1, page(1, 10, more=True))], (2, 1, 0, 0)),
        ([PageArrived(1, page(5, 10))], (1, 0, 0, 1)),
        ([FetchFailed(1, "busy", "busy", is_retryable=True)], (1, 0, 1, 0)),
        ([FetchFailed(1, "fenced", "fenced", is_retryable=False)], (1, 0, 1, 0)),
        ([LinkDown("gone")], (1, 0, 1, 0)),
        ([Tick()], (1, 0, 1, 0)),
        ([Tick(), Tick(), PageArrived(1, page(1, 10))], (2, 0, 1, 1)),
        ([PageArrived(1, page(1, 10, more=True)), AppendFailed("forged", is_retryable=False)], (2, 1, 0, 1)),
    ],
)
def test_how_a_fetch_ends(events: list[Event], fetches: tuple[int, int, int, int]) -> None:
    """By its page, a refusal, a time-out, the end of the connection, the answer to an earlier request, or a refused
    predecessor; otherwise its span stays open."""
    pull = Pull()
    pull(LinkUp())
    pull(*events, after_ms=1_500)
    assert pull.ends(Span.FETCH) == fetches


def test_how_an_append_ends() -> None:
    """A durable page, a page the store cannot accept now, and the same page later have three spans."""
    pull = Pull()
    pull(LinkUp(), PageArrived(1, page(1, 10)), AppendFailed("full", is_retryable=True))
    assert pull.ends(Span.APPEND) == (1, 0, 1, 0)
    pull(Tick(), after_ms=60_000)
    pull(Appended())
    assert pull.ends(Span.APPEND) == (2, 1, 1, 0)


def test_how_a_first_reading_ends() -> None:
    """It ends when nothing is outstanding for the first time and all is durable. A log that was put back begins a new
    one; a final refusal fails it. A resumed pull has none."""
    pull = Pull(life=None)
    pull(LinkUp(), PageArrived(1, page(1, 10, more=True)), Appended(), PageArrived(2, page(11, 20)))
    assert pull.ends(Span.BOOTSTRAP) == (1, 0, 0, 0)
    pull(Appended())
    assert pull.ends(Span.BOOTSTRAP) == (1, 1, 0, 0)
    fetch_id = pull.core.open_fetch_id
    assert fetch_id is not None
    pull(FetchFailed(fetch_id, "life_unknown", "it was restored", is_retryable=True))
    pull(PageArrived(fetch_id + 1, page(16, 20, more=True)), Appended())
    assert pull.ends(Span.BOOTSTRAP) == (2, 1, 0, 0)
    pull(FetchFailed(fetch_id + 2, "stream_not_exported", "no", is_retryable=False))
    assert pull.ends(Span.BOOTSTRAP) == (2, 1, 1, 0)
    assert Pull().ends(Span.BOOTSTRAP) == (0, 0, 0, 0)


@pytest.mark.parametrize(
    "events, confirms",
    [
        ([], (1, 0, 0, 0)),
        ([PageArrived(2, page(0, 0, frontier=10))], (1, 1, 0, 0)),
        ([PageArrived(2, page(11, 20, more=True)), PageArrived(3, page(0, 0, frontier=10))], (1, 1, 0, 0)),
        ([FetchFailed(2, "busy", "busy", is_retryable=True)], (1, 0, 1, 0)),
        ([FetchFailed(2, "fenced", "fenced", is_retryable=False)], (1, 0, 1, 0)),
        ([LinkDown("gone")], (1, 0, 1, 0)),
        ([Tick()], (1, 0, 1, 0)),
        ([Tick(), Tick(), PageArrived(3, page(0, 0, frontier=10))], (2, 1, 1, 0)),
        ([RESTORED, PageArrived(3, page(6, 20, more=True))], (2, 0, 0, 1)),
    ],
)
def test_how_a_confirmation_ends(events: list[Event], confirms: tuple[int, int, int, int]) -> None:
    """It ends when an answer of the peer shows the frontier, this answer or a later one. Without an answer it is
    unknown and sent again; for a log that was put back it is discarded."""
    pull = Pull()
    pull(LinkUp(), PageArrived(1, page(1, 10)), Appended())
    pull(*events, after_ms=1_600)
    assert pull.ends(Span.CONFIRM) == confirms


def test_open_confirm_spans_are_bounded() -> None:
    """A peer that accepts confirmations but never advances the frontier: a few spans stay open, older ones are
    discarded."""
    pull = Pull()
    pull(LinkUp())
    for number in range(20):
        asked = pull.core.open_fetch_id
        assert asked is not None
        pull(PageArrived(asked, page(number + 1, number + 1, more=True)), Appended())
    started, stopped, failed, discarded = pull.ends(Span.CONFIRM)
    assert (stopped, failed) == (0, 0)
    assert started - discarded == CONFIRMS_MAX


def test_spans_open_at_a_stop_are_discarded() -> None:
    """These are discarded: a fetch, a page being stored, a confirmation, and a bootstrap."""
    pull = Pull(life=None)
    pull(LinkUp(), PageArrived(1, page(1, 10, more=True)), Appended(), PageArrived(2, page(11, 20, more=True)))
    pull(Appended(), PageArrived(3, page(21, 30, more=True)))
    pull.spans.stopped()
    for span in (Span.FETCH, Span.APPEND, Span.CONFIRM, Span.BOOTSTRAP):
        started, stopped, failed, discarded = pull.ends(span)
        assert (failed, discarded) == (0, started - stopped), span
        assert discarded > 0, span


def test_how_a_bootstrap_span_ends_on_the_serving_side() -> None:
    """It ends at the end of the log, by a final refusal, or when the consumer registers again; not by a retryable
    refusal."""
    telemetry = Telemetry()
    readings = BootstrapSpans(telemetry)

    def counts() -> tuple[int, int, int, int]:
        return ends(telemetry, Span.BOOTSTRAP, Side.SERVING)

    readings.reached_end("idmz.a")
    readings.began("idmz.a", "idmz", STREAM)
    readings.refused("idmz.a", "busy")
    assert counts() == (1, 0, 0, 0)
    readings.reached_end("idmz.a")
    readings.reached_end("idmz.a")
    assert counts() == (1, 1, 0, 0)
    for _ in range(2):
        readings.began("idmz.b", "idmz", STREAM)
    assert counts() == (3, 1, 0, 1)
    readings.refused("idmz.b", "batch_exceeds_packet")
    assert counts() == (3, 1, 1, 1)


def test_how_a_confirm_span_ends_on_the_serving_side() -> None:
    """It is stopped when durable, failed when the store refuses, and discarded when the node stops."""
    ended = [Future[int]() for _ in range(3)]

    class Confirmed:
        def confirm(self, *_: object, **__: object) -> Future[int]:
            return ended[at]

    class Store:
        life, zone, node, consumers = b"", "plant-a", "plant-a", Confirmed()

    telemetry = Telemetry()
    effect = StartConfirm("idmz.a", "idmz", Confirm(last_offset=1, life="0" * 32), LeaseClaim("5f3a"))

    async def scenario() -> None:
        nonlocal at
        consumers = Consumers(Context(None, Store(), {}, telemetry))  # type: ignore[arg-type]
        for at in range(3):
            waiting = consumers._start_confirm(effect)
            [lambda: ended[0].set_result(1), lambda: ended[1].set_exception(ValueError("no")), waiting.cancel][at]()
            await asyncio.wait([waiting])

    at = 0
    asyncio.run(scenario())
    assert ends(telemetry, Span.CONFIRM, Side.SERVING) == (3, 1, 1, 1)


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
        assert ends(telemetry, Span.SERVE, Side.SERVING, operation_of(request)) == (2, 1, 1, 0), request
    assert ends(telemetry, Span.SERVE, Side.SERVING, "FetchFacts") == (2, 1, 0, 1)
    assert ends(telemetry, Span.SERVE, Side.SERVING) == (1, 0, 1, 0)
    assert max(waited_ns) > 0


def test_bootstraps_that_never_end_take_no_more_memory() -> None:
    """If a zone registers consumers under ever new names and never reads, the oldest bootstrap is discarded, and the
    newest ends normally."""
    telemetry = Telemetry()
    readings = BootstrapSpans(telemetry)
    for number in range(BOOTSTRAPS_MAX + 5):
        readings.began(f"evil.{number}", "evil", STREAM)
    assert ends(telemetry, Span.BOOTSTRAP, Side.SERVING) == (BOOTSTRAPS_MAX + 5, 0, 0, 5)
    readings.reached_end("evil.4")
    readings.reached_end("evil.5")
    assert ends(telemetry, Span.BOOTSTRAP, Side.SERVING) == (BOOTSTRAPS_MAX + 5, 1, 0, 5)
