"""The witness: its table, and properties over any claims."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.pair import LEASE_MS, TERM_MAX, Claim, ClaimState, Granter, Lead, Witness, decide_lead, next_term

LEADS, FOLLOWS, RELEASES = ClaimState
HELD = Lead("a", "1", 30, 30, ends_ms=1_000, is_heard=True)
FREE = Lead(highest=30, ends_ms=500)
STARTED = Lead(highest=30, ends_ms=1_000)


def claim(state: ClaimState, term: int, node: str = "b", instance: str = "1", highest: int = 0) -> Claim:
    """A claim, of the other node by default."""
    return Claim(node, instance, state, term, highest)


@pytest.mark.parametrize(
    "lead, claimed, after",
    [
        (HELD, claim(RELEASES, 9, "a"), Lead(highest=30, ends_ms=600)),
        (HELD, claim(RELEASES, 9), HELD),
        (FREE, claim(RELEASES, 9), FREE),
        (HELD, claim(FOLLOWS, 40), HELD),
        (HELD, claim(LEADS, 20), HELD),
        (HELD, claim(LEADS, 41), Lead("a", "1", 30, 41, 1_000, is_heard=True)),
        (HELD, claim(RELEASES, 9, highest=41), Lead("a", "1", 30, 41, 1_000, is_heard=True)),
        (HELD, claim(LEADS, 30, "a"), Lead("a", "1", 30, 30, 2_100, is_heard=True)),
        (HELD, claim(FOLLOWS, 30, "a"), Lead("a", "1", 30, 30, 2_100, is_heard=True)),
        (HELD, claim(FOLLOWS, 31, "a"), Lead("a", "1", 33, 33, 2_100, is_heard=True)),
        (HELD, claim(FOLLOWS, 31, "a", "2"), HELD),
        (HELD, claim(LEADS, 31, "a", "2"), Lead("a", "1", 30, 31, 1_000, is_heard=True)),
        (HELD, claim(LEADS, 30, "a", highest=37), Lead("a", "1", 39, 39, 2_100, is_heard=True)),
        (FREE, claim(FOLLOWS, 5), Lead("b", "1", 33, 33, 2_100, is_heard=True)),
        (FREE, claim(FOLLOWS, 100), Lead("b", "1", 102, 102, 2_100, is_heard=True)),
        (FREE, claim(LEADS, 5), Lead("b", "1", 33, 33, 2_100, is_heard=True)),
        (FREE, claim(LEADS, 31), Lead("b", "1", 31, 31, 2_100, is_heard=True)),
        (FREE, claim(LEADS, 30), Lead("b", "1", 30, 30, 2_100, is_heard=True)),
        (STARTED, claim(FOLLOWS, 100), STARTED),
        (STARTED, claim(LEADS, 31), Lead("b", "1", 31, 31, 2_100, is_heard=True)),
        (FREE, claim(FOLLOWS, TERM_MAX), FREE),
    ],
)
def test_every_row_of_the_table_of_leads(lead: Lead, claimed: Claim, after: Lead) -> None:
    """The rows of the module's table, at 600 ms; above the largest term nothing is granted."""
    assert decide_lead(lead, claimed, 600) == after


CLAIMS = st.builds(
    Claim,
    st.sampled_from("ab"),
    st.sampled_from("12"),
    st.sampled_from(ClaimState),
    st.integers(0, 200),
    st.integers(0, 200),
    st.integers(-1, 9),
)


@given(st.lists(st.tuples(CLAIMS, st.integers(0, 2 * LEASE_MS)), max_size=40))
def test_terms_rise_and_a_lease_is_kept(claimed: list[tuple[Claim, int]]) -> None:
    """For any claims: a lease that has not run out and was not released keeps its holder; the highest term never falls;
    a new grant is above all that was granted or heard of, or it is the term with which the node leads already."""
    lead, now_ms = Lead(), 0
    for asked, wait_ms in claimed:
        now_ms += wait_ms
        before, lead = lead, decide_lead(lead, asked, now_ms)
        is_holder = (before.node, before.instance) == (asked.node, asked.instance)
        if before.node and now_ms < before.ends_ms and not is_holder:
            assert (lead.node, lead.instance, lead.term) == (before.node, before.instance, before.term)
        assert lead.highest >= max(before.highest, asked.highest, lead.term)
        if lead.node and lead.term != before.term:
            known = max(before.highest, asked.highest)
            assert lead.term > known or (asked.state is LEADS and lead.term == asked.term >= known)
            assert lead.term == asked.term or lead.term % 3 == Granter.WITNESS
        if lead.node and lead.ends_ms != before.ends_ms:
            assert (lead.node, lead.instance, lead.ends_ms) == (asked.node, asked.instance, now_ms + LEASE_MS)


@given(st.integers(0, 10**15), st.sampled_from(Granter), st.sampled_from(Granter))
def test_no_two_granters_grant_the_same_term(least: int, first: Granter, second: Granter) -> None:
    """The next term is at most two above what is asked for, and is that of its granter alone."""
    term = next_term(least, first)
    assert least <= term < least + 3
    assert (next_term(term, second) == term) is (first is second)


def test_after_a_restart_the_stored_lead_waits_for_its_holder() -> None:
    """The lead of the file runs for a lease from the start, is told to nobody, and only its holder, or who leads
    without one, gets it at once."""
    asker = claim(FOLLOWS, 40)
    witness = Witness({"z": HELD}, 10_000)
    assert not witness.claim("z", asker, 10_100)
    assert witness.leads["z"].leader(asker, 10_100) == ""
    assert not witness.claim("z", claim(LEADS, 30, "a"), 10_200)
    assert witness.leads["z"].leader(asker, 10_300) == "a"
    assert witness.claim("z", asker, 10_200 + LEASE_MS)
    assert witness.leads["z"].leader(asker, 11_800) == "b"
    assert not witness.claim("y", asker, 10_100)
    assert witness.claim("y", asker, 10_000 + LEASE_MS)


def test_a_node_is_told_what_the_other_one_claims() -> None:
    """As long as it is heard: so each learns how fit the other is, though the cable between them is cut."""
    witness, other = Witness({}, 0), claim(FOLLOWS, 3, "a")
    witness.claim("z", other, 2_000)
    assert witness.other_claim("z", "b", 2_100) == other
    assert witness.other_claim("z", "a", 2_100) is None
    assert witness.other_claim("y", "b", 2_100) is None
    assert witness.other_claim("z", "b", 2_000 + LEASE_MS) is None


def test_a_node_is_not_told_of_its_earlier_process() -> None:
    """The lease of a process that has ended is not the lead of the one that has begun after it."""
    assert HELD.leader(claim(FOLLOWS, 40, "a", "2"), 600) == ""
    assert HELD.leader(claim(FOLLOWS, 40, "a", "1"), 600) == "a"
    assert HELD.leader(claim(FOLLOWS, 40), 1_000) == ""
