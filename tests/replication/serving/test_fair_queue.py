"""Fair queue and pacing: the wait of one zone does not depend on the requests of another."""

from collections import Counter
from collections.abc import Callable

from hypothesis import given
from hypothesis import strategies as st

from agent.replication.serving.fair_queue import Dispatcher, FairQueue

ZONES = ("evil", "idmz", "cloud")


def test_zones_take_turns() -> None:
    """However much work of one zone came first, each zone's first piece comes before any zone's second."""
    queue = FairQueue[str](1)
    for work in ("evil 1", "evil 2", "evil 3", "idmz 1", "cloud 1", "idmz 2"):
        queue.add(work.split()[0], work)
    order = []
    while (work := queue.take_work()) is not None:
        order.append(work)
        queue.end_work(work.split()[0])
    assert order == ["evil 1", "idmz 1", "cloud 1", "evil 2", "idmz 2", "evil 3"]


def test_a_zone_that_was_just_served_goes_behind_those_that_came_meanwhile() -> None:
    """Even if its own next piece came before theirs."""
    queue = FairQueue[str](1)
    queue.add("evil", "evil 1")
    assert queue.take_work() == "evil 1"
    for work in ("evil 2", "idmz 1"):
        queue.add(work.split()[0], work)
    queue.end_work("evil")
    assert queue.take_work() == "idmz 1"


def test_a_zone_takes_only_its_places() -> None:
    """With three places and two for one zone, another zone's work begins at once while the first zone's waits."""
    queue = FairQueue[str](3, lambda *_: 2)
    for number in range(5):
        queue.add("evil", f"evil {number}")
    assert [queue.take_work(), queue.take_work(), queue.take_work()] == ["evil 0", "evil 1", None]
    queue.add("idmz", "idmz 0")
    assert queue.take_work() == "idmz 0"
    queue.add("cloud", "cloud 0")
    assert queue.take_work() is None, "all places are taken"
    queue.end_work("evil")
    assert queue.take_work() == "cloud 0", "it has nothing under way, evil has"


def test_a_zone_that_may_not_begin_delays_no_other() -> None:
    """A zone that waits for its tokens keeps its place in the queue, and the others overtake it. The next time at which
    one of them may begin is known, except of a zone of which it is not."""
    ready = {"evil": 60_000, "idmz": 0, "cloud": None, "erp": 1_000}
    queue = FairQueue[str](4, ready_ms=lambda node, _: ready[node])
    for zone in ready:
        queue.add(zone, zone)
    assert [queue.take_work(0), queue.take_work(0)] == ["idmz", None]
    assert (queue.due_ms(0), queue.due_ms(1_000), queue.due_ms(60_000)) == (1_000, 60_000, None)
    assert [queue.take_work(60_000), queue.take_work(60_000), queue.take_work(60_000)] == ["evil", "erp", None]


def test_no_work_is_left_waiting_while_time_passes() -> None:
    """Work that is not due yet is begun by the alarm, which is set for the earliest; that of a zone whose time comes
    while other work begins, too."""
    alarms, begun, looks = list[tuple[float, Callable[[], object]]](), list[str](), [0, 999, 1_000, 60_000]
    queue = FairQueue[str](3, ready_ms=lambda node, _: {"evil": 60_000, "idmz": 1_000}[node])
    queue.add("evil", "evil")
    queue.add("idmz", "idmz")

    def call_later(delay_s: float, callback: Callable[[], object]) -> Callable[[], None]:
        alarms.append((delay_s, callback))
        return alarms.clear

    dispatcher = Dispatcher(queue, begun.append, lambda: looks.pop(0), call_later)
    dispatcher.begin_due()
    assert [delay_s for delay_s, _ in alarms] == [1.0]
    for delays, done in (([0.001], []), ([59.0], ["idmz"]), ([], ["idmz", "evil"])):
        (_, ring), *_ = alarms
        alarms.clear()
        ring()
        assert ([delay_s for delay_s, _ in alarms], begun) == (delays, done)


def test_work_that_is_not_wanted_any_more_is_withdrawn() -> None:
    """It is not taken, and the zone has no queue left."""
    queue = FairQueue[str](1)
    queue.add("evil", "a")
    queue.add("evil", "b")
    assert not queue.leave("evil", "a"), "it had no place"
    assert queue.take_work() == "b"
    assert queue.is_empty()
    queue.add("evil", "c")
    assert queue.leave("evil", "b"), "its place is free"
    assert queue.take_work() == "c"
    queue.add("evil", "d")
    assert not queue.leave("evil", "d")
    assert queue.is_empty()


@given(st.lists(st.tuples(st.sampled_from(ZONES), st.booleans()), max_size=60), st.integers(1, 4), st.integers(1, 4))
def test_no_work_is_lost_and_the_zone_with_least_under_way_goes_first(
    events: list[tuple[str, bool]], places: int, of_zone: int
) -> None:
    """All work is taken once, in its zone's order; the limits are never exceeded; and no zone begins a second piece
    while another one with none under way waits for its first."""
    queue = FairQueue[tuple[str, int]](places, lambda *_: of_zone)
    added, taken, under_way = list[tuple[str, int]](), list[tuple[str, int]](), Counter[str]()

    def take_all() -> None:
        while (work := queue.take_work()) is not None:
            zone = work[0]
            waiting = [other for other in ZONES if other != zone and other in queue._queues]
            assert all(under_way[other] >= under_way[zone] for other in waiting)
            taken.append(work)
            under_way[zone] += 1
            assert under_way.total() <= places
            assert under_way[zone] <= of_zone

    def end(zone: str) -> None:
        under_way[zone] -= 1
        queue.end_work(zone)
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
