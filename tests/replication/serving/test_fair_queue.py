"""Fair queue and pacing: the wait of one zone does not depend on the requests of another."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.replication.serving.fair_queue import FairQueue
from agent.replication.serving.pacing import Pacer
from agent.settings.peers import PeerLimits

ZONES = ("evil", "idmz", "cloud")


def test_zones_take_turns() -> None:
    """However much work of one zone came first, each zone's first piece comes before any zone's second."""
    queue = FairQueue[str](1, 1)
    for work in ("evil 1", "evil 2", "evil 3", "idmz 1", "cloud 1", "idmz 2"):
        queue.add(work.split()[0], work)
    order = []
    while (work := queue.take()) is not None:
        order.append(work)
        queue.end(work.split()[0])
    assert order == ["evil 1", "idmz 1", "cloud 1", "evil 2", "idmz 2", "evil 3"]


def test_a_zone_that_was_just_served_goes_behind_those_that_came_meanwhile() -> None:
    """Even if its own next piece came before theirs."""
    queue = FairQueue[str](1, 1)
    queue.add("evil", "evil 1")
    assert queue.take() == "evil 1"
    for work in ("evil 2", "idmz 1"):
        queue.add(work.split()[0], work)
    queue.end("evil")
    assert queue.take() == "idmz 1"


def test_a_zone_takes_only_its_places() -> None:
    """With three places and two for one zone, another zone's work begins at once while the first zone's waits."""
    queue = FairQueue[str](3, 2)
    for number in range(5):
        queue.add("evil", f"evil {number}")
    assert [queue.take(), queue.take(), queue.take()] == ["evil 0", "evil 1", None]
    queue.add("idmz", "idmz 0")
    assert queue.take() == "idmz 0"
    queue.add("cloud", "cloud 0")
    assert queue.take() is None, "all places are taken"
    queue.end("evil")
    assert queue.take() == "cloud 0", "it has nothing under way, evil has"


def test_a_zone_that_may_not_begin_delays_no_other() -> None:
    """A zone that waits for its tokens keeps its place in the queue, and the others overtake it."""
    allowed = {"idmz"}
    queue = FairQueue[str](2, 2, allowed.__contains__)
    queue.add("evil", "evil 0")
    queue.add("idmz", "idmz 0")
    assert [queue.take(), queue.take()] == ["idmz 0", None]
    assert queue.nodes_waiting() == ["evil"]
    allowed.add("evil")
    assert queue.take() == "evil 0"


def test_work_that_is_not_wanted_any_more_is_withdrawn() -> None:
    """It is not taken, and the zone has no queue left."""
    queue = FairQueue[str](1, 1)
    queue.add("evil", "a")
    queue.add("evil", "b")
    assert queue.withdraw("evil", "a")
    assert (queue.waiting("evil"), queue.take()) == (1, "b")
    assert not queue.withdraw("evil", "b"), "it has been taken, and has to be ended"
    queue.end("evil")
    queue.add("evil", "c")
    assert queue.withdraw("evil", "c")
    assert queue.nodes_waiting() == []


@given(st.lists(st.tuples(st.sampled_from(ZONES), st.booleans()), max_size=60), st.integers(1, 4), st.integers(1, 4))
def test_no_work_is_lost_and_the_zone_with_least_under_way_goes_first(
    events: list[tuple[str, bool]], places: int, of_zone: int
) -> None:
    """All work is taken once, in its zone's order; the limits are never exceeded; and no zone begins a second piece
    while another one with none under way waits for its first."""
    queue = FairQueue[tuple[str, int]](places, of_zone)
    added, taken, under_way = list[tuple[str, int]](), list[tuple[str, int]](), Counter[str]()

    def take_all() -> None:
        while (work := queue.take()) is not None:
            zone = work[0]
            waiting = [other for other in queue.nodes_waiting() if other != zone]
            assert all(under_way[other] >= under_way[zone] for other in waiting)
            taken.append(work)
            under_way[zone] += 1
            assert under_way.total() <= places
            assert under_way[zone] <= of_zone

    def end(zone: str) -> None:
        under_way[zone] -= 1
        queue.end(zone)
        take_all()

    for number, (zone, is_end) in enumerate(events):
        if is_end and under_way[zone]:
            end(zone)
        else:
            added.append((zone, number))
            queue.add(zone, (zone, number))
            take_all()
    while under_way.total():
        end(next(zone for zone, count in under_way.items() if count))
    assert sorted(taken) == sorted(added)
    for zone in ZONES:
        assert [work for work in taken if work[0] == zone] == [work for work in added if work[0] == zone]


@pytest.mark.parametrize("rate", [1, 100, 1000])
def test_requests_begin_at_the_rate_of_the_zone(rate: int) -> None:
    """In ten seconds of excessive requests, a zone gets ten seconds of its rate and the saved tokens; another zone is
    not delayed."""
    pacer, begun = Pacer(lambda _: PeerLimits(requests_per_second_max=rate)), 0
    for now_ms in range(10_000):
        while pacer.request_ready_ms("evil", now_ms) <= now_ms:
            pacer.request_begins("evil", now_ms)
            begun += 1
        assert pacer.request_ready_ms("idmz", now_ms) <= now_ms
    assert 10 * rate <= begun <= 10 * rate + rate // 4 + 2


def test_bytes_and_searches_are_paid_for_afterwards() -> None:
    """The first begins at once, the next waits until the debt is paid off; without a limit of bytes nothing waits."""
    pacer = Pacer(lambda zone: PeerLimits(answer_bytes_per_second_max=100_000 if zone == "evil" else 0))
    assert pacer.answer_ready_ms("evil", 0) == 0
    pacer.answered("evil", 1_000_000, 0)
    assert pacer.answer_ready_ms("evil", 0) == pytest.approx(9_750, abs=1)
    pacer.answered("idmz", 10**9, 0)
    assert pacer.answer_ready_ms("idmz", 0) == 0
    pacer.searched("evil", 500, 0)
    assert pacer.search_ready_ms("evil", 0) == pytest.approx(1_750, abs=2)
    assert pacer.search_ready_ms("idmz", 0) == 0
