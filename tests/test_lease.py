"""Leases: the rule as a table, and its properties."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent.lease import LEASE_EPOCH_MAX, NO_LEASE, Denied, Lease, LeaseClaim, decide_lease, must_claim_again

OURS = Lease(3, "one")


@pytest.mark.parametrize(
    "held, shown, after",
    [
        (NO_LEASE, LeaseClaim("one"), NO_LEASE),
        (NO_LEASE, LeaseClaim("one", 0), Lease(1, "one")),
        (NO_LEASE, LeaseClaim("one", 7), Denied.UNKNOWN),
        (OURS, LeaseClaim("one"), OURS),
        (OURS, LeaseClaim("one", 0), OURS),
        (OURS, LeaseClaim("one", 2), OURS),
        (OURS, LeaseClaim("one", 9), OURS),
        (OURS, LeaseClaim("two", 0), Lease(4, "two")),
        (OURS, LeaseClaim("two", 4), Denied.UNKNOWN),
        (OURS, LeaseClaim("two", 3), OURS),
        (OURS, LeaseClaim("two", 2), Denied.FENCED),
        (OURS, LeaseClaim("two"), Denied.FENCED),
        (NO_LEASE, LeaseClaim("one", 0, 0), Lease(1, "one")),
        (NO_LEASE, LeaseClaim("one", 0, 4), NO_LEASE),
        (OURS, LeaseClaim("two", 0, 3), Lease(4, "two")),
        (OURS, LeaseClaim("two", 0, 2), OURS),
        (OURS, LeaseClaim("two", 0, 0), OURS),
        (OURS, LeaseClaim("one", 0, 0), OURS),
        (OURS, LeaseClaim("two", 9, 0), Denied.UNKNOWN),
        (OURS, LeaseClaim("two", 2, 3), Denied.FENCED),
        (Lease(LEASE_EPOCH_MAX, "one"), LeaseClaim("two", 0), Denied.FENCED),
        (Lease(LEASE_EPOCH_MAX, "one"), LeaseClaim("one", 0), Lease(LEASE_EPOCH_MAX, "one")),
    ],
)
def test_every_row_of_the_table_of_leases(held: Lease, shown: LeaseClaim, after: Lease | Denied) -> None:
    """The rows of the module's table; the last possible epoch cannot be passed."""
    assert decide_lease(held, shown) == after


@pytest.mark.parametrize(
    "held, shown, after",
    [
        (NO_LEASE, LeaseClaim("one", 0), Lease(101, "one")),
        (NO_LEASE, LeaseClaim("one", 0, 0), Lease(101, "one")),
        (NO_LEASE, LeaseClaim("one", 0, 3), NO_LEASE),
        (Lease(101, "one"), LeaseClaim("two", 0, 3), Lease(101, "one")),
        (Lease(101, "one"), LeaseClaim("two", 0, 101), Lease(102, "two")),
        (Lease(102, "one"), LeaseClaim("two", 100), Denied.UNKNOWN),
        (Lease(102, "one"), LeaseClaim("two", 101), Denied.FENCED),
        (Lease(102, "one"), LeaseClaim("two"), Denied.FENCED),
        (Lease(5, "one"), LeaseClaim("two", 4), Denied.FENCED),
        (Lease(5, "one"), LeaseClaim("two", 0, 5), Lease(6, "two")),
    ],
)
def test_a_name_that_is_registered_again(held: Lease, shown: LeaseClaim, after: Lease | Denied) -> None:
    """It begins with epochs that it never had, so leases granted before are unknown. A name that was registered when
    epochs began with 1 keeps its epochs."""
    assert decide_lease(held, shown, 100) == after


@given(st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from([None, 0, 1, 2, 7, LEASE_EPOCH_MAX])), max_size=40))
def test_whatever_is_shown_the_next_instance_gets_a_lease(shown: list[tuple[str, int | None]]) -> None:
    """Epochs rise by one with each grant and by nothing else, so no instance can use them up."""
    held = NO_LEASE
    for name, epoch in shown:
        after = decide_lease(held, LeaseClaim(name, epoch))
        if isinstance(after, Lease):
            assert after.epoch - held.epoch in {0, 1}
            held = after
    assert decide_lease(held, LeaseClaim("next", 0)) == Lease(held.epoch + 1, "next")


@given(st.lists(st.sampled_from("abc"), max_size=40))
def test_epochs_only_rise_and_a_fenced_instance_never_returns(turns: list[str]) -> None:
    """Instances request a lease once and then claim it, in any order: epochs never fall, and an instance whose place
    was taken is fenced at each claim."""
    held = NO_LEASE
    given_to: dict[str, int] = {}
    replaced: set[str] = set()
    for name in turns:
        before = held
        after = decide_lease(held, LeaseClaim(name, given_to.get(name, 0)))
        if name in replaced:
            assert after is Denied.FENCED
            continue
        assert isinstance(after, Lease)
        held = after
        assert held.epoch >= before.epoch
        if held.holder != before.holder and before.holder:
            replaced.add(before.holder)
        given_to[name] = held.epoch


class Process:
    """One life of an instance, as the receiver claims: first after 0, then after the epoch it learned, until it has a
    lease."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.epoch = self.after = 0
        self.is_fenced = False

    def asks(self) -> LeaseClaim:
        """The next claim of the process."""
        return LeaseClaim(self.name, self.epoch, None if self.epoch else self.after)

    def hears(self, answer: Lease | Denied, asked: LeaseClaim) -> None:
        """Take the answer to a claim."""
        if isinstance(answer, Denied):
            self.is_fenced = True
        elif must_claim_again(answer, asked):
            self.after = answer.epoch
        else:
            self.epoch = max(self.epoch, answer.epoch)


@settings(max_examples=500)
@given(
    st.lists(
        st.tuples(st.sampled_from(["arrives", "arrives", "is lost on its way back", "dies"]), st.integers(0, 20)),
        max_size=30,
    )
)
def test_late_requests_of_dead_processes_never_fence_the_living_one(happens: list[tuple[str, int]]) -> None:
    """Processes run one after the other under one name; their requests arrive at any time, in any order, also twice and
    after their death. The living process is never fenced."""
    held, under_way, living = NO_LEASE, list[LeaseClaim](), Process("0")
    for event, which in [*happens, *[("arrives", -1)] * 3]:
        if event == "dies":
            living = Process(str(int(living.name) + 1))
        if living.asks() not in under_way:
            under_way.append(living.asks())
        asked = under_way[-1] if which < 0 else under_way[which % len(under_way)]
        answer = decide_lease(held, asked)
        held = answer if isinstance(answer, Lease) else held
        if asked.holder == living.name and event == "arrives":
            living.hears(answer, asked)
        assert not living.is_fenced
    assert held == Lease(living.epoch, living.name)
