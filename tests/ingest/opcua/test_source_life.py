"""Whether a source's connection lives, and which time counts as its last sign of life."""

import time

import pytest

from agent.ingest.completeness import Moment
from agent.ingest.errors import SourceLost
from agent.ingest.gap import CLOCK_SET_BACK, NOT_DELIVERED
from agent.ingest.opcua.decode import DataChange
from agent.ingest.opcua.session import HEARTBEAT_HANDLE
from agent.ingest.opcua.subscriptions import subscription as subscription_module
from agent.ingest.opcua.subscriptions.item_plan import ServerLimits
from agent.ingest.opcua.subscriptions.subscription import CallSize, Subscription
from agent.ingest.quality import BAD_TIMEOUT
from tests.ingest.opcua.fake_session import (
    FakeSession,
    answer,
    death,
    living,
    status_change,
)
from tests.ingest.opcua.sources import HEADER, S, gaps_of, made, publication
from tests.waiting import wait_until_async

pytestmark = pytest.mark.virtual_time


async def test_a_connection_that_stands_and_says_nothing_is_given_up() -> None:
    """No error, no closed socket, every call answered, keep-alives even, only no value ever: the server's clock that
    does not move ends it. It never counts as connected."""
    source, _ = await made(liveness_timeout_ms=300)
    source._delivery.expect_value(lambda _: None)
    session, came_up = FakeSession(), list[bool]()
    session.says(*(answer(1, number, publish_ns=number * S) for number in range(1, 50)))
    await death(source, session, "sent no value and its clock has not moved", on_up=lambda: came_up.append(True))
    assert not came_up
    assert session.handles(1) == {1, 2}


@pytest.mark.parametrize(
    "server, clock, silence_s",
    [
        ({"publishing_ms": 20_000.0}, "moves", 60),
        ({"clock_ms": 20_000.0}, "moves", 60),
        ({"slower": 10.0}, "stands", 150),
        ({"slower": 10.0, "has_clock": False}, "refused", 150),
    ],
)
async def test_a_server_with_rare_signs_of_life_is_waited_for(
    server: dict[str, float], clock: str, silence_s: int
) -> None:
    """One that gives them only every 20 s, whatever it was asked for, is given up after three of them are missing and
    not after one, or its source would be built anew for ever. One whose clock says nothing proves its life by
    keep-alives, ten times as rare as they were asked for."""
    source, _ = await made(liveness_timeout_ms=15_000)
    subscription = Subscription(FakeSession(**server), source._settings, ServerLimits(), source.clock.now, CallSize(9))  # type: ignore[arg-type]
    source._subscriptions._all = [subscription]
    await subscription.open()
    await subscription.watch_clock()
    if clock == "stands":
        subscription.liveness.note_clock("once")
        subscription.liveness.begun_s -= 20
        source._subscriptions.check_life(is_held_back=False)
    assert subscription.liveness.has_clock == (clock == "moves")
    subscription.liveness.alive_s = time.monotonic() - silence_s + 10
    source._subscriptions.check_life(is_held_back=False)
    subscription.liveness.alive_s -= 20
    with pytest.raises(SourceLost, match="its clock has not moved"):
        source._subscriptions.check_life(is_held_back=False)


async def test_the_subscription_furthest_behind_dates_a_loss() -> None:
    """One that has proven nothing yet counts from its creation; none at all, and the life before counts."""
    source, _ = await made()
    (first,) = source._subscriptions
    second = Subscription(FakeSession(), source._settings, ServerLimits(), lambda: Moment(50 * S), CallSize(9))  # type: ignore[arg-type]
    await second.open()
    source._subscriptions._all.append(second)
    source._subscriptions._complete_before = Moment(7 * S)
    assert source.complete == Moment(7 * S)
    first.liveness.complete = Moment(60 * S)
    assert source.complete == Moment(50 * S)
    second.liveness.complete = Moment(58 * S)
    assert source.complete == Moment(58 * S)


async def test_a_loss_behind_the_first_values_is_dated(monkeypatch: pytest.MonkeyPatch) -> None:
    """From the creation of the subscription, if nothing later is known, so that a gap follows the values; by what an
    ended subscription had delivered, if the one that replaces it has shown nothing."""
    monkeypatch.setattr(subscription_module, "ENDED_EARLY_S", 0.0)
    source, store = await made(sampling_interval_ms=0)
    async with living(source, shows_ns=10 * S) as session:
        await wait_until_async(lambda: session.subscriptions, "a subscription")
        assert source.complete is None
        session.says(answer(1, 1, (1, 1.0, 10 * S)))
        await wait_until_async(lambda: store.of("a/1"), "the value")
        assert source.complete == source._subscriptions._all[0].opened
        session.says(answer(1, 2, (1, 2.0, 11 * S)), status_change(1, 3, BAD_TIMEOUT))
        await wait_until_async(
            lambda: session.subscriptions[1:] and session.handles(session.subscriptions[1]), "a new subscription"
        )
        assert source.complete is not None
        assert source.complete.time_ns == pytest.approx(10 * S, abs=S)


async def test_a_clock_is_as_new_as_the_publication_that_brings_it() -> None:
    """A new subscription brings the server's clock as it was when it last moved, up to a second ago (asyncua): that is
    no clock that was set back, and no gap is declared for it."""
    source, _ = await made()
    gaps = gaps_of(source)
    (subscription,) = source._subscriptions
    source.clock.note_reading(100 * S, None)
    subscription.clock_least_ns = source.clock.least_ns()
    shown = DataChange(HEARTBEAT_HANDLE, "99.2", 0, 99_200_000_000, 99_200_000_000)
    source._note_publication(HEADER._replace(publish_time_ns=100 * S + 1), publication(shown))
    assert (source.clock.set_back_ns, gaps) == (0, [])
    assert source.clock.now_ns() >= 100 * S + 1


async def test_what_is_complete_is_a_time_of_the_clock_before_it_was_set_ahead() -> None:
    """It is one of the answer before. A clock that is set back dates it anew."""
    source, _ = await made()
    (subscription,) = source._subscriptions
    for number, (shown_s, complete) in enumerate(
        [(100, None), (101, Moment(100 * S)), (3_701, Moment(101 * S)), (3_702, Moment(3_701 * S, -3_599 * S))]
    ):
        shown = DataChange(HEARTBEAT_HANDLE, str(number), 0, shown_s * S, shown_s * S)
        source._note_publication(HEADER._replace(publish_time_ns=shown_s * S), publication(shown))
        if complete is not None:
            assert subscription.since.time_ns == complete.time_ns
            assert abs(subscription.since.set_back_ns - complete.set_back_ns) < 2 * S
    back = DataChange(HEARTBEAT_HANDLE, "back", 0, 102 * S, 102 * S)
    source._note_publication(HEADER._replace(publish_time_ns=102 * S), publication(back))
    assert subscription.since.time_ns == 100 * S
    assert abs(subscription.since.set_back_ns) < 2 * S


async def test_a_loss_in_which_the_clock_was_set_twice_is_declared_in_all_its_times() -> None:
    """An hour ahead and right again: values that are missing may have times of either."""
    source, _ = await made()
    gaps = gaps_of(source)
    for shown_s in (101, 3_701, 101):
        source.clock.note_reading(shown_s * S, source.clock.least_ns())
    source._losses.add(NOT_DELIVERED, Moment(100 * S), [1], source.clock.now())
    source._declare_until(source.clock.now())
    assert {gap.reason for gap in gaps} == {NOT_DELIVERED, CLOCK_SET_BACK}
    assert {round(gap.first_time_ns / S, -2) for gap in gaps} == {100, 3_700}
