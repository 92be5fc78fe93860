import math

from hypothesis import given
from hypothesis import strategies as st

from agent.ingest.opcua.subscriptions.item_plan import Groups, ServerLimits


def test_our_own_size_yields_to_the_number_of_subscriptions() -> None:
    """Where the server has few subscriptions, told or found out, they hold more than we wish, up to its own limit."""
    told = Groups(ServerLimits(items_per_subscription=5, subscriptions=2), items_per_subscription_max=2)
    assert told.want(range(1, 7)) == [[1, 2, 3], [4, 5, 6]]
    assert told.want(range(1, 10)) == [[1, 2, 3, 7], [4, 5, 6, 8]]
    assert told.unplaced == {9}
    found_out = Groups(ServerLimits(), 2)
    assert found_out.want(range(1, 6)) == [[1, 2], [3, 4], [5]]
    found_out.limit_count(1)
    assert found_out.want(range(1, 6)) == [[1, 2, 3, 4, 5]]


@given(
    st.integers(0, 6),
    st.integers(0, 12),
    st.integers(0, 4),
    st.integers(1, 5),
    st.lists(st.sets(st.integers(1, 30), max_size=25), max_size=4),
)
def test_limits_are_kept_and_nothing_is_dropped(
    per_subscription: int, items: int, subscriptions: int, own: int, wishes: list[set[int]]
) -> None:
    """Whatever the wishes: each handle is in one subscription or named, and no limit of server or source is passed. (A
    server that takes less than one value and its clock is asked all the same, and may refuse.)"""
    groups = Groups(
        ServerLimits(items_per_subscription=per_subscription, items=items, subscriptions=subscriptions), own
    )
    for wish in wishes:
        found = groups.want(sorted(wish))
        placed = [handle for group in found for handle in group]
        assert sorted([*placed, *groups.unplaced]) == sorted(wish)
        most = own if not subscriptions else max(own, math.ceil(max(map(len, wishes)) / subscriptions))
        assert all(
            len(group) <= min(most, max(1, per_subscription - 1) if per_subscription else most) for group in found
        )
        assert not subscriptions or len(found) <= subscriptions
        assert not items or len(placed) + len(found) <= max(2, items)
