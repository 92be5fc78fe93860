"""The leadership core: what a node does with what it hears, case by case; and the table of its roles."""

from dataclasses import replace
from itertools import pairwise

import pytest

from agent.pair import (
    TRANSITIONS,
    Begin,
    Claim,
    ClaimState,
    Leadership,
    LeadTimes,
    PairNames,
    PartnerWord,
    Role,
    RoleEvent,
    Stop,
    WitnessWord,
)

MS = 1_000_000
NAMES = PairNames("a", "a1", "b")
TIMES = LeadTimes()


def core(*, term: int = 0, names: PairNames = NAMES) -> Leadership:
    """A node with facts of its zone; with a term one that leads."""
    made = Leadership(names, 0, highest_term=1)
    if term:
        made.hear_witness(witness(names.node, term))
        assert isinstance(made.step(0, 5, 1), Begin)
    return made


def witness(leader: str, term: int, at_ms: int = 0, **more: object) -> WitnessWord:
    """What the witness said."""
    return replace(WitnessWord(leader, term, term, TIMES.lease_ns, at_ms * MS), **more)  # type: ignore[arg-type]


def partner(state: ClaimState, term: int = 1, says: str | None = None, at_ms: int = 0, fitness: int = 5) -> PartnerWord:
    """What node b said."""
    return PartnerWord(Claim("b", "b1", state, term, term, fitness), says, at_ms * MS)


LEADS, FOLLOWS, RELEASES = ClaimState
RECORDING: list[tuple[str, WitnessWord | None, PartnerWord | None, type]] = [
    ("the witness names the partner", witness("b", 33), None, Stop),
    ("and outranks the partner's word", witness("b", 33), partner(FOLLOWS), Stop),
    ("the witness confirms this node", witness("a", 30), partner(LEADS, 31, "a"), type(None)),
    ("the witness grants a new term", witness("a", 33), None, Begin),
    ("a later leader", None, partner(LEADS, 31), Stop),
    ("an earlier leader", None, partner(LEADS, 29), type(None)),
    ("an earlier one that the witness confirms", None, partner(LEADS, 29, "b"), Stop),
    ("a later one that says that the witness names us", None, partner(LEADS, 31, "a"), type(None)),
    ("a follower that knows a higher term", None, partner(FOLLOWS, 31), Begin),
    ("nobody is heard", None, None, type(None)),
]


@pytest.mark.parametrize("case, said, told, expected", RECORDING, ids=[row[0] for row in RECORDING])
def test_a_node_that_records(case: str, said: WitnessWord | None, told: PartnerWord | None, expected: type) -> None:
    """It stops for a leader that the witness confirms, or else for a later one, and for nothing else."""
    node = core(term=30)
    node.witness = None
    if said is not None:
        node.hear_witness(said)
    if told is not None:
        node.hear_partner(told)
    assert type(node.step(1 * MS, 5, 31)) is expected, case
    assert node.is_recording is (expected is not Stop)


FOLLOWING: list[tuple[str, WitnessWord | None, PartnerWord | None, bool]] = [
    ("the witness grants it", witness("a", 33), None, True),
    ("a term that is too low", witness("a", 9), None, False),
    ("the witness names the partner", witness("b", 33), partner(FOLLOWS), False),
    ("the partner leads", None, partner(LEADS, 31), False),
    ("the partner leads, the witness knows none", witness("", 0), partner(LEADS, 31), False),
    ("the partner would, and is second by name", None, partner(FOLLOWS), True),
    ("the partner is fitter", None, partner(FOLLOWS, fitness=6), False),
    ("the partner is fitter and will not", None, partner(RELEASES, fitness=6), True),
    ("the partner hears the witness, which may grant it", None, partner(FOLLOWS, says=""), False),
    ("the partner hears that the witness grants it to us", None, partner(FOLLOWS, says="a"), True),
    ("nobody is heard", None, None, False),
]


@pytest.mark.parametrize("case, said, told, begins", FOLLOWING, ids=[row[0] for row in FOLLOWING])
def test_a_node_that_follows(case: str, said: WitnessWord | None, told: PartnerWord | None, begins: bool) -> None:
    """It begins when the witness grants the lead, or the witness is silent and the partner leaves it the lead."""
    node = core()
    if said is not None:
        node.hear_witness(said)
    if told is not None:
        node.hear_partner(told)
    decision = node.step(1 * MS, 5, 31)
    assert isinstance(decision, Begin) is begins, case
    assert node.role is (Role.LEADS if begins else Role.FOLLOWS)
    if isinstance(decision, Begin):
        assert decision.term >= 31


