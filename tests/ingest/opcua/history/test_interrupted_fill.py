"""A session ends while a gap is filled, in every part of the work: the next one goes on."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

import pytest

from agent.errors import StoreFull
from agent.ingest.opcua.history import HistoryPage
from agent.message import Message
from tests.ingest.fakes import FakeStore
from tests.ingest.opcua.history.filling import FakeHistory, Filling, prepared
from tests.waiting import wait_until_async

pytestmark = pytest.mark.virtual_time


async def in_two_sessions(it: Filling, is_amid: Callable[[], object]) -> None:
    """An outage of ten seconds is filled: by a session that ends when `is_amid`, and by the next one."""
    await it.value(100)
    await it.outage()
    for end in (is_amid, it.fills):
        async with it.session():
            await wait_until_async(end, "the session's end")


async def test_a_session_that_ends_amid_a_page_loses_no_value() -> None:
    """The store refuses what was read, and the session ends: the next one finishes."""
    it = await prepared()

    def is_amid() -> bool:
        it.store.refusing = not it.fill._recorder.refused_total
        return not it.store.refusing

    await in_two_sessions(it, is_amid)
    assert it.times() == list(range(100, 111))


async def test_a_session_that_ends_before_its_result_is_recorded_leaves_it() -> None:
    """The store takes the values and refuses the fact about them: the next session records it."""

    class Full(FakeStore):
        refuses_results = True

        def append_message(self, stream: str, message: Message) -> Future[Any]:
            if self.refuses_results and message.fact.predicate == "history_backfilled":
                raise StoreFull("full")
            return super().append_message(stream, message)

    def is_amid() -> bool:
        store.refuses_results = not it.fill._recorder.refused_total
        return not store.refuses_results

    store = Full()
    it = await prepared(store=store)
    await in_two_sessions(it, is_amid)
    (said,) = it.fills()
    assert (said["values"], said["tags_filled"]) == (9, 1)


async def test_a_new_session_continues_no_page_of_the_one_before() -> None:
    """A continuation point is of its session: the next one begins the page again, after what is recorded."""
    continued = list[bytes | None]()

    class Paging(FakeHistory):
        async def read_history(self, ranges: Any, nodes: Any, values_max: int) -> list[HistoryPage]:
            continued.extend(part.continuation_point for part in ranges)
            if ranges[0].continuation_point is not None:
                await asyncio.Event().wait()
            (page,) = await super().read_history(ranges, nodes, 3 if len(continued) == 1 else values_max)
            return [page._replace(continuation_point=b"more" if len(continued) == 1 else b"")]

    it = await prepared(history=Paging())
    await in_two_sessions(it, lambda: len(continued) == 2)
    assert continued == [None, b"more", None]
    assert it.times() == list(range(100, 111))
