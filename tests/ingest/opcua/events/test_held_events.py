"""What a subscription holds whose session was lost: it arrives in the next one, or what is missing is declared."""

import time

import pytest

from agent.ingest.completeness import Stored
from agent.ingest.gap import AGENT_STOPPED
from agent.ingest.opcua.events.event_fields import REFRESH_END, REFRESH_START
from agent.message import time_text
from tests.ingest.opcua.events.collecting import BAD_TIMEOUT, LAST_LIFE, Collecting, collecting_again, of
from tests.ingest.opcua.events.events import S, condition, event
from tests.waiting import wait_until_async

pytestmark = pytest.mark.virtual_time

BAD_SUBSCRIPTION_ID_INVALID = 0x8028_0000


async def test_a_kept_subscription_brings_what_it_holds() -> None:
    """No other is created, nothing is declared, and the conditions need not be asked for again."""
    run = await collecting_again()
    async with run.life(is_kept=True):
        await wait_until_async(lambda: run.server.begun == [1, 1], "the subscription")
        await run.server.publish(of(condition("High", 5, retain=True, message="began"), event(message="held")))
        await wait_until_async(lambda: run.collector.statistics()[3] == 1, "the condition")
    assert (run.said(), run.lost(), run.server.refreshes) == (["before", "began", "held"], [], [1])


async def test_a_refresh_that_a_lost_session_has_cut_short_is_repeated() -> None:
    """A kept subscription asks for the conditions again: one that ended meanwhile would stay retained."""
    run = Collecting()
    async with run.collecting():
        await run.server.publish(of(condition("High", 1, retain=True, message="began")))
        await run.server.publish(of(event(REFRESH_START, 2)))
    assert (run.collector.statistics()[3], run.server.refreshes) == (1, [1])
    async with run.life(is_kept=True):
        await wait_until_async(lambda: run.server.refreshes == [1, 1], "another refresh")
        await run.server.publish(of(event(REFRESH_START, 10), event(REFRESH_END, 11)))
        await wait_until_async(lambda: run.collector.statistics()[3] == 0, "the end of the condition")


@pytest.mark.parametrize("case", ["not kept", "refused", "gone"])
async def test_events_of_a_subscription_that_is_not_kept_are_a_loss(case: str) -> None:
    """From where everything was delivered until the items of another are created; the conditions are asked for
    again."""
    run = await collecting_again()
    if case == "refused":
        assert run.collector.kept_ids == [1]
        run.collector.note_transfer(BAD_TIMEOUT)
        assert run.collector.kept_ids == []
    run.server.republished = BAD_SUBSCRIPTION_ID_INVALID if case == "gone" else 0
    async with run.life(is_kept=case != "not kept"):
        await wait_until_async(lambda: run.server.refreshes == [1, 2], "a refresh")
        await run.server.publish(of(event(message="new")))
        await wait_until_async(lambda: len(run.said()) == 2, "the event")
    assert run.lost() == [("source_lost", 0, LAST_LIFE)]
    assert [*run.server.routes] == [2], "what arrived of it before would be taken for values"


async def test_a_subscription_that_ends_before_it_has_shown_anything_is_a_loss() -> None:
    """From its creation on."""
    run = Collecting()
    run.collector.clock.note_reading(8 * S, None)
    async with run.collecting():
        pass
    async with run.life():
        await wait_until_async(lambda: run.server.refreshes == [1, 2], "another subscription")
    ((reason, _, first),) = run.lost()
    assert (reason, first[:19]) == ("source_lost", "1970-01-01T00:00:08")


async def test_events_of_a_node_that_the_server_refuses_for_a_while_are_a_loss() -> None:
    """Until its item is created. A kept subscription is replaced, and deleted."""
    run = Collecting(events=("Server", "nsu=urn:x;i=5"))
    run.server.item_statuses = [0, BAD_TIMEOUT]
    async with run.collecting():
        await run.server.publish(of(event(message="before")))
        await wait_until_async(run.said, "the event")
    assert run.lost() == []
    async with run.life(is_kept=True):
        await wait_until_async(lambda: len(run.lost()) > 1, "the losses")
    assert {"source_lost", "item_gone"} <= {reason for reason, *_ in run.lost()}
    assert run.server.deleted == [1]


async def test_a_second_loss_does_not_hide_the_first() -> None:
    """A session that ends before its items were created leaves what was missing before it to the next."""
    run = await collecting_again()
    run.server.item_statuses = [BAD_TIMEOUT]
    async with run.life():
        await wait_until_async(lambda: len(run.server.asked) == 2, "the refused item")
        run.collector.clock.note_reading(33 * S, None)
        await run.server.publish(of())  # complete again, behind what is missing
    async with run.life():
        await wait_until_async(lambda: run.server.refreshes == [1, 3], "a refresh")
    assert run.lost() == [("source_lost", 0, LAST_LIFE)]


@pytest.mark.parametrize("stored", [{"": Stored(9 * S), "events": Stored(3 * S)}, {"": Stored(3 * S)}])
async def test_events_are_missing_while_no_process_ran(stored: dict[str, Stored]) -> None:
    """Since they were complete, or since the values were where that is not known. Then they are complete again."""
    run = Collecting()
    run.collector.continue_from(stored, AGENT_STOPPED)
    async with run.collecting():
        await run.server.publish(of(event(message="x")))
        await wait_until_async(run.said, "the event")
        assert run.lost() == [("agent_stopped", 0, "1970-01-01T00:00:03Z")]
        for _ in range(3):
            await run.server.publish(of())
        await wait_until_async(lambda: run.store.complete, "the time in the store")
    assert [*run.store.complete] == [("plc", "events")]


async def test_events_that_were_complete_before_the_clock_was_set_are_missing_since_then() -> None:
    """The values of the earlier process were complete later, when the clock had been set back."""
    run, now_ns = Collecting(), time.time_ns()
    run.server.shows_ns = time.time_ns
    run.collector.clock.continue_from(Stored(now_ns, 0))
    stored = {"": Stored(now_ns, 0), "events": Stored(now_ns + 3_540 * S, 3_600 * S)}
    run.collector.continue_from(stored, AGENT_STOPPED)
    async with run.collecting():
        await wait_until_async(run.lost, "the loss")
    assert run.lost()[0] == ("agent_stopped", 0, time_text(now_ns - 60 * S))


async def test_a_stop_right_after_the_clock_was_set_is_a_loss() -> None:
    """In the times of the clock as it was: the next process begins its gap on the clock as it is now."""
    run = await collecting_again()
    clock = run.collector.clock
    clock.note_reading(clock.now_ns() + 3_600 * S, clock.least_ns())
    await run.collector.end_recording()
    assert run.lost() == [("clock_set_back", 0, LAST_LIFE)]
