"""Where artifacts lie: one file each below `artifacts/`, named by digest; what is still coming in, below `artifacts/partial/`.

Promised: a file has its name only when all its bytes were written, checked against the digest and synced; chunks may come
again, in any process's life, and go on where they stopped; bytes once stored never change. Reading checks nothing (a chunk is
no whole): the reader of the last chunk compares the digest, and `verify` does here. What a power cut leaves below `partial/`
may hold less than was acknowledged; a chunk is acknowledged as received, never as durable, until the last one is.

Thread-safe: one lock for the folder; an artifact is moved by few at a time.
"""

from __future__ import annotations

import hashlib
import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from agent.fact_store.artifact import CHUNK_BYTES_MAX, Held, Reference, Skip, check_digest, decide_chunk, is_orphan
from agent.fact_store.ballast import disk_free
from agent.fact_store.errors import ArtifactMismatch, ArtifactMissing, ArtifactRefused, StoreFull

PARTIAL = "partial"
SIZE_MAX = 4 * 1024**3  # a day's camera, no disk image


class ArtifactStore:
    """The artifacts of one node. `size_max` bounds one of them, `free_bytes_min` is left on the disk."""

    def __init__(self, folder: Path, *, size_max: int = SIZE_MAX, free_bytes_min: int = 0) -> None:
        self.folder = folder
        self._size_max = size_max
        self._free_bytes_min = free_bytes_min
        self._lock = threading.Lock()

    def put_chunk(self, digest: str, size: int, offset: int, data: bytes) -> Held:
        """Take a chunk; the answer says how much is here. Raises ArtifactRefused, ArtifactTooLarge,
        ArtifactMismatch, StoreFull, and OSError when the disk fails."""
        name = check_digest(digest)
        with self._lock:
            self._drop_other_sizes(name, size)
            held = self._held(name)
            decision = decide_chunk(held, size, offset, len(data), self._size_max)
            if isinstance(decision, Skip):
                return Held(size, decision.offset, decision.is_complete)
            self._check_room(len(data))
            partial = self._partial(name, size)
            self._make_folders(partial.parent)
            with partial.open("ab") as file:
                file.write(data)
            if decision.is_last:
                self._complete(name, partial)
            return Held(size, offset + len(data), decision.is_last)

    def held(self, digest: str) -> Held | None:
        """What is here of an artifact, None where nothing is."""
        with self._lock:
            return self._held(check_digest(digest))

    def claim(self, reference: Reference) -> None:
        """A fact is about to refer to an artifact: it is young again, so that nobody sweeps it meanwhile. Raises ArtifactMissing."""
        with self._lock:
            held = self._held(check_digest(reference.digest))
            if held is None or not held.is_complete:
                raise ArtifactMissing(f"{reference.digest}, to which the fact refers, is not here")
            if held.size != reference.size:
                raise ArtifactMissing(f"{reference.digest} has {held.size} bytes, the fact says {reference.size}")
            os.utime(self._path(check_digest(reference.digest)))

    def keep(self, reference: Reference) -> bool:
        """Whether the whole of it is here; then it is young again."""
        try:
            self.claim(reference)
        except ArtifactMissing:
            return False
        return True

    def read_chunk(self, digest: str, offset: int, length: int) -> tuple[int, bytes]:
        """Size of a complete artifact, and up to `length` of its bytes from `offset` on. Raises ArtifactRefused, ArtifactMissing."""
        if offset < 0 or not 0 < length <= CHUNK_BYTES_MAX:
            raise ArtifactRefused(f"{length} bytes from {offset}", f"a chunk has 1 to {CHUNK_BYTES_MAX}")
        path = self._path(check_digest(digest))
        try:
            with path.open("rb") as file:
                size = os.fstat(file.fileno()).st_size
                file.seek(offset)
                return size, file.read(length)
        except FileNotFoundError:
            raise ArtifactMissing(f"{digest} is not here") from None

    def verify(self, digest: str) -> bool:
        """Whether the bytes stored are those the digest names."""
        name = check_digest(digest)
        return _sha256(self._path(name)) == name

    def digests(self) -> Iterator[str]:
        """Every complete artifact."""
        for path in sorted(self.folder.glob("[0-9a-f][0-9a-f]/*")):
            yield f"sha256:{path.name}"

    def sweep(
        self, is_referenced: Callable[[str], bool], orphan_after_s: float, now_unix_s: float | None = None
    ) -> int:
        """Remove orphans, and transfers that never ended; returns how many. `is_referenced` is asked for each one that is old."""
        now_unix_s = time.time() if now_unix_s is None else now_unix_s
        removed = 0
        for path in [*self.folder.glob("[0-9a-f][0-9a-f]/*"), *(self.folder / PARTIAL).glob("*")]:
            with self._lock:  # not around the whole: a chunk that comes meanwhile makes its file young
                removed += self._sweep_one(path, is_referenced, orphan_after_s, now_unix_s)
        return removed

    def _sweep_one(
        self, path: Path, is_referenced: Callable[[str], bool], orphan_after_s: float, now_unix_s: float
    ) -> bool:
        try:
            age_s = now_unix_s - path.stat().st_mtime
        except FileNotFoundError:
            return False
        is_old = is_orphan(age_s, is_referenced=False, orphan_after_s=orphan_after_s)
        is_partial = path.parent.name == PARTIAL
        if not is_old or (not is_partial and is_referenced(f"sha256:{path.name}")):
            return False
        path.unlink()
        return True

    # ---------------------------------------------------------------------------------------------------------- internal

    def _path(self, name: str) -> Path:
        return self.folder / name[:2] / name

    def _partial(self, name: str, size: int) -> Path:
        return self.folder / PARTIAL / f"{name}.{size}"

    def _held(self, name: str) -> Held | None:
        path = self._path(name)
        if path.exists():
            size = path.stat().st_size
            return Held(size, size, is_complete=True)
        for partial in (self.folder / PARTIAL).glob(f"{name}.*"):
            return Held(int(partial.suffix[1:]), partial.stat().st_size, is_complete=False)
        return None

    def _drop_other_sizes(self, name: str, size: int) -> None:
        """Whoever announced another size before was wrong, or is: whole bytes of the right digest are all that counts."""
        for partial in (self.folder / PARTIAL).glob(f"{name}.*"):
            if partial != self._partial(name, size):
                partial.unlink()

    def _complete(self, name: str, partial: Path) -> None:
        """All bytes are there: an artifact if they are the right ones, else nothing, and the sender begins anew."""
        with partial.open("rb") as file:
            found = hashlib.file_digest(file, "sha256").hexdigest()
            os.fsync(file.fileno())
        if found != name:
            partial.unlink()
            raise ArtifactMismatch(f"the bytes sent as sha256:{name} are sha256:{found}")
        path = self._path(name)
        self._make_folders(path.parent)
        partial.rename(path)
        _sync_folder(path.parent)  # the name is durable before it is answered

    def _make_folders(self, folder: Path) -> None:
        """Each durable in the one above it."""
        for one in (self.folder, folder):
            if not one.is_dir():
                one.mkdir(mode=0o700, exist_ok=True)
                _sync_folder(one.parent)

    def _check_room(self, size: int) -> None:
        free = disk_free(self.folder.parent)
        if free is not None and free - size < self._free_bytes_min:
            raise StoreFull(f"the disk is full ({free:,} bytes are left)", "free space, then put it again: it goes on")


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
