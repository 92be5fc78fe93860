"""Artifacts through kill -9, failing disks and power cuts: nothing, a partial transfer, or the complete artifact, never
other bytes."""

import contextlib
import errno
import os
import random
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from agent.errors import StoreError, StoreFull
from agent.fact_store.artifacts import artifact_files
from agent.fact_store.artifacts.artifact_files import ArtifactFiles
from tests.fact_store.artifacts.putting import CHUNK, blob, name_of, put
from tests.sim import first_seed, patient, scaled

ROOT = Path(__file__).parents[3]
COUNT = 40
ROUNDS = scaled(12, 300)


def wrong_ones(store: ArtifactFiles) -> list[str]:
    """Files whose name is not the digest of their bytes."""
    return [digest for digest in store.digests() if not store.verify(digest)]


@patient
def test_a_killed_transfer_goes_on_where_it_was(tmp_path: Path) -> None:
    """Killed at random moments and started again: artifacts answered as complete are there, bytes answered as received
    are not requested again, and no file has a wrong name."""
    seed = first_seed()
    rng, folder, resumed = random.Random(seed), tmp_path / "artifacts", 0
    for _ in range(ROUNDS):
        command = [sys.executable, "-m", "tests.fact_store.artifacts.putting", str(folder), str(seed), str(COUNT)]
        with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE) as process:
            assert process.stdout is not None
            said = process.stdout.readline()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(rng.uniform(0, 0.02))
            process.kill()
            said += process.stdout.read()
        store = ArtifactFiles(folder)
        assert wrong_ones(store) == []
        resumed += any(path.stat().st_nlink == 1 for path in folder.glob("partial/*/*"))
        number, received, is_complete = map(int, said.decode().splitlines()[-1].split())
        content = blob(seed, number)
        held = store.put_chunk("plant", name_of(content), len(content), 0, b"")
        assert held.received >= received
        assert held.is_complete >= bool(is_complete)
        if number > COUNT // 2:
            shutil.rmtree(folder)  # and from the beginning
    assert resumed > 0, "no round was killed in the middle of a transfer"
    print(f"{ROUNDS} kills, {resumed} in the middle of a transfer")
    for number in range(COUNT):
        put(store, blob(seed, number))
    assert set(store.digests()) >= {name_of(blob(seed, number)) for number in range(COUNT)}


class FailingCalls:
    """Fails the n-th call that changes the disk."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, at: int, number: int) -> None:
        self.calls = 0
        self._at, self._number = at, number
        for owner, name in ((os, "fsync"), (os, "link"), (Path, "mkdir"), (os, "open")):
            monkeypatch.setattr(owner, name, self._failing(getattr(owner, name)))

    def _failing(self, call):  # noqa: ANN001, ANN202
        def instead(*given, **named):  # noqa: ANN002, ANN003, ANN202
            self.calls += 1
            if self.calls == self._at:
                raise OSError(self._number, os.strerror(self._number))
            return call(*given, **named)

        return instead


@pytest.mark.parametrize("number", [errno.EIO, errno.ENOSPC], ids=["EIO", "ENOSPC"])
def test_each_call_fails_in_turn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    """Whichever call fails, the answer is a retryable error of the store; no incomplete file has a name, and a second
    attempt completes it."""
    monkeypatch.setattr(artifact_files, "SYNC_BYTES", 2 * CHUNK)
    content = random.Random(1).randbytes(5 * CHUNK)
    failed = 0
    for at in range(1, 1000):
        store = ArtifactFiles(tmp_path / str(at) / "artifacts")
        store.folder.parent.mkdir()
        with monkeypatch.context() as patch:
            calls = FailingCalls(patch, at, number)
            try:
                put(store, content)
                error = None
            except StoreError as raised:
                error = raised
        if calls.calls < at:
            break
        failed += error is not None
        assert error is None or (error.retryable, isinstance(error, StoreFull)) == (True, number == errno.ENOSPC)
        assert error is None or list(store.digests()) == []
        put(store, content)
        assert store.verify(name_of(content))
        assert store.bytes_used() == len(content)
    assert failed > 10
