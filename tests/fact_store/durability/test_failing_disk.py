"""A disk that fails or is full at every single operation in turn, once or for ever: what was acknowledged is there,
what was refused is not, the store says which of the two it is, and the file opens again whole.

One life of a store is lived again and again, from its making to its closing, through a VFS that counts writes, syncs,
truncations and removals (faulty_disk.py) and fails the next one each time. A sample is repeated on the unmodified
program, where strace makes the kernel's calls fail.

Seen to catch, with the product broken on purpose: an answer before the commit, a catalog kept after a rollback, a
failed sync called lack of space (and so tried again), a failing disk called damage.
"""

import copy
import shutil
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from contextlib import closing
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from agent.errors import StoreFull
from agent.fact_store import FactStore
from agent.fact_store.core.errors import StoreDamaged, StoreFailed, StoreUnusable
from agent.fact_store.sqlite.connection import connect
from agent.positions import Position
from tests.fact_store.durability.faulty_disk import FaultyDisk, the_disk
from tests.fact_store.durability.power import require_strace
from tests.fact_store.durability.promises import NORTH, RUN, STREAMS, Promises, broken, origin_of_north
from tests.fact_store.making import (
    IN_MEMORY,
    LIFE,
    LIMIT_S,
    OPERATIONAL,
    TELEMETRY,
    done,
    message,
    parsed,
    samples,
    tag,
)
from tests.sim import IS_LONG, patient
from tests.support.received import put_page

ROOT = Path(__file__).parents[3]
CONSUMER = "idmz.facts.telemetry"
# Checkpoints and truncations of the log within one short life.
OFTEN: dict[str, str | int] = {"wal_autocheckpoint": 12, "journal_size_limit": 32_768}
Step = tuple[tuple[object, ...], Callable[[FactStore], Future[Any]]]


@pytest.fixture
def disk() -> FaultyDisk:
    """The disk, without an armed failure."""
    if (found := the_disk()) is None:
        pytest.skip("this interpreter's sqlite3 hides its SQLite; Debian's python3 does not")
    found.arm(0, for_ever=False, full=False)
    return found


def steps() -> Iterator[Step]:
    """The calls of a store's life, each with its acknowledgement."""
    north, batches = origin_of_north(), 0

    def append(first: int, runs: int) -> Step:
        return ("S", first + runs * RUN - 1), lambda store: store.appends.append_samples(
            TELEMETRY, samples(runs * RUN, first)
        )

    def put(count: int) -> Step:
        nonlocal batches
        page, batches = [*north.sealed[-1:], *(north.seal(RUN) for _ in range(count))], batches + count
        position = Position(LIFE, batches)
        return ("P", batches), lambda store: put_page(store, "north", NORTH, parsed(page), north.received(), position)

    def confirm(first: int, last: int, frontier: int) -> Step:
        return ("C", CONSUMER, first, last, frontier), lambda store: store.consumers.confirm(CONSUMER, last, first)

    def tell(number: int) -> Step:
        return ("M", number), lambda store: store.appends.append_message(OPERATIONAL, message(f"id-{number}"))

    yield ("D", 1), lambda store: store.appends.define([tag(1)])
    yield append(1, 1)
    yield ("R", CONSUMER), lambda store: store.consumers.register(CONSUMER, "idmz", TELEMETRY)
    yield confirm(3, 5, 0)
    yield put(2)
    yield tell(1)
    yield append(6, 200)
    yield confirm(1, 2, 5)
    yield put(1)
    yield tell(2)
    yield ("D", 2), lambda store: store.appends.define([tag(1), tag(2)])
    yield append(1006, 1)
    yield confirm(1, 1010, 1010)


def live(path: Path, disk: FaultyDisk, promises: Promises, asked: Iterable[Step]) -> str:
    """One life; returns how it ended: `closed`, `failed`, `full`, or `not opened`."""
    try:
        store = FactStore.open(path, "plant", settings=IN_MEMORY, streams=STREAMS, connect_to=disk.connect(OFTEN))
    except StoreUnusable as error:
        damage = error if isinstance(error, StoreDamaged) else None
        assert damage is None, "nothing is damaged; a whole store must not be set aside"
        return "not opened"
    with store:
        for words, ask in asked:
            for _ in range(3):
                future = ask(store)
                error = future.exception(LIMIT_S)
                if not isinstance(error, StoreFull):
                    break
                assert (disk.is_full, disk.last) == (True, "write"), "only lack of space may be tried again"
            if error is None:
                promises.hear(" ".join(map(str, words)).encode())
                continue
            assert broken(store, promises) == [], "what is there must be served while the disk fails"
            if isinstance(error, StoreFull):
                assert store.failure is None, "lack of space passes"
                return "full"
            assert isinstance(error, StoreFailed), repr(error)
            assert isinstance(store.failure, StoreFailed)
            assert isinstance(store.ended.exception(LIMIT_S), StoreFailed)
            with pytest.raises(StoreFailed):
                ask(store)
            return "failed"
    return "closed"


