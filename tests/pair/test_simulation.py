"""Two nodes and their witness under named faults: thousands of schedules, and broken cores that the checkers find."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import pytest

from agent.pair import Claim, Lead, Leadership, decide_lead
from tests.pair import simulation
from tests.pair.simulation import BEAT_MS, LEASE_MS, PATIENCE_MS, Simulation, Violated, play
from tests.sim import first_seed, scaled

BROKEN_SEEDS = 60


def test_schedules_of_faults() -> None:
    """Whatever fails: one leader for a term, terms rise, nobody records against what it hears for longer than a lease,
    nobody records only for a bounded time, and afterwards one of them leads and stays. A third is without witness."""
    first = first_seed()
    for seed in range(first, first + scaled(200, 30_000)):
        play(seed, has_witness=seed % 3 != 0)


def _same_terms(patch: pytest.MonkeyPatch) -> None:
    for where in ("leadership", "witness"):
        patch.setattr(f"agent.pair.{where}.next_term", lambda least, _: least)


def _deaf(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Leadership, "_step_recording", lambda *_: None)


def _patient(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Simulation, "times", replace(simulation.TIMES, patience_ns=10**12))


def _forgetful_witness(patch: pytest.MonkeyPatch) -> None:
    def decide(lead: Lead, claim: Claim, now_ms: int, lease_ms: int) -> Lead:
        return decide_lead(replace(lead, highest=0), claim, now_ms, lease_ms)

    patch.setattr("agent.pair.witness.decide_lead", decide)


def _bold(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Leadership, "_least_term", 3)


def _content(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Leadership, "_outdating_term", 0)
    patch.setattr(Leadership, "hear_partner", lambda self, word: setattr(self, "partner", word))


def _generous(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Leadership, "_must_release", lambda _, now_ns: now_ns // 10**9 % 7 == 0)


@pytest.mark.parametrize(
    "breaks, found, has_witness",
    [
        (_same_terms, "of plant-a", False),
        (_deaf, "and the witness says that", True),
        (_deaf, "both record and hear each other", False),
        (_patient, "nobody records for", False),
        (_forgetful_witness, "the witness went back", True),
        (_bold, "begins term", True),
        (_content, "is known", False),
        (_generous, "after", True),
    ],
)
def test_checkers_find_broken_cores(
    breaks: Callable[[pytest.MonkeyPatch], None], found: str, has_witness: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each checker fails for a core that is broken on purpose; a checker that cannot fail proves nothing."""
    breaks(monkeypatch)
    messages = list[str]()
    for seed in range(BROKEN_SEEDS):
        try:
            play(seed, has_witness=has_witness)
        except Violated as error:
            messages.append(str(error).splitlines()[0])
            if found in messages[-1]:
                return
    pytest.fail(f"not found: {found!r}, but {set(messages)}")


@pytest.mark.parametrize(
    "has_witness, most_ms", [(True, LEASE_MS + 3 * BEAT_MS), (False, LEASE_MS + PATIENCE_MS + 3 * BEAT_MS)]
)
def test_a_dead_leader_is_replaced_soon(has_witness: bool, most_ms: int) -> None:
    """From the crash of the leader to the other one's first step: two seconds with a witness, three and a half
    without."""
    longest = 0
    for seed in range(scaled(40, 1_000)):
        of = Simulation(seed, has_witness=has_witness)
        of.run(20_000 + seed * 7)
        leader, _ = of.checks.settled()
        crashed_ms = of.now_ms
        of.stop(of.boxes[leader])
        follower = of.boxes[of.boxes[leader].other]
        while not follower.is_recording:
            of.run(of.now_ms + 10)
            assert of.now_ms - crashed_ms <= most_ms * 1.02 + 100, f"SEED={seed}"
        longest = max(longest, of.now_ms - crashed_ms)
    assert longest > LEASE_MS / 2


@pytest.mark.parametrize("has_witness", [True, False])
def test_a_new_empty_node_does_not_lead_at_a_common_start(has_witness: bool) -> None:
    """The node with the zone's facts starts within five seconds of the empty one, and leads: the other one would begin
    a second history of the zone. The witness may not know of the zone yet."""
    for seed in range(scaled(40, 1_000)):
        of = Simulation(seed, has_witness=has_witness)
        of.run(20_000)
        name, _ = of.checks.settled()
        with_facts, empty = of.boxes[name], of.boxes[of.boxes[name].other]
        for box in (with_facts, empty):
            of.stop(box)
        empty.life = empty.zone_term = 0
        if has_witness and seed % 2:
            of.stored, of.checks._highest = {}, 0
            of.start_witness()
        of.run(of.now_ms + seed % 3 * 1_000)
        of.start(empty)
        of.at(of.now_ms + of.chance.randrange(5_000), partial(of.start, with_facts))
        while not with_facts.is_recording:
            of.run(of.now_ms + 10)
            assert not empty.is_recording, f"SEED={seed}"


@pytest.mark.parametrize("fault", sorted(simulation.FAULTS))
def test_each_fault_by_itself(fault: str) -> None:
    """One kind of fault alone, so that a failure names it."""
    for seed in range(scaled(6, 500)):
        play(seed, (fault,))
        play(seed, (fault, "crash"), has_witness=False)
