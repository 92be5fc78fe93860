"""A tag is edited, which gives it another number, before, in and after a gap of it: what it missed is filled."""

from __future__ import annotations

import asyncio
import json

import pytest

from agent.ingest.gap import ITEM_GONE, SERVER_QUEUE_OVERFLOW, SOURCE_LOST
from agent.ingest.opcua.history import backfill
from agent.ingest.quality import BAD_COMMUNICATION_ERROR
from tests.ingest.opcua.history.filling import FakeStored, filling
from tests.ingest.test_delivery import S
from tests.waiting import wait_until_async

pytestmark = pytest.mark.virtual_time


async def test_a_gap_is_filled_of_a_tag_that_is_edited_meanwhile() -> None:
    """An edit gives a tag another number. Two gaps that touch are read together; they wait for what is on its way, and
    are known under the old number by then."""
    async with filling() as it:
        await it.value(100)
        await it.outage()
        it.delivery.add_gap(SERVER_QUEUE_OVERFLOW, 111 * S, 113 * S, 5, [1], exact=True)
        await it.edit()
        await it.value(115)
        await it.filled()
    assert it.times() == [*range(100, 114), 115]
    assert {json.dumps(fill["tags"]) for fill in it.fills()} == {"[]"}


async def test_an_outage_is_filled_of_a_tag_that_is_edited_in_it() -> None:
    """Its first value under the new number is the return of the tag."""
    async with filling(stored=FakeStored({2: {t * S for t in range(90, 101)}})) as it:
        await it.value(100)
        await it.delivery.lose(BAD_COMMUNICATION_ERROR, 105 * S, since_ns=101 * S)
        await it.edit()
        it.delivery.add_gap(SOURCE_LOST, 101 * S, 120 * S, 0, it.delivery.tags, exact=False)
        await it.value(120)
        await it.filled()
    assert it.fills()[0]["outages"] == ["1970-01-01T00:01:41Z"]
    assert it.times() == [*range(100, 121)]


async def test_a_tag_that_is_edited_while_its_history_is_on_its_way(monkeypatch: pytest.MonkeyPatch) -> None:
    """What was asked for under the old number is recorded under the new one, page after page, and so is what waits
    behind it."""
    monkeypatch.setattr(backfill, "VALUES_PER_READ_MAX", 300)
    async with filling() as it:
        it.history.answers = asyncio.Semaphore(0)
        await it.value(100)
        await it.outage(101, 900)
        await wait_until_async(lambda: it.history.calls, "a call")
        it.fill.request(20 * S, 23 * S)
        await it.edit()
        for _ in range(9):
            it.history.answers.release()
        await it.filled(2)
    assert len(it.history.calls) > 2
    assert it.times() == [20, 21, 22, *range(100, 901)]
    (number,) = (n for n, known in enumerate(it.store.definitions, 1) if known.unit and known.acquisition)
    assert {sample.tag for sample in it.store.of("a")} == {1, number}


async def test_a_node_that_was_gone_is_read_under_its_new_number() -> None:
    """A tag may be edited just because its node is gone."""
    async with filling() as it:
        it.history.is_gone = True
        await it.outage()
        await it.filled()
        it.history.is_gone = False
        await it.edit()
        it.delivery.add_gap(ITEM_GONE, 150 * S, 155 * S, 0, it.delivery.tags, exact=False)
        await it.filled(3)
    assert it.times() == [*range(101, 111), *range(150, 156)]