def check(path: Path, promises: Promises) -> None:
    """On a disk that works again the store opens by itself, keeps every promise, and goes on."""
    with FactStore.open(path, "plant", settings=IN_MEMORY) as store:
        found = broken(store, promises)
        assert not found, found
        done(store.appends.define([tag(1)]))
        end_offset = store.end_offset(TELEMETRY)
        assert done(store.appends.append_samples(TELEMETRY, samples(RUN))).last_offset == end_offset + RUN
    with closing(connect(f"{path.as_uri()}?mode=ro")) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchone()[0] == "ok"


def killed_in_the_middle(folder: Path, disk: FaultyDisk) -> tuple[Promises, list[Step]]:
    """The files that a kill leaves, with much in the log that no checkpoint has taken, and their promises."""
    folder.mkdir()
    all_steps, promises = list(steps()), Promises()
    half = len(all_steps) // 2
    with FactStore.open(
        folder / "living.db", "plant", settings=IN_MEMORY, streams=STREAMS, connect_to=disk.connect({})
    ) as store:
        for words, ask in all_steps[:half]:
            done(ask(store))
            promises.hear(" ".join(map(str, words)).encode())
        for ending in ("", "-wal"):
            shutil.copy(folder / f"living.db{ending}", folder / f"facts.db{ending}")
    for left in folder.glob("living.db*"):
        left.unlink()
    return promises, all_steps[half:]


@patient
@pytest.mark.parametrize("full", [False, True], ids=["EIO", "ENOSPC"])
@pytest.mark.parametrize("for_ever", [False, True], ids=["once", "for_ever"])
@pytest.mark.parametrize("begin", ["new", "killed"])
def test_each_disk_operation_fails_in_turn(
    memory: Path, disk: FaultyDisk, begin: str, *, full: bool, for_ever: bool
) -> None:
    """Whichever write, sync, truncation or removal fails, of a store's first life or of the one after a kill: see the
    module. Every index, until a life meets no fault any more: in the long run each in all four ways, in the short one
    in one of them."""
    first, stride = (1, 1) if IS_LONG else (1 + 2 * full + for_ever, 4)
    began, ends, struck = time.monotonic(), Counter[str](), Counter[str]()
    disk.arm(0, for_ever=False, full=False)
    template = memory / "template"
    known, asked = killed_in_the_middle(template, disk) if begin == "killed" else (Promises(), list(steps()))
    for at in count(first, stride):
        path = memory / str(at) / "facts.db"
        shutil.copytree(template, path.parent) if begin == "killed" else path.parent.mkdir()
        promises = copy.deepcopy(known)
        disk.arm(at, for_ever=for_ever, full=full)
        end = live(path, disk, promises, asked)
        what = disk.struck
        disk.arm(0, for_ever=False, full=False)
        if not what:
            assert end == "closed"
            break
        if full and not for_ever and what == "write":
            assert end in {"closed", "not opened"}, "a moment without space must cost nothing but a refusal"
        check(path, promises)
        ends[end] += 1
        struck[what] += 1
        shutil.rmtree(path.parent)
    print(f"{ends.total()} operations in {time.monotonic() - began:.1f} s: {dict(struck)}, ended {dict(ends)}")
    assert ends.total() > 80 // stride
    assert {"write", "sync", *(["truncate", "delete"] if IS_LONG else [])} <= set(struck)


# strace counts each thread's calls apart: these meet the opening, the writer's thread, or both.
INJECTED = (
    *(("pwrite64", error, when) for error in ("EIO", "ENOSPC") for when in ("30", "150", "150+", "220")),
    *(("fdatasync", "EIO", when) for when in ("3", "8", "15", "15+")),
    ("ftruncate", "EIO", "1+"),
    ("unlink", "EIO", "4+"),
)


@pytest.mark.parametrize("call, error, when", INJECTED)
def test_the_kernel_fails_a_call(tmp_path: Path, call: str, error: str, when: str) -> None:
    """The unmodified program under strace: the kernel refuses the n-th call, from `n+` on each."""
    require_strace()
    path = tmp_path / "facts.db"
    inject = (
        "-f",
        "--seccomp-bpf",
        "-o",
        "/dev/null",
        "-e",
        f"trace={call}",
        "-e",
        f"inject={call}:error={error}:when={when}",
    )
    program = (sys.executable, "-m", "tests.fact_store.durability.recorded", str(path), "7", "40")
    ran = subprocess.run(["strace", *inject, *program], cwd=ROOT, capture_output=True, check=False)
    assert ran.returncode == 0, ran.stderr.decode()[-2000:]
    promises = Promises()
    promises.hear(ran.stdout)
    print(f"{promises.count} answers, then {promises.errors}")
    assert set(promises.errors) <= {"StoreFailed", "StoreFull", "StoreUnusable"}, "nothing is damaged"
    check(path, promises)
