"""What a pull knows of its peer, by values: who answers, its lease, and when it is asked again."""

import pytest

from agent.replication.pulling.receiving.log_place import AcceptedPages
from agent.replication.pulling.receiving.peer_contact import (
    BEHIND_MS,
    BEHIND_MS_MAX,
    EMPTY_MS_MIN,
    RETURNING_MS,
    AnsweringLives,
    HeldLease,
    OpenFetch,
    PeerContact,
)
from agent.replication.pulling.receiving.pull_events import Append, ArrivedPage, ReceiverSettings, Storing

SETTINGS = ReceiverSettings(backoff_ms_min=100, backoff_ms_max=60_000, pause_ms_min=100)


@pytest.mark.parametrize(
    "lives, twins",
    [
        (["a", "a", "b", "b", "c"], False),
        (["a", "b", "a"], True),
        (["a", *"bcdefghij", "a"], False),
        (["a", "b", "a", "a"], False),
        (["a", "b", "a", "b"], True),
    ],
)
def test_two_lives_that_answer_in_turn_are_twins(lives: list[str], *, twins: bool) -> None:
    """A life that returns is one of two machines, as long as its predecessor is remembered, and until only one has
    answered for the time of twins."""
    known = AnsweringLives()
    for now_ms, life in enumerate(lives):
        known = known.answered(life, now_ms, twins_ms=1)
    assert bool(known.twins) is twins


def test_a_lease_only_grows_until_the_peer_does_not_know_it() -> None:
    """A late answer names an older one. A taken one must be followed, and counts."""
    lease = HeldLease().taken(4).granted(6).granted(5)
    assert lease == HeldLease(epoch=6, after=4, missed=1)
    assert lease.unknown() == HeldLease(missed=1)


def test_the_first_connection_is_used_at_once_and_a_later_one_forgets_failures() -> None:
    """After a reconnect the back-off begins anew and stays short for a while."""
    contact = PeerContact(SETTINGS)
    assert (contact.connected(0, 0.5), contact.ask_at_ms) == (True, 0)
    waits = []
    for now_ms in (0, RETURNING_MS):
        for _ in range(9):
            contact.back_off(now_ms, 1.0)
        waits.append(contact.ask_at_ms - now_ms)
        assert not contact.connected(RETURNING_MS, 0.5)
        assert contact.answer_ms() == SETTINGS.answer_timeout_ms
        assert contact.ask_at_ms == RETURNING_MS + SETTINGS.spread_ms // 2
    assert waits == [25_600, 1_000]


def test_requests_that_are_cut_off_again_and_again_wait_longer() -> None:
    """A broker that refuses a request by closing the connection takes it from the pulls of all peers: after the second
    such request in a row, the next one waits, longer each time, until the broker has taken one."""
    contact = PeerContact(SETTINGS)
    contact.connected(0, 1.0)
    waits = []
    for _ in range(12):
        contact.cut_off()
        contact.connected(0, 1.0)
        waits.append(contact.ask_at_ms)
    assert waits == [250, 400, 800, 1_600, 3_200, 6_400, 12_800, 25_600, 51_200, 60_000, 60_000, 60_000]
    contact.taken()
    contact.connected(0, 1.0)
    assert contact.ask_at_ms == SETTINGS.spread_ms


def test_the_time_of_a_request() -> None:
    """It begins when the broker has the request, and heartbeats and our own delay move the deadline, each with its
    end. An early answer without facts is not followed at once."""
    fetch = OpenFetch.sent(1, 0, 30_000, 3_000, names_trail=True)
    assert (fetch.deadline_ms, fetch.last_ms) == (8_000, 33_000)
    assert fetch.taken(7_000) == OpenFetch(1, 0, 15_000, 40_000, 30_000, names_trail=True)
    assert [fetch.still_waits(now, 3_000).deadline_ms for now in (0, 4_000, 29_000)] == [8_000, 12_000, 33_000]
    late_ms = fetch.last_ms + BEHIND_MS_MAX
    assert [fetch.behind(now).deadline_ms for now in (10_000, late_ms)] == [10_000 + BEHIND_MS, 8_000]
    assert [fetch.again_ms(now) for now in (10, 1_000)] == [EMPTY_MS_MIN, 1_000]
    assert OpenFetch.sent(1, 0, 0, 3_000, names_trail=False).again_ms(10) == 10


def test_pages_are_stored_in_order_and_none_is_skipped() -> None:
    """Two wait while one is stored. A page that cannot be taken now is offered again first, each with short pauses at
    the beginning; behind a refused one nothing is stored."""
    first, second, third = (Append(ArrivedPage(0, at, at, more=True)) for at in (1, 2, 3))
    pages = AcceptedPages(SETTINGS)
    pages.accept(first)
    assert (pages.next(0), pages.next(0)) == (first, None)
    pages.accept(second)
    pages.accept(third)
    assert not pages.has_room
    pages.pause("full", 0, 1.0)
    assert (pages.offer_at_ms, pages.next(99), pages.next(100)) == (100, None, first)
    assert (pages.stored(), pages.next(0), pages.waits) == (first.page, second, "")
    pages.pause("full", 0, 1.0)
    assert (pages.waits, pages.next(100)) == ("full", second)
    pages.refuse()
    assert (pages.next(0), pages.state, pages.is_refused, pages.waits) == (None, Storing.IDLE, True, "full")
