"""The spans of a pull and of who serves it: how each ends, decided by events alone, and all of them once on the real broker.

Seen to catch, with the product broken on purpose: a fetch that is never ended when it is given up, waiting counted as serving.
"""

import asyncio
import logging
from pathlib import Path

import pytest

from agent.replication.pull_spans import PullSpans
from agent.replication.receiver import Receiver
from agent.replication.receiver_words import (
    Appended,
    AppendFailed,
    Event,
    FetchFailed,
    LinkDown,
    LinkUp,
    Page,
    PageArrived,
    Settings,
    Tick,
)
from agent.telemetry import Span, SpanStatistics, Telemetry
from tests.replication.nodes import STREAM, Node
from tests.support.mosquitto import Mosquitto
from tests.waiting import wait_until_async

ONE, TWO = "1" * 32, "2" * 32
PATIENCE = Settings(wait_ms=1_000, answer_timeout_ms=500, backoff_ms_min=100, backoff_ms_max=400)


class Pull:
    """A receiver, its spans, and a clock."""

    def __init__(self, epoch: str | None = ONE) -> None:
        self.core = Receiver(PATIENCE, epoch, 0)
        self.telemetry = Telemetry()
        self.spans = PullSpans(self.telemetry, "plant-a", STREAM, is_new=epoch is None)
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


def ends(telemetry: Telemetry, span: Span) -> tuple[int, int, int, int]:
    """Started, stopped, failed, discarded."""
    one = next(one for one in telemetry.statistics() if one.span is span)
    return one.started, one.stopped, one.failed, one.discarded


def page(first: int, last: int, *, more: bool = False, epoch: str = ONE) -> Page:
    """A page of one run of offsets."""
    return Page(epoch=epoch, frontier=0, first_offset=first, last_offset=last, more=more)


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
    """By its page, by a refusal, by time, with the connection, overtaken by an earlier one's answer, or because what it would
    continue was refused; one that nobody ended is open."""
    pull = Pull()
    pull(LinkUp())
    pull(*events, after_ms=1_500)
    assert pull.ends(Span.FETCH) == fetches


def test_how_an_append_ends() -> None:
    """A page that is durable, one that the store could not take now, and the same again later are three."""
    pull = Pull()
    pull(LinkUp(), PageArrived(1, page(1, 10)), AppendFailed("full", is_retryable=True))
    assert pull.ends(Span.APPEND) == (1, 0, 1, 0)
    pull(Tick(), after_ms=60_000)
    pull(Appended())
    assert pull.ends(Span.APPEND) == (2, 1, 1, 0)


def test_how_a_first_reading_ends() -> None:
    """When nothing is outstanding for the first time, and durable; a store that was replaced begins another; a peer that refuses
    for good fails it. A pull that goes on where it was has none."""
    pull = Pull(epoch=None)
    pull(LinkUp(), PageArrived(1, page(1, 10, more=True)), Appended(), PageArrived(2, page(11, 20)))
    assert pull.ends(Span.BOOTSTRAP) == (1, 0, 0, 0)
    pull(Appended())
    assert pull.ends(Span.BOOTSTRAP) == (1, 1, 0, 0)
    fetch_id = pull.core.open_fetch_id
    assert fetch_id is not None
    pull(FetchFailed(fetch_id, "epoch_changed", "another", is_retryable=True, epoch=TWO))
    assert pull.ends(Span.BOOTSTRAP) == (2, 1, 0, 0)
    pull(FetchFailed(fetch_id + 1, "stream_not_exported", "no", is_retryable=False))
    assert pull.ends(Span.BOOTSTRAP) == (2, 1, 1, 0)
    assert Pull().ends(Span.BOOTSTRAP) == (0, 0, 0, 0)


@pytest.mark.system
def test_all_spans_of_a_pull(broker: Mosquitto, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A pull of 1,000 facts and a wait of two seconds at the end: every step is counted on its side, the waiting is in no serving
    time, and the log says nothing of it at level info."""
    caplog.set_level(logging.INFO)

    async def scenario() -> tuple[Telemetry, Telemetry]:
        plant, idmz = (Node.open(broker, zone, tmp_path) for zone in ("plant-a", "idmz"))
        server = plant.serve({"idmz": [STREAM]})
        puller = idmz.pull("plant-a", page_bytes_max=2_048)
        await plant.append(0, 1_000, 50)
        async with plant.running(), idmz.running():
            await idmz.wait_end(1_000)
            await wait_until_async(lambda: puller.statistics().frontier == 1_000, "the confirmation")
            waited = ends(puller._telemetry, Span.FETCH)[1] + 1
            await wait_until_async(
                lambda: ends(puller._telemetry, Span.FETCH)[1] > waited, "a fetch to come back empty"
            )
        plant.store.close()
        idmz.store.close()
        return puller._telemetry, server._telemetry

    asking, serving = asyncio.run(scenario())
    pages, stored, _, _ = ends(asking, Span.APPEND)
    assert pages == stored > 1
    assert ends(asking, Span.BOOTSTRAP)[:2] == (1, 1)
    assert ends(asking, Span.FETCH)[1] > pages
    assert ends(serving, Span.SERVE)[1] >= ends(asking, Span.FETCH)[1]
    assert ends(serving, Span.CONFIRM)[1] > 0
    # What is served lies within what is fetched; so however slow the machine is, the difference is what was waited.
    assert seconds(asking, Span.FETCH) - seconds(serving, Span.SERVE) > 1
    assert not [record for record in caplog.records if record.message.startswith("span")]


def seconds(telemetry: Telemetry, span: Span) -> float:
    """All that stopped, together."""
    one: SpanStatistics = next(one for one in telemetry.statistics() if one.span is span)
    return one.sum_s