def test_a_lonely_node_begins_after_its_patience() -> None:
    """After a start it waits for its connections, later only for its patience; it is alone until it hears somebody."""
    node, patience = core(), TIMES.start_patience_ns
    assert node.step(patience - 1, 5, 9) is None
    assert node.step(patience, 5, 9) == Begin(10, "no leader was heard of")
    assert node.role is Role.ALONE
    node.hear_partner(partner(FOLLOWS, at_ms=patience // MS))
    assert node.step(patience + MS, 5, 11) is None
    assert node.role is Role.LEADS
    later = core()
    later.hear_partner(partner(LEADS, 31))
    last = TIMES.lease_ns - MS
    assert later.step(last, 5, 9) is None
    assert later.step(last + TIMES.patience_ns - 1, 5, 9) is None
    assert later.step(last + TIMES.patience_ns, 5, 9) == Begin(34, "no leader was heard of")


@pytest.mark.parametrize("fitness, wait_ns", [(3, TIMES.fitter_ns), (0, TIMES.unfit_ns), (-1, TIMES.unfit_ns)])
def test_a_leader_leaves_the_lead_to_a_fitter_partner(fitness: int, wait_ns: int) -> None:
    """After a while, sooner if it cannot record at all; and it does not claim at once."""
    node, at_ms = core(term=30), 0
    for at_ms in range(1, wait_ns // MS + 1, 100):
        node.hear_witness(witness("a", 30, at_ms))
        node.hear_partner(partner(FOLLOWS, at_ms=at_ms))
        assert node.step(at_ms * MS, fitness, 31) is None
    node.hear_partner(partner(FOLLOWS, at_ms=at_ms))
    assert node.step((at_ms + 101) * MS, fitness, 31) == Stop("the partner is fitter")
    assert node.claim_for_witness((at_ms + 102) * MS).state is RELEASES
    assert node.claim_for_partner((at_ms + 102) * MS).state is RELEASES


def test_a_partner_that_is_fitter_only_while_it_follows_does_not_change_the_leader_for_ever() -> None:
    """A device behind a converter accepts connections and gives no value: it counts as connected at the node that
    follows, and not at the one that leads. In an hour the lead changes a few times, less and less often; a week later
    the first change is again a quick one."""
    nodes = {"a": core(), "b": core(names=PairNames("b", "b1", "a"))}
    changes = list[int]()
    for at_ms in range(0, 3_600_000, 100):
        for name, node in nodes.items():
            other = nodes["b" if name == "a" else "a"]
            if at_ms % 300 == 0:
                node.hear_partner(PartnerWord(other.claim_for_partner(at_ms * MS), None, at_ms * MS))
            decision = node.step(at_ms * MS, 2 if node.is_recording else 3, 31)
            if isinstance(decision, Stop):
                changes.append(at_ms)
    assert 2 <= len(changes) <= 20
    pauses = [later - earlier for earlier, later in pairwise(changes)]
    assert pauses[-1] > 600_000
    leader = next(node for node in nodes.values() if node.is_recording)
    week_ms, decisions = 7 * 86_400_000, []
    for at_ms in range(week_ms, week_ms + TIMES.fitter_ns // MS + 500, 100):
        leader.hear_partner(replace(partner(FOLLOWS, at_ms=at_ms), claim=Claim("x", "x1", FOLLOWS, 1, 1, 5)))
        decisions.append(leader.step(at_ms * MS, 3, 31))
    assert Stop("the partner is fitter") in decisions


def test_a_full_partner_records_nothing_though_it_leads() -> None:
    """Its store refuses: the gap begins when it was last known to record, and not when it left the lead."""
    for is_told_by_witness in (True, False):
        node = core()
        for at_ms in range(100, 3_100, 100):
            fitness = 5 if at_ms <= 1_000 else -1
            claim = Claim("b", "b1", LEADS, 30, 30, fitness, gaps_stored=True)
            if is_told_by_witness:
                node.hear_witness(witness("b", 30, at_ms, other=claim))
            else:
                node.hear_partner(PartnerWord(claim, None, at_ms * MS))
        node.hear_witness(witness("a", 33, 3_100))
        assert node.step(3_100 * MS, 5, 1) == Begin(33, "the witness has granted the lead")
        node.note_level(3_100 * MS)
        assert node.complete_ns == 1_000 * MS


def test_the_fitness_of_the_partner_is_also_told_by_the_witness() -> None:
    """The cable between the nodes is cut: a leader without sources learns from the witness that the other one has
    some."""
    node = core(term=30)
    other = Claim("b", "b1", FOLLOWS, 31, 30, 5)
    decisions = []
    for at_ms in range(0, 1_500, 100):
        node.hear_witness(witness("a", 30, at_ms, other=other))
        decisions.append(node.step(at_ms * MS, 0, 31))
    assert Stop("the partner is fitter") in decisions


def test_a_partner_that_refuses_leaves_a_bad_leader_in_place() -> None:
    """Two nodes whose stores refuse: the one that leads goes on, because the other one would not be better."""
    node = core(term=30)
    for at_ms in range(0, 20_000, 100):
        node.hear_partner(partner(RELEASES if at_ms % 200 else FOLLOWS, at_ms=at_ms, fitness=-1))
        assert node.step(at_ms * MS, -1, 31) is None


def test_a_planned_switch_gives_the_partner_its_turn() -> None:
    """The node that has released follows as soon as the partner leads; if that never does, it leads again."""
    node = core(term=30)
    node.release(100 * MS)
    assert node.claim_for_witness(101 * MS).state is RELEASES
    node.hear_partner(partner(LEADS, 31, at_ms=200))
    assert node.step(201 * MS, 5, 31) is None
    assert node.claim_for_partner(202 * MS).state is FOLLOWS
    alone = core(term=30)
    alone.release(100 * MS)
    alone.hear_partner(partner(FOLLOWS, at_ms=200, says=""))
    assert isinstance(alone.step(100 * MS + 2 * TIMES.patience_ns, 5, 31), Begin)


def test_a_leader_is_not_replaced_for_its_uplink() -> None:
    """The witness does not hear the leader, but its partner does: the partner does not claim."""
    node = core()
    node.step(0, 5, 1)
    node.hear_witness(witness("", 30))
    node.hear_partner(partner(LEADS, 30))
    assert node.claim_for_witness(1 * MS).state is RELEASES
    assert node.claim_for_partner(1 * MS).state is FOLLOWS


def test_the_gap_begins_when_the_partner_was_last_known_to_record() -> None:
    """The witness says for how long the lease of the other one lasts: so long ago it was renewed."""
    node = core()
    renewed = witness("b", 30, at_ms=1_000, remaining_ns=TIMES.lease_ns - 200 * MS)
    node.hear_witness(replace(renewed, other=Claim("b", "b1", LEADS, 30, 30, 5, gaps_stored=True)))
    node.hear_witness(replace(renewed, other=Claim("b", "b1", FOLLOWS, 30, 30, 5), heard_ns=2_000 * MS))
    node.note_level(3_000 * MS)
    assert node.complete_ns == 800 * MS


def test_a_node_is_complete_up_to_what_the_partner_has_declared() -> None:
    """A time counts at which the partner had declared all, once what it had stored then is here; none in between at
    which gaps waited there. A later term, of which that is not known, moves nothing, nor does a level that goes
    back."""
    node = core()
    node.note_level(9_000 * MS)
    assert node.complete_ns is None
    for at_ms in range(1_000, 5_000, 100):
        claim = Claim("b", "b1", LEADS, 30, 30, 5, gaps_stored=at_ms >= 2_000 and not 3_000 <= at_ms < 3_500)
        node.hear_partner(PartnerWord(claim, None, at_ms * MS))
    since_ns = 2_000 * MS + TIMES.lease_ns
    for level_ns, complete_ns in (
        (since_ns - 1, None),
        (since_ns, 2_000 * MS),
        (4_700 * MS, 2_900 * MS),
        (5_000 * MS, 3_500 * MS),
        (9_000 * MS, 4_900 * MS),
        (4_000 * MS, 4_900 * MS),
    ):
        node.note_level(level_ns)
        assert node.complete_ns == complete_ns
    for at_ms, term in ((5_000, 30), (5_500, 33), (5_600, 30)):  # a late word of the term before changes nothing
        claim = Claim("b", "b2", LEADS, term, 33, 5, gaps_stored=term == 30)
        node.hear_partner(PartnerWord(claim, None, at_ms * MS))
    node.note_level(9_000 * MS)
    assert node.complete_ns == 4_900 * MS, "what the earlier term declared may not have reached this node"
    node.hear_partner(PartnerWord(Claim("b", "b2", LEADS, 33, 33, 5, gaps_stored=True), None, 6_000 * MS))
    node.note_level(9_000 * MS)
    assert node.complete_ns == 6_000 * MS


def test_a_node_says_when_what_it_missed_is_stored() -> None:
    """It says so of its lead, and not as a follower, nor before its first step as leader."""
    node = core()
    node.hear_witness(witness("a", 30))
    assert isinstance(node.step(0, 5, 1, gaps_stored=True), Begin)
    assert not node.claim_for_partner(0).gaps_stored
    for stored in (False, True):
        node.step(1 * MS, 5, 1, gaps_stored=stored)
        assert node.claim_for_partner(2 * MS).gaps_stored is stored
        assert node.claim_for_witness(2 * MS).gaps_stored is stored
    node.release(3 * MS)
    assert not node.claim_for_partner(4 * MS).gaps_stored


def test_a_life_that_the_store_begins_by_itself_needs_a_new_term() -> None:
    """The clock jumped, and the life has a number that nobody granted: the witness is asked for a term above it."""
    node = core(term=30)
    node.step(1 * MS, 5, 91)
    claim = node.claim_for_witness(2 * MS)
    assert (claim.state, claim.term, claim.highest) == (LEADS, 30, 90)


@pytest.mark.parametrize("role", Role)
@pytest.mark.parametrize("event", RoleEvent)
def test_roles_change_by_the_table(role: Role, event: RoleEvent) -> None:
    """What the table lacks is a mistake of the program."""
    node = core()
    node.role = role
    if (role, event) in TRANSITIONS:
        node._become(event)
        assert node.role is TRANSITIONS[role, event]
    else:
        with pytest.raises(KeyError):
            node._become(event)
