"""A migration that is killed or loses its power at any moment: nothing acknowledged is lost, each step is there whole
or not at all, and the second try ends with all of them.

Seen to catch, with the product broken on purpose: steps taken outside of a transaction.
"""

import random
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from agent.fact_store import FactStore, migrate_store
from agent.fact_store.log.errors import StoreError
from agent.fact_store.sqlite import migrations
from agent.fact_store.sqlite.connection import connect
from tests.fact_store.durability.migrated import NEWER
from tests.fact_store.durability.power import crashes, record, require_strace
from tests.fact_store.durability.promises import Promises, broken
from tests.fact_store.making import IN_MEMORY
from tests.sim import first_seed, patient, scaled

ROOT = Path(__file__).parents[3]
PROGRAM = (sys.executable, "-m", "tests.fact_store.durability.migrated")
STATES = scaled(60, 20_000)
STATES_OF_A_RECORDING = 5_000


@pytest.fixture(autouse=True)
def newer(monkeypatch: pytest.MonkeyPatch) -> None:
    """This process is the newer program."""
    monkeypatch.setattr(migrations, "FILES", NEWER)


def second_try(path: Path, promises: Promises, *, by_command: bool) -> Iterator[str]:
    """What is wrong with an interrupted store after the newer program has migrated it again."""
    before = steps_in(path)
    if before not in [[step.stem for step in NEWER[:taken]] for taken in range(1, len(NEWER) + 1)]:
        yield f"wrong: the steps {before} are no beginning of those there are"
    try:
        if by_command:
            migrate_store(path)
        with FactStore.open(path, "plant", settings=IN_MEMORY, unattended=True) as store:
            yield from broken(store, promises)
            yield from (f"wrong: {one.kind} {one.subject}: {one.detail}" for one in store.incidents())
    except StoreError as error:
        yield f"wrong: cannot be opened: {error}"
        return
    with closing(connect(f"{path.as_uri()}?mode=ro")) as connection:
        if migrations.applied(connection) != [step.stem for step in NEWER]:
            yield "wrong: steps are missing"
        if connection.execute("SELECT count(*) FROM batch_size").fetchone() == (0,):
            yield "wrong: the second step found no batch"
        if (answer := connection.execute("PRAGMA integrity_check").fetchone()[0]) != "ok":
            yield f"wrong: integrity_check says {answer}"


def steps_in(path: Path) -> list[str]:
    """The steps that an interrupted store has taken, and that what they made is whole."""
    with closing(connect(f"{path.as_uri()}?mode=ro")) as connection:
        found = migrations.applied(connection)
        tables = {name for (name,) in connection.execute("SELECT name FROM sqlite_schema")}
        columns = {row[1] for row in connection.execute("PRAGMA table_info(stream)")}
    has_second, has_third = "0002_test_sizes" in found, "0003_test_times" in found
    assert ("batch_size" in tables, "note" in columns, "batch_by_time" in tables) == (has_second, has_second, has_third)
    return found


@patient
def test_a_migration_survives_a_power_cut(tmp_path: Path, memory: Path) -> None:
    """From each disk that a power cut during a migration could leave, after an orderly end of the older program and
    after a kill: the facts are there, and the migration is repeated, by `bsfg store migrate` or by the node itself."""
    require_strace(tmp_path)
    seed, found, taken = first_seed(), Counter[str](), Counter[int]()
    path = memory / "facts.db"
    while found.total() < STATES:
        for end in ("closed", "killed"):
            store = tmp_path / f"{end}{found.total()}" / "facts.db"
            store.parent.mkdir()
            log = tmp_path / "log"
            record((*PROGRAM, "record", str(store), str(seed + found.total()), end), ROOT, log)
            states = min(STATES // 2, STATES_OF_A_RECORDING)
            for crash in crashes(log, store, states, random.Random(seed), since=b"G begins"):
                crash.lay_out(path)
                promises = Promises()
                promises.hear(crash.said)
                taken[len(steps_in(path))] += 1
                wrong = list(second_try(path, promises, by_command=found.total() % 2 == 0))
                assert not wrong, f"seed {seed}, {end}, moment {crash.moment}, {crash.kind}: {wrong}"
                found[end] += 1
    print(f"{found.total()} disks, none lost anything; by steps that were on the disk: {dict(sorted(taken.items()))}")
    assert set(taken) == {1, 2, 3}, "power cuts before, between and after the steps"


@pytest.mark.parametrize("how", ["command", pytest.param("node", marks=pytest.mark.system)])
def test_a_migration_survives_a_kill_at_each_statement(memory: Path, how: str) -> None:
    """kill -9 before each statement of the migration, those that begin and commit included, of a store whose last life
    was killed too."""
    command = (*PROGRAM, "kill", str(memory), how)
    said = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, check=True, timeout=300).stdout
    promises, taken = Promises(), Counter[int]()
    promises.hear(said)
    folders = sorted(int(one.name) for one in memory.iterdir() if one.name.isdigit())
    for number in folders:
        path = memory / str(number) / "facts.db"
        taken[len(steps_in(path))] += 1
        wrong = list(second_try(path, promises, by_command=how == "command"))
        assert not wrong, f"statement {number}: {wrong}"
    print(f"{len(folders)} kills, by steps that were taken: {dict(sorted(taken.items()))}")
    assert set(taken) == {1, 2, 3}, "kills before, between and after the steps"
