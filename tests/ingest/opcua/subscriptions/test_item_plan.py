from hypothesis import given
from hypothesis import strategies as st

from agent.ingest.opcua.subscriptions.item_plan import Created, ItemPlan

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
    plan = ItemPlan([1, 2, 3, 4, 6, 7], size_max=2, pause_ns=100)
    plan.answered([1, 2, 3, 6, 7], [Created(0, 11), Created(0, 12), BAD, Created(0, 16), Created(0, 17)], 0)
    plan.want([1, 3, 5])  # 2, 6 and 7 were live, 4 pending
    assert plan.live == {1}
    assert plan.parked == {3}
    assert plan.next_call(0) == [5]
    for deletion in ([12, 16], [17]):
        assert plan.next_deletion() == deletion
        plan.deleted(deletion)
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
    """It is parked with a pause of its own, its item at the server is deleted, and what is parked already is no
    news."""
    plan = ItemPlan([1, 2], size_max=10, pause_ns=100)
    plan.answered([1, 2], [Created(0, 11), Created(0, 12)], 0)
    assert plan.died({1: BAD.status, 9: BAD.status}, 1000) == {1: BAD.status}
    assert plan.died({1: BAD.status}, 1000) == {}
    assert (plan.live, plan.parked, plan.next_deletion()) == ({2}, {1}, [11])
    assert plan.next_call(1099) == []
    assert plan.next_call(1100) == [1]
    plan.answered([1], [Created(0, 13)], 1100)
    assert plan.live == {1, 2}


def test_a_retry_by_hand_ends_every_pause() -> None:
    """What is parked is due at once, and refused again it waits as long as it would have."""
    plan = ItemPlan([1], size_max=10, pause_ns=100)
    plan.answered([1], [BAD], 0)
    assert plan.next_call(1) == []
    plan.retry()
    assert plan.next_call(1) == [1]
    plan.answered([1], [BAD], 1)
    assert plan.next_call(200) == []
