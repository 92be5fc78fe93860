"""Power cuts, made of recorded writes: whatever part of what was not yet synced is on the disk, nothing acknowledged is
lost.

kill -9 cannot prove this, for the page cache survives it. Here the calls of a real interpreter with the real store are
recorded (strace), and after each of them disks are built that a power cut could have left: see power.py.

Seen to catch, with the product broken on purpose: an answer before the commit, a peer's position committed before its
batches, a confirmed range that is not written, and synchronous=NORMAL.
"""

import random
import shutil
import sys
import time
from collections import Counter
from contextlib import closing
from pathlib import Path

from agent.errors import StoreError
from agent.fact_store import FactStore
from agent.fact_store.sqlite.connection import connect
from tests.fact_store.durability.power import KINDS, Crash, crashes, record, require_strace
from tests.fact_store.durability.promises import Promises, broken
from tests.fact_store.making import IN_MEMORY
from tests.sim import first_seed, patient, scaled

ROOT = Path(__file__).parents[3]
STATES = scaled(400, 100_000)
TURNS = 60
STATES_OF_A_RECORDING = 10_000


def recording(folder: Path, seed: int, *how: str) -> tuple[Path, Path]:
    """The log of a recorded writer, and where its store was."""
    store = folder / "recorded" / "facts.db"
    shutil.rmtree(store.parent, ignore_errors=True)
    store.parent.mkdir()
    log = folder / "log"
    command = (sys.executable, "-m", "tests.fact_store.durability.recorded", str(store), str(seed), str(TURNS), *how)
    record(command, ROOT, log)
    return log, store


def alarms(store: FactStore) -> list[str]:
    """What an opening has reported; a power cut that damaged nothing must not be reported."""
    return [f"wrong: {incident.kind} {incident.subject}: {incident.detail}" for incident in store.reader.incidents()]


def check(crash: Crash, folder: Path) -> list[str]:
    """What is wrong with the store that opens from a disk."""
    path = folder / "facts.db"
    crash.lay_out(path)
    promises = Promises()
    promises.hear(crash.said)
    try:
        with FactStore.open(path, "plant", settings=IN_MEMORY, unattended=True) as store:
            found = broken(store, promises) + alarms(store)
    except StoreError as error:
        return [f"wrong: cannot be opened: {error}"]
    with closing(connect(f"{path.as_uri()}?mode=ro")) as connection:
        answer = connection.execute("PRAGMA integrity_check").fetchone()[0]
    return found if answer == "ok" else [*found, f"wrong: integrity_check says {answer}"]


@patient
def test_invariant_2_acknowledged_facts_survive_a_power_cut(tmp_path: Path, memory: Path) -> None:
    """Nothing acknowledged is missing from any disk a power cut could leave: facts, messages, received pages with their
    position, definitions, confirmed ranges and frontiers; nothing is there twice or half; each store opens by
    itself, in the same life, and without an incident."""
    require_strace()
    seed, began, kinds = first_seed(), time.monotonic(), Counter[str]()
    while (left := STATES - kinds.total()) > 0:
        log, store = recording(tmp_path, seed + kinds.total())
        for crash in crashes(log, store, min(left, STATES_OF_A_RECORDING), random.Random(seed)):
            found = check(crash, memory)
            assert not found, f"seed {seed}, moment {crash.moment}, {crash.kind}: {found}"
            kinds[crash.kind] += 1
    seconds = time.monotonic() - began
    print(
        f"{kinds.total()} disks in {seconds:.1f} s, {kinds.total() / seconds:.0f}/s, none lost anything: {dict(kinds)}"
    )
    assert min(kinds[kind] for kind in KINDS) > STATES / 200, "every kind of power cut must have happened"


def test_the_power_cut_distinguishes_synchronous_full_from_normal(tmp_path: Path, memory: Path) -> None:
    """With synchronous=NORMAL the same disks lose acknowledged facts, and the check finds it."""
    require_strace()
    log, store = recording(tmp_path, 1, "normal")
    states = lost = 0
    for crash in crashes(log, store, 200, random.Random(1)):
        states += 1
        lost += any(text.startswith("lost: ") for text in check(crash, memory))
    print(f"{lost} of {states} disks lost something with NORMAL")
    assert lost > states / 4
