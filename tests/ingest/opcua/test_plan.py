from hypothesis import given
from hypothesis import strategies as st

from agent.ingest.opcua.plan import Absence, Absences, Created, ItemPlan
from agent.ingest.opcua.server_clock import ServerTime

BAD, OK = Created(0x8034_0000), Created(0, 1)


def test_parked_nodes_never_share_a_call_with_untried_ones() -> None:
    """Nodes that are refused wait for their own turn, in pauses that double; the rest is created without them."""
    plan = ItemPlan(range(5), size_max=3, pause_ns=100)
    assert plan.next_call(0) == [0, 1, 2]
    assert plan.answered([0, 1, 2], [OK, BAD, OK], 0) == {1: BAD.status}
    assert plan.next_call(1000) == [3, 4]
    assert plan.answered([3, 4], [OK, OK], 1000) == {}
    assert plan.next_call(1000) == [1]
    assert plan.answered([1], [BAD], 1000) == {}  # no news
    assert plan.next_call(1199) == []
    assert plan.next_call(1200) == [1]
    assert plan.answered([1], [Created(0x8005_0000)], 1200) == {1: 0x8005_0000}  # another reason is
    assert plan.next_call(1600) == [1]
    plan.answered([1], [OK], 1600)
    assert plan.live == {0, 1, 2, 3, 4}
    assert plan.parked == frozenset()


@given(st.integers(1, 3000), st.integers(0, 500), st.integers(1, 700), st.sets(st.integers(0, 2999), max_size=20))
def test_every_item_is_created_whatever_the_limits(wanted: int, told: int, real: int, bad: set[int]) -> None:
    """A server that states one limit, or none, and enforces another ends up with every item that it has."""
    plan = ItemPlan(range(wanted), size_max=1000, pause_ns=10)
    plan.limit(told)
    calls = 0
    while handles := plan.next_call(0):
        calls += 1
        if len(handles) > real:
            assert plan.call_refused(len(handles))
            continue
        plan.answered(handles, [BAD if handle in bad else OK for handle in handles], 0)
    assert plan.live == set(range(wanted)) - bad
    assert plan.parked == bad & set(range(wanted))
    smallest = min(real, told or real, 1000)
    assert calls <= 12 + wanted // max(1, smallest // 2) + 1


def test_a_server_that_takes_not_even_one_item_is_not_asked_for_ever() -> None:
    """Halving ends at one."""
    plan = ItemPlan([7], size_max=4, pause_ns=1)
    assert not plan.call_refused(1)


def test_another_wish_touches_only_what_differs() -> None:
    """Live and parked handles that stay are left alone; new ones are created, items of removed ones deleted, in
    calls."""
    plan = ItemPlan([1, 2, 3, 4], size_max=2, pause_ns=100)
    plan.answered([1, 2, 3], [Created(0, 11), Created(0, 12), BAD], 0)
    plan.want([1, 3, 5])  # 2 was live, 4 pending
    assert plan.live == {1}
    assert plan.parked == {3}
    assert plan.next_call(0) == [5]
    assert plan.next_deletion() == [12]
    plan.deleted([12])
    plan.want([5])
    assert (plan.live, plan.parked, plan.next_call(0)) == (frozenset(), frozenset(), [5])
    assert plan.next_deletion() == [11]


def test_what_a_call_creates_for_no_tag_is_deleted() -> None:
    """The wish changes while a call is on its way: its item is deleted again, its refusal is no news; a handle that is
    wanted again before the answer is simply live."""
    plan = ItemPlan([1, 2, 3], size_max=10, pause_ns=100)
    assert plan.next_call(0) == [1, 2, 3]
    plan.want([9])
    plan.want([3, 9])
    assert plan.answered([1, 2, 3], [Created(0, 11), BAD, Created(0, 13)], 0) == {}
    assert plan.live == {3}
    assert plan.parked == frozenset()
    assert plan.next_deletion() == [11]
    assert plan.next_call(0) == [9]


