"""Zones in simulation with real stores: chains, the diamond, plants into one zone, both directions and a ring, under
every named fault."""

import gc
import time
from collections import Counter
from pathlib import Path

import pytest

from tests.replication.simulation.checkers import Violation
from tests.replication.simulation.faults import COMBINED, NAMED, table
from tests.replication.simulation.network import TOPOLOGIES, World
from tests.sim import first_seed, patient, scaled

pytestmark = pytest.mark.usefixtures("quiet")
PAIRS = [(topology, fault) for topology in TOPOLOGIES for fault in NAMED]
FOUND = [
    # the batch that a reader had read lay at other offsets after the memory was put back: a standstill
    ("site", "resumed_memory", 65723917),
    # the same, where another batch ended at the position: facts before it were skipped
    ("both_ways", "resumed_memory", 65723918),
    # a node of a pair seals notices of its own in the life that divides: the checker excused the plant's zone only
    ("pair", "resumed_memory", 234),
]
"""Schedules that once broke a promise, with what broke it. A change of the product may make another schedule of the
seed, so each also has a test where it was mended."""
COLLECT_EVERY = 100
SCHEDULES = scaled(len(PAIRS) // 3, 10_000)
SEED_STEP = scaled(3, 1)
"""In `make test` each fault meets a third of the topologies."""


def world_of(seed: int, folder: Path) -> tuple[str, str, World]:
    """Topology, faults and world of a seed, which determines them, so that it can be replayed alone."""
    topology, fault = PAIRS[seed % len(PAIRS)]
    return topology, fault, World(seed, TOPOLOGIES[topology], NAMED[fault], folder / str(seed))


@patient
def test_networks_keep_their_promises(memory: Path) -> None:
    """Under every topology and fault: nothing acknowledged is lost, nothing is stored twice or out of order, frontiers
    and chains are intact, gaps are reported, and everything converges once the faults stop."""
    first = first_seed()
    started_by_hand = 0
    injected, schedules, seconds = Counter[str](), Counter[str](), Counter[str]()
    for seed in range(first, first + SCHEDULES * SEED_STEP, SEED_STEP):
        topology, fault, world = world_of(seed, memory)
        begun_s = time.process_time()
        try:
            world.run()
        except Violation as error:
            error.add_note(f"{topology} under {fault}, SEED={seed}")
            raise
        if seed % COLLECT_EVERY == 0:
            gc.collect()
        schedules[topology] += 1
        seconds[topology] += time.process_time() - begun_s  # type: ignore[assignment]  # a sum like any other
        injected += world.injected
        started_by_hand += world.started_by_hand
        assert world.check.acknowledged
    print("schedules and how many a second of CPU:")
    for name, count in schedules.items():
        print(f"  {name:<10} {count:>6,}  {count / seconds[name]:6.1f}")
    print(f"  {'all':<10} {schedules.total():>6,}  {schedules.total() / seconds.total():6.1f}")
    print("injected:", table(injected), sep="\n")
    print(f"receivers fenced by a late request of an earlier life, and started again: {started_by_hand}")
    assert set(NAMED) - COMBINED - {"none"} <= set(injected), "some fault never bit"


@pytest.mark.parametrize("topology, fault, seed", FOUND)
def test_schedules_that_once_failed_pass(topology: str, fault: str, seed: int, memory: Path) -> None:
    """Schedules that once stood still or stored facts twice converge."""
    World(seed, TOPOLOGIES[topology], NAMED[fault], memory / str(seed)).run()


def test_the_same_seed_runs_the_same_schedule(memory: Path) -> None:
    """The same seed runs the same events and injects the same faults, so that a failure can be replayed."""
    runs = []
    for _ in range(2):
        _, _, world = world_of(len(PAIRS) - 1, memory)
        world.run()
        sealed = [row.key for log in world.check.logs.values() for row in log.rows]
        runs.append((world.events, world.now_ms, world.injected, sealed))
    assert runs[0] == runs[1]
