"""Which of several instances under one name may go on: the rule as a table, and what it adds up to."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.lease import LEASE_EPOCH_MAX, NO_LEASE, Lease, Shown, decide

OURS = Lease(3, "one")


@pytest.mark.parametrize(
    "held, shown, after",
    [
        (NO_LEASE, Shown("one"), NO_LEASE),
        (NO_LEASE, Shown("one", 0), Lease(1, "one")),
        (NO_LEASE, Shown("one", 7), Lease(7, "one")),
        (OURS, Shown("one"), OURS),
        (OURS, Shown("one", 0), OURS),
        (OURS, Shown("one", 2), OURS),
        (OURS, Shown("one", 9), OURS),
        (OURS, Shown("two", 0), Lease(4, "two")),
        (OURS, Shown("two", 4), Lease(4, "two")),
        (OURS, Shown("two", 3), OURS),
        (OURS, Shown("two", 2), None),
        (OURS, Shown("two"), None),
        (Lease(LEASE_EPOCH_MAX, "one"), Shown("two", 0), None),
        (Lease(LEASE_EPOCH_MAX, "one"), Shown("one", 0), Lease(LEASE_EPOCH_MAX, "one")),
    ],
)
def test_every_row(held: Lease, shown: Shown, after: Lease | None) -> None:
    """The rows of the module's table, and that the last epoch there is cannot be passed."""
    assert decide(held, shown) == after


@given(st.lists(st.sampled_from("abc"), max_size=40))
def test_epochs_only_rise_and_nobody_returns(turns: list[str]) -> None:
    """Instances that ask once and then show what they were given, in any order: epochs never go back, and one whose place was
    taken is fenced each time it shows its lease."""
    held = NO_LEASE
    given_to: dict[str, int] = {}
    replaced: set[str] = set()
    for name in turns:
        before = held
        after = decide(held, Shown(name, given_to.get(name, 0)))
        if name in replaced:
            assert after is None
            continue
        assert after is not None
        held = after
        assert held.epoch >= before.epoch
        if held.holder != before.holder and before.holder:
            replaced.add(before.holder)
        given_to[name] = held.epoch
