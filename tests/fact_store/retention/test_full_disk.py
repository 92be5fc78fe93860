"""A full disk costs no acknowledged fact; the ballast lets a store be opened there."""

import contextlib
import errno
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from agent.errors import StoreFull
from agent.fact_store import FactStore, StoreReader
from agent.fact_store.core.errors import StoreUnusable
from agent.fact_store.retention.ballast import Ballast
from agent.fact_store.sqlite.connection import OPENING_BYTES
from agent.settings.store import StoreSettings
from tests.fact_store.durability.faults import Faults, full_error
from tests.fact_store.durability.promises import RUN, Promises, broken, number_of
from tests.fact_store.filled import CONSUMER, SETTINGS, noise
from tests.fact_store.making import LIMIT_S, OPERATIONAL, TELEMETRY, done, failed, message, samples, tag, values_in
from tests.waiting import wait_until

ROOT = Path(__file__).parents[3]
WITHOUT_BALLAST = StoreSettings(commit_interval_ms=0, ballast_bytes=0, disk_free_bytes_min=0)
SIZE = 256 * 1024
PLENTY = 2**40


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of eight megabytes."""
    if os.geteuid() != 0:
        pytest.skip("mounting a tmpfs needs root")
    folder = tmp_path / "disk"
    folder.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=8m", "bsfg-test", folder], capture_output=True, text=True, check=False
    )
    if mounted.returncode:
        pytest.skip(f"mounting a tmpfs is forbidden here: {mounted.stderr.strip()}")
    yield folder
    subprocess.run(["umount", "--lazy", folder], check=True)


def fill(other: Path, bytes_max: int = 2**40) -> None:
    """Take so many bytes of the disk, or all that is left, as another program would."""
    with other.open("ab", buffering=0) as file, contextlib.suppress(OSError):
        for _ in range(bytes_max // 4096):
            file.write(bytes(4096))


def listen(process: subprocess.Popen[bytes], promises: Promises, refusals: int) -> None:
    """Read the output of a process until it was refused this many times."""
    assert process.stdout is not None
    wanted = len(promises.errors) + refusals
    while len(promises.errors) < wanted:
        line = process.stdout.readline()
        assert line, f"ended by itself with {process.wait(LIMIT_S)}"
        promises.hear(line)


def refused(store: FactStore, end_offset: int) -> BaseException | None:
    """Why the next samples were refused; None where they were stored."""
    try:
        return store.appends.append_samples(TELEMETRY, noise(end_offset + 1)).exception(LIMIT_S)
    except StoreFull as error:  # already when they were handed over
        return error


@pytest.mark.parametrize("begin", ["new", "quarantined", "log lost"])
def test_opening_needs_no_more_room_than_it_says(small_disk: Path, begin: str) -> None:
    """With exactly the stated room a store opens and stores facts, also where it has to create a new file. With less a
    new store is refused with that figure, and no file is made."""
    path, other = small_disk / "facts.db", small_disk / "other"
    if begin != "new":
        with FactStore.open(path, "plant", settings=WITHOUT_BALLAST, unattended=True) as store:
            done(store.appends.append_message(OPERATIONAL, message("before")))
            for part in ("", "-wal"):
                shutil.copy(f"{path}{part}", f"{path}{part}.copy")
        for part in ("", "-wal"):
            Path(f"{path}{part}.copy").replace(f"{path}{part}")
        Path(f"{path}-wal").unlink()
    if begin == "quarantined":
        path.write_bytes(b"no database" * 1000)
    fill(other, os.statvfs(small_disk).f_bavail * 4096 - OPENING_BYTES - 4096)  # and the lock's file
    assert os.statvfs(small_disk).f_bavail * 4096 == OPENING_BYTES + 4096
    if begin == "new":
        fill(small_disk / "more", 8192)
        with pytest.raises(StoreUnusable, match=r"bytes free, too few for a new store; .* may need 1,048,576 bytes"):
            FactStore.open(path, "plant", settings=WITHOUT_BALLAST, unattended=True)
        assert not path.exists()
        (small_disk / "more").unlink()
    with FactStore.open(path, "plant", settings=WITHOUT_BALLAST, unattended=True) as store:
        done(store.appends.append_message(OPERATIONAL, message("after")))
        assert {told.kind for told in store.reader.incidents()} == {"new": set(), "quarantined": {"quarantined"}}.get(
            begin, {"log_lost"}
        )


def test_a_full_disk_costs_no_acknowledged_fact(small_disk: Path) -> None:
    """Every acknowledged fact is served on the full disk, after a kill, and when space returns (see the module)."""
    path, others, promises = small_disk / "facts.db", (small_disk / "large", small_disk / "last"), Promises()
    fill(others[0], 4 * 1024 * 1024)
    command = [sys.executable, "-m", "tests.fact_store.filled", str(path)]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE) as process:
        listen(process, promises, refusals=20)
        fill(others[1])
        listen(process, promises, refusals=20)
        assert os.statvfs(small_disk).f_bavail == 0
        assert Path(f"{path}.ballast").exists(), "it is kept for a disk that other programs fill"
        assert set(promises.errors) == {"StoreFull"}
        reader = StoreReader(path)
        read = list(map(number_of, values_in(reader)))
        assert read == list(range(1, len(read) + 1)), "a full disk must not stop readers"
        assert len(read) >= promises.samples > 100
        reader.close()
        process.kill()
        assert process.stdout is not None
        promises.hear(process.stdout.read())
    with FactStore.open(path, "plant", settings=SETTINGS) as store:
        assert broken(store, promises) == [], "opened again on the full disk"
        assert done(store.consumers.confirm(CONSUMER, 100)) == 100, "the ballast is for what makes room"
        end_offset = store.end_offset(TELEMETRY)
        for other in others:
            other.unlink()
        wait_until(lambda: refused(store, end_offset) is None, "an append after space has returned")
        assert store.end_offset(TELEMETRY) == end_offset + RUN
        promises.hear(f"S {end_offset + RUN}".encode())
        assert done(store.consumers.confirm(CONSUMER, end_offset)) == end_offset
        assert broken(store, promises) == []
    print(f"{promises.samples} samples, {promises.messages} messages acknowledged, {len(promises.errors)} refusals")


def test_the_ballast_allocates_its_bytes(tmp_path: Path) -> None:
    """The disk has less free by the ballast's size: a sparse file would give nothing back."""
    ballast = Ballast(tmp_path / "facts.db", SIZE)
    assert ballast.make(PLENTY, 0)
    assert ballast.path.stat().st_blocks * 512 >= SIZE


