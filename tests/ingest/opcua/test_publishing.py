"""The order of publications, with numbers alone."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.ingest.opcua.decode import DecodeError, PublishHeader, read_header
from agent.ingest.opcua.publishing import NUMBERS, Arrived, Missing, Sequencer
from tests.ingest.opcua.fake_session import answer

S = 1_000_000_000


def drained(sequencer: Sequencer) -> list[object]:
    """What can be dealt with now; missing ones are given up."""
    found: list[object] = []
    while (step := sequencer.next()) is not None:
        if isinstance(step, Missing):
            found.append(step)
            sequencer.give_up(step)
        else:
            found.append(step.content)
            sequencer.done(step)
    return found


def data(number: int, subscription_id: int = 1) -> PublishHeader:
    """A notification with this number."""
    return PublishHeader(subscription_id, number, 0, has_data=True)


def test_a_header_is_read_past_the_numbers_that_the_server_holds() -> None:
    """Subscription, number, publish time; a keep-alive has no data; short bytes are refused."""
    body = answer(7, 3, (1, 1.5, S), publish_ns=5 * S)
    assert read_header(body) == PublishHeader(7, 3, 5 * S, has_data=True)
    held = body[:4] + (2).to_bytes(4, "little") + bytes(8) + body[8:]
    assert read_header(held) == PublishHeader(7, 3, 5 * S, has_data=True)
    assert read_header(answer(7, 4)) == PublishHeader(7, 4, 0, has_data=False)
    with pytest.raises(DecodeError, match="cut short"):
        read_header(body[:12])


def test_what_no_open_request_can_bring_is_missing() -> None:
    """A break is waited for only while an older request is open; what was asked for again comes in its place."""
    sequencer = Sequencer()
    requests = [sequencer.sent()[0] for _ in range(4)]  # the last one stays open: newer than the break
    sequencer.answered(requests[0], data(1), "a")
    sequencer.answered(requests[2], data(5), "e")
    assert drained(sequencer) == ["a"]  # request 1 may still bring 2
    sequencer.answered(requests[1], data(4), "d")
    assert sequencer.next() == Missing(1, 2, 3)
    sequencer.settle(data(2), "b")
    step = sequencer.next()
    assert isinstance(step, Arrived)
    assert step.content == "b"
    sequencer.done(step)
    assert drained(sequencer) == [Missing(1, 3, 3), "d", "e"]


def test_an_answer_for_a_subscription_that_began_anew_is_dropped() -> None:
    """While a notification was requested again, the subscription ended and another one began under its number: the
    values of the old one must not come as those of the new one."""
    sequencer = Sequencer()
    sequencer.begin_subscription(1)
    sequencer.forget(1)
    sequencer.begin_subscription(1)
    sequencer.settle(data(5), "of the old one")
    assert drained(sequencer) == []
    request, _ = sequencer.sent()
    sequencer.answered(request, data(1), "of the new one")
    assert drained(sequencer) == ["of the new one"]
    assert sequencer.take_rest() == []


def test_a_keep_alive_shows_what_is_missing() -> None:
    """It bears the number of the next notification, is handed on at once and not acknowledged."""
    sequencer = Sequencer()
    sequencer.answered(sequencer.sent()[0], data(1), "a")
    assert drained(sequencer) == ["a"]
    sequencer.answered(sequencer.sent()[0], PublishHeader(1, 2, 0, has_data=False), "still there")
    assert drained(sequencer) == ["still there"]
    sequencer.answered(sequencer.sent()[0], PublishHeader(1, 4, 0, has_data=False), "there")
    assert drained(sequencer) == ["there", Missing(1, 2, 3)]
    assert sequencer.sent()[1] == []
    sequencer.answered(1, data(4), "d")
    assert drained(sequencer) == ["d"]


def test_numbers_begin_again_and_servers_count_as_they_like() -> None:
    """After 2^32 - 1 comes 1. A subscription that begins elsewhere is followed; one that starts anew is, too. The same
    number twice is one notification; one that comes after it was passed on is acknowledged again."""
    sequencer = Sequencer()
    for number, content in ((NUMBERS - 1, "a"), (1, "c"), (NUMBERS, "b"), (2, "d"), (2, "d"), (3, "e")):
        sequencer.answered(sequencer.sent()[0], data(number), content)
    assert drained(sequencer) == ["a", "b", "c", "d", "e"]
    request, acks = sequencer.sent()
    assert acks == [(1, number) for number in (NUMBERS - 1, NUMBERS, 1, 2, 3)]
    sequencer.answered(request, data(2), "d")
    assert (drained(sequencer), sequencer.sent()[1]) == ([], [(1, 2)])
    two = Sequencer()
    for number, content in ((5000, "a"), (5001, "b"), (1, "c"), (2, "d")):
        two.answered(two.sent()[0], data(number), content)
        assert drained(two) == [content]


def test_a_subscription_that_is_no_more_is_dropped() -> None:
    """What it still sends, and what of it was held; others do not wait for it."""
    sequencer = Sequencer()
    sequencer.sent()
    request, _ = sequencer.sent()
    sequencer.answered(request, data(2), "held")
    sequencer.answered(sequencer.sent()[0], data(3)._replace(has_data=False), "keep-alive")
    sequencer.forget(1)
    sequencer.answered(sequencer.sent()[0], data(1), "late")
    sequencer.answered(sequencer.sent()[0], data(1, 2), "other")
    assert drained(sequencer) == ["other"]


def test_what_was_not_handed_on_is_left_over() -> None:
    """In order, with what was held back by a break; and a refused Publish gives its acknowledgements back."""
    sequencer = Sequencer()
    sequencer.sent()
    sequencer.answered(sequencer.sent()[0], data(1), "a")
    for number, content in ((3, "c"), (4, "d")):
        sequencer.answered(sequencer.sent()[0], data(number), content)
    step = sequencer.next()
    assert isinstance(step, Arrived)
    sequencer.done(step)
    request, acks = sequencer.sent()
    sequencer.failed(request, acks)
    assert sequencer.sent()[1] == [(1, 1)]
    assert sequencer.take_rest() == []
    sequencer.resume()
    assert sequencer.next() == Missing(1, 2, 2), "no open request will bring it in another session"
    sequencer.settle(data(2), "b")
    assert [rest.content for rest in sequencer.take_rest()] == ["b", "c", "d"]
    assert sequencer.take_rest() == []


def test_an_answer_that_was_lost_on_its_way_is_not_awaited_for_ever() -> None:
    """Its request stays open, older than the break; after a second what it would have brought is missing."""
    sequencer = Sequencer()
    sequencer.sent()
    sequencer.answered(sequencer.sent()[0], data(2), "b", now_s=10.0)
    assert sequencer.next(now_s=10.9) is None
    assert sequencer.next(now_s=11.0) == Missing(1, 1, 1)


@given(st.integers(1, 60), st.integers(1, 6), st.integers(0, 2**32), st.sets(st.integers(1, 60), max_size=5))
def test_every_notification_comes_once_and_in_order(count: int, window: int, seed: int, lost: set[int]) -> None:
    """With answers shuffled among the open requests, and some lost for good: what is handed on is the sequence without
    the lost ones, each acknowledged once in that order, and each lost one that something followed is named missing."""
    shuffle = random.Random(seed)
    sequencer, found, acknowledged = Sequencer(), list[object](), list[tuple[int, int]]()
    open_: list[tuple[int, int]] = []
    coming = [number for number in range(1, count + 1) if number not in lost]
    while coming or open_:
        while coming and len(open_) < window:
            request, acks = sequencer.sent()
            acknowledged += acks
            open_.append((request, coming.pop(0)))
        request, number = open_.pop(shuffle.randrange(len(open_)))
        sequencer.answered(request, data(number), number)
        found += drained(sequencer)
    named = {n for step in found if isinstance(step, Missing) for n in range(step.first, step.last + 1)}
    values = [step for step in found if not isinstance(step, Missing)]
    assert values == sorted(set(range(1, count + 1)) - lost)
    assert [number for _, number in acknowledged + sequencer.sent()[1]] == values
    assert named == {number for number in lost if values and number < values[-1]}
