"""The open losses of a source, and its tags without an item."""

from agent.ingest.completeness import Moment
from agent.ingest.gap import ITEM_GONE, NOT_DELIVERED, SERVER_QUEUE_OVERFLOW, TagGap
from agent.ingest.opcua.subscriptions.losses import Absences, Losses

S = 1_000_000_000
NOW = Moment(100 * S)


def test_losses_of_one_reason_are_one_gap_from_the_first_on() -> None:
    """In whatever order they are noted. Each reason has its own gap."""
    losses = Losses()
    for since_s, tags in ((20, [1]), (10, [2]), (30, [1, 3])):
        losses.add(NOT_DELIVERED, Moment(since_s * S), tags, NOW)
    losses.add(SERVER_QUEUE_OVERFLOW, Moment(40 * S), [1], NOW)
    assert losses.take_gaps(NOW) == [
        TagGap(NOT_DELIVERED, 10 * S, 100 * S, (1, 2, 3)),
        TagGap(SERVER_QUEUE_OVERFLOW, 40 * S, 100 * S, (1,)),
    ]


def test_a_tag_is_absent_from_the_first_sign_to_its_first_value() -> None:
    """A tag of an edited map goes on under its new number, and one that is wanted no more is forgotten. Those that went
    at different times are different gaps, since one may be a week old."""
    absences, losses = Absences(), Losses()
    assert absences.begin_absence([1, 2, 3, 4], Moment(10 * S)) == [1, 2, 3, 4]
    assert absences.begin_absence([2, 5], Moment(20 * S)) == [5]
    absences.keep({2, 3, 5, 9}, {4: 9})
    assert absences.tags == {2, 3, 5, 9}
    assert (absences.since(2), absences.since(1)) == (Moment(10 * S), None)
    absences.request([2, 5, 7])
    assert absences.among({1, 2, 3, 5, 9}) == {2, 5}, "what arrives of the others is of their old items"
    absences.begin_absence([5], Moment(30 * S))
    absences.end_absence([2, 5], losses, NOW)
    assert absences.tags == {3, 5, 9}
    absences.request([5, 9])
    absences.end_absence([5, 9], losses, NOW)
    assert absences.tags == {3}
    assert losses.take_gaps(NOW) == [
        TagGap(ITEM_GONE, 10 * S, 100 * S, (2, 9)),
        TagGap(ITEM_GONE, 20 * S, 100 * S, (5,)),
    ]
