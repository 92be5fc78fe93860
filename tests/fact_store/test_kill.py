"""kill -9 at random moments, again and again, on one growing store: what was acknowledged is there, once, in a whole chain.

This proves recovery, not durability: the page cache survives a killed process. That commits reach the disk rests on
synchronous=FULL, which test_opening reads back.
"""

import contextlib
import random
import subprocess
import sys
from pathlib import Path

import pytest

from agent import batch
from agent.fact_store import FactStore
from tests.fact_store.killed import CONSUMER, RUN
from tests.fact_store.making import OPERATIONAL, TELEMETRY, chain_is_whole, ids_in, plant, sealed_in, values_in
from tests.sim import first_seed, scaled

ROOT = Path(__file__).parents[2]
ROUNDS = scaled(50, 500)
AT_START_EVERY = 5  # so many rounds are killed while they open or create the store


def run_and_kill(path: Path, rng: random.Random, next_numbers: list[int], *, at_start: bool) -> dict[str, int]:
    """The last number acknowledged of each kind before a process was killed at a random moment."""
    command = [sys.executable, "-m", "tests.fact_store.killed", str(path), *map(str, next_numbers)]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        acknowledged = b"" if at_start else process.stdout.readline()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(rng.uniform(0, 0.4 if at_start else 0.15))
            raise AssertionError(f"ended by itself with {process.returncode}")
        process.kill()
        acknowledged += process.stdout.read()
    last = dict.fromkeys("SMPCO", 0)
    for line in acknowledged.decode().splitlines():
        kind, number = line.split()
        last[kind] = max(last[kind], int(number))
    return last


def check(store: FactStore, last: dict[str, int]) -> None:
    """Everything acknowledged is there; nothing is there twice, half, or out of order."""
    chain_is_whole(store)
    values = values_in(store)
    assert values == list(range(1, len(values) + 1))
    assert len(values) % RUN == 0, "an append is stored whole or not at all"
    assert len(values) >= last["S"]
    ids = ids_in(store)
    assert ids == [f"id-{n}" for n in range(1, len(ids) + 1)]
    assert len(ids) >= last["M"]
    batches = [batch.parse(one) for one in sealed_in(store, "facts.north")]
    assert len(batches) >= last["P"]
    position = store.peer_position("north", "facts.north")
    assert (position.offset if position else 0) == len(batches), "facts and position are one transaction"
    consumer = store.consumer(CONSUMER)
    assert (consumer.frontier if consumer else 0) >= last["C"]


@pytest.mark.sim
def test_kill_at_random_moments(tmp_path: Path) -> None:
    """Invariant 2: each acknowledged append survives a kill, at whatever moment, of a process that appends, receives, and
    confirms in four threads; the store opens by itself each time and goes on where it was."""
    rng = random.Random(first_seed())
    path = tmp_path / "facts.db"
    next_numbers = [1, 1, 1]
    acknowledged = 0
    for round_number in range(ROUNDS):
        last = run_and_kill(path, rng, next_numbers, at_start=round_number % AT_START_EVERY == 0)
        acknowledged += sum(last[kind] > 0 for kind in "SMP")
        with plant(tmp_path) as store:
            check(store, last)
            samples_stored, batches_stored = len(values_in(store)), len(sealed_in(store, "facts.north"))
            next_numbers = [samples_stored + 1, len(ids_in(store, OPERATIONAL)) + 1, batches_stored + 1]
            assert store.end_offset(TELEMETRY) == samples_stored
    assert acknowledged > ROUNDS, "the rounds were too short to prove anything"
