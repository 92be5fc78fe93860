"""kill -9 at random moments, again and again, on one growing store: what was acknowledged is there, once, in a whole
chain.

This proves recovery, not durability: the page cache survives a killed process. That commits reach the disk is proven by
test_power_cut.py.

Seen to catch, with the product broken on purpose: an answer before the commit, a peer's position committed before its
batches.
"""

import contextlib
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Literal

import pytest

from agent.append_contract import AppendOutcome
from agent.fact_store import FactStore
from tests.fact_store.durability.promises import Promises, broken
from tests.fact_store.making import AT_ONCE, OPERATIONAL, chain_is_whole, done, ids_in, message, plant
from tests.sim import first_seed, patient, scaled

ROOT = Path(__file__).parents[3]
ROUNDS = scaled(11, 500)
AT_START_EVERY = 5  # so many rounds are killed while they open or create the store
FRESH_EVERY = 50  # so many rounds begin a new store: checking takes longer the more it holds


def run_and_kill(path: Path, rng: random.Random, promises: Promises, *, at_start: bool) -> None:
    """Everything that a process said before it was killed at a random moment."""
    command = [sys.executable, "-m", "tests.fact_store.durability.killed", str(path)]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        said = b"" if at_start else process.stdout.readline()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(rng.uniform(0, 0.4 if at_start else 0.15))
            raise AssertionError(f"ended by itself with {process.returncode}")
        process.kill()
        said += process.stdout.read()
        complaints = process.stderr.read().decode()
    assert not complaints, complaints
    promises.hear(said)


@patient
def test_invariant_2_acknowledged_facts_survive_a_kill(tmp_path: Path) -> None:
    """Each acknowledged append, page, definition and confirmation survives a kill, at whatever moment, of a process
    that does all of it in threads; the store opens by itself each time, goes on where it was, and reports nothing."""
    rng, reopened_s, promises = random.Random(first_seed()), list[float](), Promises()
    answers = round_number = 0
    while round_number < ROUNDS or answers <= 10 * ROUNDS:
        assert round_number < 5 * ROUNDS, f"{answers} answers: the rounds were too short to prove anything"
        path = tmp_path / f"{round_number // FRESH_EVERY}.db"
        if round_number % FRESH_EVERY == 0:
            promises = Promises()
        before = promises.count
        run_and_kill(path, rng, promises, at_start=round_number % AT_START_EVERY == 0)
        answers += promises.count - before
        began = time.monotonic()
        with FactStore.open(path, "plant", settings=AT_ONCE, unattended=True) as store:
            reopened_s.append(time.monotonic() - began)
            found = broken(store, promises) + [incident.detail for incident in store.reader.incidents()]
            assert not found, f"round {round_number}: {found}"
        round_number += 1
    reopened_s.sort()
    figures = ", ".join(f"p{p} {1000 * reopened_s[int(len(reopened_s) * p / 100 - 0.01)]:.1f} ms" for p in (50, 99))
    print(f"{round_number} kills, {answers} answers, nothing lost; opened again in {figures}")
    assert min(promises.samples, promises.messages, promises.batches, promises.definitions, len(promises.confirmed)) > 0


LOST_ANSWER = """
import os, signal, sys
from pathlib import Path
from agent.fact_store import FactStore
from agent.fact_store.writer import committer, writer
from agent.append_contract import Precondition
from tests.fact_store.making import AT_ONCE, OPERATIONAL, message
store = FactStore.open(Path(sys.argv[1]), "plant")
kill = lambda *_, **__: os.kill(os.getpid(), signal.SIGKILL)
if sys.argv[2] == "after the commit":
    writer.Writer._answer = kill
else:
    perform = committer.Committer._perform
    committer.Committer._perform = lambda *given: (perform(*given), kill())
store.appends.append_message(OPERATIONAL, message("a"), precondition=Precondition("mes", 4)).result()
"""


@pytest.mark.parametrize(
    "moment, outcome", [("before the commit", "applied"), ("after the commit", "noop_already_applied")]
)
def test_a_retry_after_a_lost_answer_leaves_one_copy(
    tmp_path: Path, moment: str, outcome: Literal["applied", "noop_already_applied"]
) -> None:
    """Invariants 3 and 12: a node is killed around the commit of an append and its answer is lost. The retry gets the
    outcome, there is one copy, and the lease shown with it is as durable as the message."""
    with plant(tmp_path):
        pass
    command = [sys.executable, "-c", LOST_ANSWER, str(tmp_path / "facts.db"), moment]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, check=False)
    assert ended.returncode == -signal.SIGKILL, ended.stderr.decode()
    with plant(tmp_path) as store:
        assert done(store.appends.append_message(OPERATIONAL, message("a"))) == AppendOutcome(1, outcome)
        assert ids_in(store) == ["a"]
        assert done(store.appends.acquire_lease(OPERATIONAL, "mes")) == (1 if moment == "before the commit" else 5)
        chain_is_whole(store)