def test_the_ballast_is_made_only_above_the_floor(tmp_path: Path) -> None:
    """No ballast is made on a disk that would be below its floor with it, nor on a disk whose free space is unknown."""
    ballast = Ballast(tmp_path / "facts.db", SIZE)
    for free in (None, SIZE + OPENING_BYTES + 999):
        assert not ballast.make(free, 1000)
        assert not ballast.exists
    assert ballast.make(SIZE + OPENING_BYTES + 1000, 1000)


def test_a_part_of_a_ballast_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A disk that has no room for all its bytes, whatever it has reported, keeps none of them: the file would count as
    made and give nothing back."""

    def refuse(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    ballast = Ballast(tmp_path / "facts.db", SIZE)
    with monkeypatch.context() as patched:
        patched.setattr(os, "posix_fallocate", refuse)
        assert not ballast.make(PLENTY, 0)
        assert not ballast.exists
    assert ballast.make(PLENTY, 0)


def test_a_commit_without_room_frees_the_ballast(tmp_path: Path) -> None:
    """The commit that finds the disk full frees the ballast, so that the next one can delete."""
    faults = Faults()
    settings = StoreSettings(commit_interval_ms=0, disk_free_bytes_min=0, ballast_bytes=SIZE)
    with FactStore.open(tmp_path / "facts.db", "plant", settings=settings, connect_to=faults.connect) as store:
        done(store.appends.define([tag(1)]))
        ballast = Path(f"{store.path}.ballast")
        wait_until(ballast.exists, "the ballast")
        faults.arm("COMMIT", 1, full_error)
        failed(store.appends.append_samples(TELEMETRY, samples(1)))
        assert not ballast.exists()