def test_an_item_whose_node_is_gone_is_deleted_and_created_again() -> None:
    """It is parked with a pause of its own, its item at the server is deleted, and what is parked already is no news.
    An item that dies again at once waits twice as long; one that was well for a while begins with the first pause."""
    plan = ItemPlan([1, 2], size_max=10, pause_ns=100)
    plan.answered([1, 2], [Created(0, 11), Created(0, 12)], 0)
    assert plan.died({1: BAD.status, 9: BAD.status}, 1000) == {1: BAD.status}
    assert plan.died({1: BAD.status}, 1000) == {}
    assert (plan.live, plan.parked, plan.next_deletion()) == ({2}, {1}, [11])
    assert plan.next_call(1099) == []
    assert plan.next_call(1100) == [1]
    plan.answered([1], [Created(0, 13)], 1100)
    assert plan.live == {1, 2}
    plan.died({1: BAD.status}, 1101)
    assert plan.next_call(1300) == []
    assert plan.next_call(1301) == [1]
    plan.answered([1], [Created(0, 14)], 1301)
    plan.died({1: BAD.status}, 9000)
    assert plan.next_call(9100) == [1]


def test_a_retry_by_hand_ends_every_pause() -> None:
    """What is parked is due at once, and refused again it waits as long as it would have."""
    plan = ItemPlan([1], size_max=10, pause_ns=100)
    plan.answered([1], [BAD], 0)
    assert plan.next_call(1) == []
    plan.retry()
    assert plan.next_call(1) == [1]
    plan.answered([1], [BAD], 1)
    assert plan.next_call(200) == []


def test_a_handle_is_absent_until_it_has_an_item_again() -> None:
    """The first sign of its absence dates it, the last one names the reason; handles that went at one time are one gap.
    One that is wanted no more is forgotten, and one that goes on under another number is absent under that."""
    absences = Absences()
    absences.begin([1, 2, 3], "item_renewed", ServerTime(10, 0))
    absences.begin([2], "item_refused", ServerTime(20, 5))
    absences.begin([4], "item_refused", ServerTime(20, 5))
    assert (absences.since(2), absences.since(9)) == (ServerTime(10, 0), None)
    absences.keep([2, 3, 8], {4: 8})
    assert absences.among([1, 2, 3, 8, 9]) == {
        Absence("item_refused", ServerTime(10, 0)): [2],
        Absence("item_renewed", ServerTime(10, 0)): [3],
        Absence("item_refused", ServerTime(20, 5)): [8],
    }
    absences.declare([2])
    assert absences.among([2]) == {}
    assert absences.publish([2]) == {}
    assert absences.handles == {3, 8}


def test_an_absence_goes_on_if_its_new_item_goes_without_a_value() -> None:
    """It is declared when the first new item is created, not with each, and once more when one publishes. A value that
    comes ahead of the answer to the creation ends it too."""
    absences, refused = Absences(), Absence("item_refused", ServerTime(10, 0))
    assert absences.begin([1, 2, 3], *refused) == [1, 2, 3]
    assert absences.publish([3]) == {}
    assert absences.among([1, 2, 3]) == {refused: [1, 2, 3]}
    absences.declare([1, 2, 3])
    assert absences.handles == {1, 2}
    for now_ns in (20, 30):
        assert absences.begin([1], "item_refused", ServerTime(now_ns, 0)) == []
        assert absences.among([1]) == {}
    absences.keep([2, 9], {1: 9})
    assert absences.publish([2, 9]) == {refused: [9]}
    assert not absences.handles


def test_what_was_created_is_reported_once() -> None:
    """Also of an item that was created anew; not of one that nobody wants by now."""
    plan = ItemPlan([1, 2], size_max=10, pause_ns=100)
    plan.answered([1, 2], [Created(0, 11), BAD], 0)
    assert (plan.take_created(), plan.take_created()) == ({1}, set())
    assert plan.renew([1, 2, 9]) == [1], "the others have no item"
    plan.want([2])
    plan.answered([1, 2], [Created(0, 12), Created(0, 13)], 100)
    assert plan.take_created() == {2}
