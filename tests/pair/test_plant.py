"""A plant with two gateways under named faults, with the product's own parts: schedules, and broken parts that the
checkers find."""

import gc
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from agent.fact_store.append import acks
from agent.health.consumer_lag import PullLag
from agent.ingest import Ingest
from agent.ingest.supervision import supervisor
from agent.ingest.supervision.outages import Outages
from agent.message import SampleRank
from agent.pair import Leadership
from agent.query.latest.latest_search import LatestValue
from tests.pair.plant import FAULTS, PlantWorld
from tests.replication.simulation.broken import NeverRetries
from tests.replication.simulation.checkers import Violation
from tests.replication.simulation.faults import table
from tests.sim import first_seed, patient, scaled

pytestmark = pytest.mark.usefixtures("quiet")
SCHEDULES = scaled(2, 3_000)
COLLECT_EVERY = 25
BROKEN_SEEDS = 20


@patient
def test_two_gateways_keep_their_promises(memory: Path) -> None:
    """Whatever fails, with one disk lost or both put back to copies: no message that a quorum has is lost, no term is
    taken twice, one gateway leads soon after the faults and stays, each number of the device is stored or a gap fact
    covers its time, of doubled samples that of the higher life counts, and all stores converge."""
    first, injected, doubled = first_seed(), Counter[str](), 0
    for seed in range(first, first + SCHEDULES):
        world = PlantWorld(seed, memory / str(seed))
        try:
            world.run()
        except Violation as error:
            error.add_note(f"SEED={seed}")
            raise
        injected += world.injected
        doubled += world.check.doubled
        if seed % COLLECT_EVERY == 0:
            gc.collect()
    print("injected:", table(injected), f"doubled samples: {doubled}", sep="\n")
    assert len(FAULTS) > SCHEDULES or set(FAULTS) <= set(injected), "some fault never bit"


def _same_term(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Leadership, "_own_term", lambda self: max(self._condition.least_term, self.highest_term))


def _deaf(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Leadership, "_step_recording", lambda *_: None)


def _restless(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Leadership, "_must_release", lambda _, now_ns: now_ns // 10**9 % 5 == 0)


def _hasty_quorum(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(acks, "_reached", lambda *_: 2**60)


def _no_gap(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(supervisor, "led_until", lambda *_, **__: None)


def _loss_forgotten(patch: pytest.MonkeyPatch) -> None:
    async def finish(*_: object) -> None:
        """Records nothing."""

    patch.setattr(Outages, "finish_life", finish)


def _boastful(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Ingest, "gaps_stored", lambda self: self._is_recording)


def _credulous(patch: pytest.MonkeyPatch) -> None:
    def note_level(self: Leadership, level_ns: int) -> None:
        self.complete_ns = level_ns

    patch.setattr(Leadership, "note_level", note_level)


def _always_level(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(PullLag, "unseen_s", lambda *_: 0.0)


def _latest_by_arrival(patch: pytest.MonkeyPatch) -> None:
    rank = property(lambda self: SampleRank(self.source_time_ns, bytes(16), self.arrival.offset))
    patch.setattr(LatestValue, "rank", rank)


def _impatient(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(PlantWorld, "receiver_class", NeverRetries)


@pytest.mark.parametrize(
    "breaks, found, names, seed",
    [
        (_same_term, "term", ("split brain",), 0),
        (_deaf, "leader", ("split brain",), 0),
        (_restless, "leader", ("partition",), 13),
        (_hasty_quorum, "quorum", ("alone and dead",), 0),
        (_no_gap, "hole", ("crash",), 4),
        (_loss_forgotten, "hole", ("device away",), 2),
        (_always_level, "hole", ("late and dead",), 3),
        (_credulous, "hole", ("late at begin",), 10),
        (_boastful, "hole", ("late at begin",), 10),
        (_latest_by_arrival, "latest", ("split brain",), 2),
        (_impatient, "converges", ("one way",), 0),
    ],
)
def test_checkers_find_broken_parts(
    breaks: Callable[[pytest.MonkeyPatch], None],
    found: str,
    names: tuple[str, ...],
    seed: int,
    memory: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each promise is broken by a part with one defect, and found within so many schedules from a seed that shows it
    now; a checker that cannot fail proves nothing."""
    breaks(monkeypatch)
    for number in range(seed, seed + BROKEN_SEEDS):
        try:
            PlantWorld(number, memory / str(number), names).run()
        except Violation as error:
            assert str(error).startswith(f"{found}: ")  # noqa: PT017 - the last one of several
            return
    pytest.fail("no schedule shows it")
