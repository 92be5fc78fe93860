"""Artifacts through kill -9, failing disks and power cuts: nothing, a partial transfer, or the complete artifact, never
other bytes."""

import contextlib
import errno
import os
import random
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from agent.fact_store.artifacts import artifact_files
from agent.fact_store.artifacts.artifact_files import ArtifactFiles
from agent.fact_store.log.errors import StoreError, StoreFull
from tests.fact_store.durability.power import Call, parse, paths_of, record, require_strace
from tests.fact_store.putting import CHUNK, blob, name_of
from tests.sim import first_seed, patient, scaled

ROOT = Path(__file__).parents[3]
COUNT = 40
ROUNDS = scaled(12, 300)


def put(store: ArtifactFiles, content: bytes, chunk: int = CHUNK) -> None:
    """Put bytes from wherever an earlier attempt ended."""
    digest = name_of(content)
    held = store.put_chunk("plant", digest, len(content), 0, b"")
    while not held.is_complete:
        held = store.put_chunk(
            "plant", digest, len(content), held.received, content[held.received : held.received + chunk]
        )


def error_of(store: ArtifactFiles, content: bytes) -> StoreError | None:
    """The error of putting an artifact; None for none."""
    try:
        put(store, content)
    except StoreError as error:
        return error
    return None


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
        command = [sys.executable, "-m", "tests.fact_store.putting", str(folder), str(seed), str(COUNT)]
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
            error = error_of(store, content)
        if calls.calls < at:
            break
        failed += error is not None
        assert error is None or (error.retryable, isinstance(error, StoreFull)) == (True, number == errno.ENOSPC)
        assert error is None or list(store.digests()) == []
        put(store, content)
        assert store.verify(name_of(content))
        assert store.bytes_used() == len(content)
    assert failed > 10


def test_a_write_that_ends_in_the_middle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A disk that wrote half of a chunk before it was full: the written bytes count, and the next ones are
    requested."""
    store, content = ArtifactFiles(tmp_path / "artifacts"), blob(1, 1)
    store.put_chunk("plant", name_of(content), len(content), 0, content[:1000])
    (partial,) = (tmp_path / "artifacts" / "partial").glob("*/*")

    def half_written(*_: object) -> None:
        raise OSError(errno.ENOSPC, "no space left")

    monkeypatch.setattr(artifact_files, "SYNC_BYTES", 1500)
    monkeypatch.setattr(artifact_files, "_sync", half_written)
    with pytest.raises(StoreFull):
        store.put_chunk("plant", name_of(content), len(content), 1000, content[1000:2000])
    monkeypatch.undo()
    os.truncate(partial, 1700)
    assert store.put_chunk("plant", name_of(content), len(content), 0, b"").received == 1700
    put(store, content)
    assert store.verify(name_of(content))


def names_given(calls: list[Call]) -> Iterator[tuple[int, Path, Path]]:
    """When which file got its final name."""
    for at, call in enumerate(calls):
        if call.name.startswith("link"):
            old, new = paths_of(call)
            yield at, Path(old), Path(new)


def test_a_complete_artifact_was_synced(tmp_path: Path) -> None:
    """Recorded by strace: a file is synced after its last byte and before it gets its name, and its folders after that
    and before the answer. So a power cut leaves the complete file, or no such name."""
    require_strace(tmp_path)
    folder, log = tmp_path / "state" / "artifacts", tmp_path / "log"
    folder.parent.mkdir()
    record((sys.executable, "-m", "tests.fact_store.putting", str(folder), "7", "5"), ROOT, log)
    calls = [call for call in parse(log) if call.result >= 0]
    given = list(names_given(calls))
    assert len(given) == 5
    for at, old, new in given:
        touched = [(number, call.name) for number, call in enumerate(calls) if paths_of(call)[:1] == [str(old)]]
        before = [name for number, name in touched if number < at and name != "openat"]
        assert before[-1] == "fsync", f"{old.name} got its name unsynced"
        answered = next(number for number, call in enumerate(calls) if number > at and call.words.startswith("1<"))
        synced = {paths_of(call)[0] for call in calls[at:answered] if call.name == "fsync"}
        assert str(new.parent) in synced, "it was answered before its name was durable"
    first_answer = next(number for number, call in enumerate(calls) if call.words.startswith("1<"))
    early = {paths_of(call)[0] for call in calls[:first_answer] if call.name == "fsync"}
    assert {str(folder.parent), str(folder)} <= early, "folders are durable in the one above them"
