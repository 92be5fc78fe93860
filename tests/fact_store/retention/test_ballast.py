"""The ballast, the file that is deleted when the disk is full: its bytes are real, and it is deleted exactly when that
helps."""

import errno
import os
from pathlib import Path

import pytest

from agent.fact_store import FactStore
from agent.fact_store.retention.ballast import OPENING_BYTES, Ballast
from agent.settings.store import StoreSettings
from tests.fact_store.durability.faults import Faults, full_error
from tests.fact_store.making import TELEMETRY, done, failed, samples, tag
from tests.waiting import wait_until

SIZE = 256 * 1024
PLENTY = 2**40


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
