"""What a lost subscription holds: it is taken over and read to its end, or what is missing is declared."""

import asyncio
import time

import pytest

from agent.ingest.lifecycle import FastClock
from agent.ingest.opcua.publishing import Missing
from tests.ingest.opcua.events.collecting import BAD_TIMEOUT, LAST_LIFE, Collecting, collecting_again, of
from tests.ingest.opcua.events.events import S, condition, event
from tests.waiting import wait_until_async

pytestmark = pytest.mark.virtual_time


async def test_what_a_lost_subscription_holds_is_recorded() -> None:
    """It is taken over, gives what it has, twice, and is deleted. Then nothing is missing, and the conditions are asked
    for again. An event that both subscriptions bring is one message; what a condition is in is the newest state."""
    run = await collecting_again()
    async with run.life():
        await wait_until_async(lambda: len(run.server.asked) == 2, "the new item")
        await run.server.publish(of(condition("High", 5, retain=False, message="ended"), event(message="both")))
        await run.server.publish(of(condition("High", 4, message="began"), event(message="both")), number=1)
        assert run.server.refreshes == [1]
        await run.server.publish(of(), number=1)
        await wait_until_async(lambda: run.server.deleted == [1], "the end of the old one")
        await wait_until_async(lambda: run.server.refreshes == [1, 2], "a refresh")
        assert run.collector.statistics()[3] == 0, "no condition is retained"
    assert (run.server.transfers, run.server.begun) == ([[1]], [(1, 1), (1, 2), (2, 1)])
    assert run.said() == ["before", "ended", "both", "began"]
    assert run.lost() == []


@pytest.mark.parametrize("case", ["refused", "restarted", "overflow", "ended", "missing"])
async def test_a_rescue_that_is_not_whole_leaves_a_loss(case: str) -> None:
    """The server refuses the transfer, was started again, had no room in its queue, ended the old subscription, or
    lacks a notification."""
    run = await collecting_again()
    run.server.transfer_status = BAD_TIMEOUT if case == "refused" else 0
    run.server.started = "tomorrow" if case == "restarted" else "today"
    async with run.life():
        await wait_until_async(lambda: len(run.server.asked) == 2, "the new item")
        await run.server.publish(of(event(message="new")))
        if case == "missing":
            await run.missing(Missing(1, 4, 4))
        if case not in ("refused", "restarted"):
            many = [event(message=str(n)) for n in range(100 if case == "overflow" else 1)]
            await run.server.publish(of(*many, status=BAD_TIMEOUT if case == "ended" else None), number=1)
            await run.server.publish(of(), number=1)
        await wait_until_async(lambda: run.server.refreshes == [1, 2], "a refresh")
    assert run.lost() == [("event_subscription_lost", 0, LAST_LIFE)]


async def test_a_rescue_does_not_bridge_the_time_without_a_new_subscription() -> None:
    """The server refuses the new subscription at first. The old one is read to its end and deleted meanwhile; what
    happens from then until the new one begins, no subscription holds: it is a loss."""
    run = await collecting_again()
    run.server.subscription_errors = 1
    async with run.life():
        await wait_until_async(lambda: run.server.begun == [(1, 1), (1, 2)], "the transfer")
        await run.server.publish(of(event(message="held")), number=1)
        await wait_until_async(lambda: len(run.server.asked) == 2, "the new item")
        await run.server.publish(of(event(message="new")))
        for _ in range(2):
            if 1 in run.server.routes:
                await run.server.publish(of(), number=1)
        await wait_until_async(lambda: run.server.deleted == [1], "the end of the old one")
    assert run.said() == ["before", "held", "new"]
    assert run.lost() == [("event_subscription_lost", 0, LAST_LIFE)]


async def test_a_second_loss_does_not_hide_the_first() -> None:
    """A session that ends before its rescue did leaves what was missing before it undeclared by any rescue after it."""
    run = await collecting_again()
    async with run.life():
        await wait_until_async(lambda: len(run.server.asked) == 2, "the new item")
        await run.server.publish(of(event(message="new")))
    async with run.life():
        await wait_until_async(lambda: len(run.server.asked) == 3, "the new item")
        await run.server.publish(of(event(message="newer")))
        for _ in range(2):
            await run.server.publish(of(), number=2)
        await wait_until_async(lambda: run.server.refreshes == [1, 3], "a refresh")
    assert run.lost() == [("event_subscription_lost", 0, LAST_LIFE)]
    assert run.server.transfers[1] == [2, 1]


@pytest.mark.parametrize("has_items", [True, False])
async def test_a_process_that_ends_within_a_rescue_declares_what_it_would_have_brought(*, has_items: bool) -> None:
    """The next process knows of nothing before its node's newest value, and that may be one of the new session. So what
    the old subscription still holds is a loss from the last sign of life, also if there is no new item yet."""
    run = await collecting_again()
    run.server.item_statuses = [] if has_items else [BAD_TIMEOUT]
    async with run.life():
        await wait_until_async(lambda: len(run.server.asked) == 2, "the new item")
        await run.server.publish(of(event(message="second")), number=1)
        await wait_until_async(lambda: run.said() == ["before", "second"], "the event")
    assert run.lost() == []
    await run.collector.end()
    assert run.lost() == [("event_subscription_lost", 0, LAST_LIFE)]
    await run.collector.end()
    assert len(run.lost()) == 1


async def test_a_life_that_was_cut_short_leaves_the_old_subscription_to_the_next(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The second session takes subscription 1 over and ends before it has one of its own. The third takes it over again
    and reads it to its end: no event is lost, and nothing is left at the server."""
    run = await collecting_again()
    with monkeypatch.context() as cut_short:
        cut_short.setattr(run.server, "create_subscription", asyncio.Event().wait)
        async with run.life():
            await wait_until_async(lambda: run.server.begun == [(1, 1), (1, 2)], "the transfer")
            await run.server.publish(of(event(message="second")), number=1)
    async with run.life():
        await wait_until_async(lambda: len(run.server.asked) == 2, "the new item")
        await run.server.publish(of(event(message="third")), number=1)
        await run.server.publish(of(event(message="new")))
        await run.server.publish(of(), number=1)
        await wait_until_async(lambda: run.server.deleted == [1], "the end of the old one")
    assert run.server.transfers == [[1], [1]]
    assert sorted(run.said()) == ["before", "new", "second", "third"]
    assert run.lost() == []


async def test_events_are_missing_while_no_process_ran() -> None:
    """From the time at which the node before this one ended to the first sign of life; also in the times of a clock
    that was ahead then, and was perhaps set right meanwhile."""
    run = Collecting()
    run.collector.note_stop(3 * S, FastClock(3_600 * S, time.time_ns()))
    async with run.collecting():
        await run.server.publish(of(event(message="x")))
        await wait_until_async(run.said, "the event")
    stopped, ahead = run.lost()
    assert stopped == ("agent_stopped", 0, "1970-01-01T00:00:03Z")
    assert ahead == ("clock_set_back", 0, "1970-01-01T01:00:00Z")
