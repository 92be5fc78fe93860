from dataclasses import replace

from agent.ingest.opcua.events.conditions import (
    REFRESH_MAX_S,
    REFRESH_PAUSE_MAX_S,
    REFRESH_PAUSE_S,
    AcceptedEvents,
    QueueWatch,
    RefreshPlan,
    RetainedConditions,
)
from agent.ingest.opcua.events.event_fields import QUEUE_OVERFLOW, REFRESH_END, REFRESH_START, OpcuaEvent
from tests.ingest.opcua.events.events import condition, event

HIGH, LOW = condition("High", 1, active=True), condition("Low", 2, active=True)


def start(at_s: float) -> OpcuaEvent:
    """RefreshStart at this time."""
    return event(REFRESH_START, at_s)


END = event(REFRESH_END, 99)


def known(*events: OpcuaEvent) -> RetainedConditions:
    """A book that has seen these."""
    book = RetainedConditions()
    book.take_publication(events, [], more=False)
    return book


def names(events: object) -> list[object]:
    """The conditions of events."""
    return [reported.fields["condition_id"] for reported in events]  # type: ignore[attr-defined]


def test_live_events_pass() -> None:
    """Outside a refresh every event is recorded as it comes, unmarked, and a condition that is not retained any more is
    forgotten."""
    book = RetainedConditions()
    plain = event(message="x")
    ended = condition("High", 3, retain=False)
    assert book.take_publication([HIGH, plain, LOW], [], more=False) == AcceptedEvents([HIGH, plain, LOW])
    assert book.knows(condition("Low", 9))
    assert book.take_publication([ended], [], more=False).events == [ended]
    assert book.retained == [LOW]


def test_a_refresh_distinguishes_known_new_and_absent() -> None:
    """A state that is known is passed over, also under another EventId, received later or by another item; a new one is
    taken and marked; a condition that the refresh does not name is absent."""
    book = known(HIGH, LOW)
    book.ask()
    later_ns = HIGH.receive_time_ns + 1
    again = replace(condition("High", 1, active=True, event_id=b"another"), receive_time_ns=later_ns, handle=2)
    new = condition("Third", 5, active=True)
    found = book.take_publication([again, new], [start(10), END], more=False)
    assert found == AcceptedEvents([new], frozenset({0}), [LOW], is_complete=True)
    assert names(book.retained) == ["i=High", "i=Third"]
    assert not book.is_refreshing


def test_a_refresh_ends_with_its_burst() -> None:
    """The events of several items come in no order: states before RefreshStart and behind RefreshEnd belong to the
    refresh as well, as long as the server has more to send at once."""
    book = known(HIGH, LOW)
    book.ask()
    assert not book.take_publication([HIGH], [], more=True).is_complete
    assert not book.take_publication([], [start(10), END], more=True).is_complete
    found = book.take_publication([LOW], [], more=False)
    assert (found.events, found.absent, found.is_complete) == ([], [], True)


def test_a_refresh_that_another_client_asked_for_counts() -> None:
    """Some servers send it to everybody. What came earlier in its burst is part of it, what came before is not."""
    book = known(HIGH, LOW)
    assert book.take_publication([HIGH], [], more=True).events == [HIGH]
    assert book.take_publication([], [start(10), END], more=False).absent == [LOW]
    assert not known(HIGH).take_publication([], [END], more=False).is_complete


def test_a_refresh_that_lost_events_proves_no_absence() -> None:
    """The states may be among what was lost. Nor does one that was abandoned, or is not over."""
    book = known(HIGH)
    book.ask()
    book.mark_incomplete()
    found = book.take_publication([], [start(10), END], more=False)
    assert (found.absent, found.is_complete) == ([], False)
    book.ask()
    book.abandon()
    assert not book.take_publication([], [END], more=False).is_complete
    book.ask()
    assert not book.take_publication([], [start(10)], more=False).is_complete
    assert book.is_refreshing
    assert book.retained == [HIGH]


def test_branches_are_conditions_of_their_own() -> None:
    """An earlier occurrence that nobody has acknowledged is retained beside the present state."""
    branch = condition("High", 1, branch_id="i=77")
    book = known(HIGH, branch)
    book.take_publication([condition("High", 4, retain=False, branch_id="i=77")], [], more=False)
    assert book.retained == [HIGH]


def test_refreshes_keep_a_distance() -> None:
    """The first at once, the next after a pause that doubles while refreshes lose events themselves."""
    plan = RefreshPlan()
    assert not plan.is_due(5)
    plan.begin_subscription(5)
    assert plan.is_due(5)
    plan.asked(5)
    plan.want(6)
    assert not plan.is_due(5 + REFRESH_PAUSE_S - 1)
    assert plan.is_due(5 + REFRESH_PAUSE_S)
    plan.asked(20)
    plan.repeat_later(21)
    assert not plan.is_due(20 + REFRESH_PAUSE_S)
    assert plan.is_due(20 + 2 * REFRESH_PAUSE_S)
    for _ in range(20):
        plan.repeat_later(21)
    plan.asked(100)
    plan.want(100)
    assert plan.is_due(100 + REFRESH_PAUSE_MAX_S)
    plan.complete()
    plan.asked(2000)
    plan.want(2001)
    assert plan.is_due(2000 + REFRESH_PAUSE_S)
    assert plan.is_overdue(2001 + REFRESH_MAX_S)


def test_an_overflow_that_the_server_reports() -> None:
    """Whatever else is in the publication, and before the burst is over."""
    watch = QueueWatch({1: 100})
    assert watch.take_publication([event(), event(QUEUE_OVERFLOW)], more=True)
    assert not watch.take_publication([event()], more=False)
