"""Where artifacts lie: one file each below `artifacts/`, named by digest; what is still coming in, below `artifacts/partial/`.

Promised: a file has its name only when all its bytes were written, checked against the digest and synced; chunks may come
again, in any process's life, and go on where they stopped; bytes once stored never change. Reading checks nothing (a chunk is
no whole): the reader of the last chunk compares the digest, and `verify` does here. What a power cut leaves below `partial/`
may hold less than was acknowledged, or other bytes; a chunk is acknowledged as received, never as durable, until the last one is, and
whatever an earlier life left is read and counted into the digest.

Thread-safe. Who writes and who removes take turns; claiming what is here waits for neither a disk nor a digest, for whoever claims is
about to append, perhaps in an event loop. What the disk refuses is raised in the store's words.
"""

from __future__ import annotations

import errno
import hashlib
import os
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from agent.fact_store.log import (
    CHUNK_BYTES_MAX,
    ArtifactLimits,
    ArtifactMismatch,
    ArtifactMissing,
    ArtifactRefused,
    ArtifactsFull,
    FinishArtifact,
    SkipChunk,
    StoreFull,
    StoreUnavailable,
    check_artifact_room,
    check_digest,
    decide_chunk,
    is_orphan,
)
from agent.fact_store.retention import disk_free
from agent.pages import ArtifactProgress, ArtifactReference

PARTIAL = "partial"
SYNC_BYTES = 8 * 1024 * 1024
"""Synced at least so often: what a power cut takes back, and what the last chunk still has to wait for."""
RUNNING_MAX = 16
"""Transfers whose digest is kept while they run; of any other the bytes that are here are read again with the next chunk."""
REFUSED_S = 600
"""Who waits for room asks again within seconds (a pull) or minutes (a program); who has not for so long does not wait."""
_FULL = frozenset({errno.ENOSPC, errno.EDQUOT})


class ArtifactFiles:
    """The artifacts of one node, within `limits`."""

    def __init__(self, folder: Path, limits: ArtifactLimits = ArtifactLimits()) -> None:  # noqa: B008 frozen
        self.folder = folder
        self.limits = limits
        self._writing = threading.Lock()
        # Between a claim and a removal; taken inside the other, held for a look and a word.
        self._naming = threading.Lock()
        self._running: OrderedDict[Path, tuple[int, hashlib._Hash]] = OrderedDict()
        self._used: int | None = None
        self._refused: tuple[str, int, float] | None = (
            None  # what last had no room below the limit, its bytes, and when
        )
        # Folders whose names are on the disk: an earlier life may have ended before it synced them.
        self._durable = set[Path]()

    def put_chunk(self, digest: str, size: int, offset: int, data: bytes) -> ArtifactProgress:
        """Take a chunk; the answer says how much is here. Raises ArtifactRefused, ArtifactTooLarge,
        ArtifactMismatch, StoreFull, and StoreUnavailable when the disk fails."""
        name = check_digest(digest)
        partial = self._partial(name, size)
        with self._writing, self._disk():
            held = self._held(name, size)
            match decide_chunk(held, size, offset, len(data), self.limits.size_max):
                case SkipChunk(_, is_complete=True):
                    is_here = self._is_claimed(name)
                    return ArtifactProgress(size, size if is_here else 0, is_here)
                case SkipChunk(goes_on_at):
                    return ArtifactProgress(size, goes_on_at, is_complete=False)
                case FinishArtifact():
                    self._complete(name, partial)
                    return ArtifactProgress(size, size, is_complete=True)
            self._check_room(name, size, offset)
            self._append(partial, offset, data)
            if offset + len(data) < size:
                return ArtifactProgress(size, offset + len(data), is_complete=False)
            self._complete(name, partial)
            return ArtifactProgress(size, size, is_complete=True)

    def held(self, digest: str) -> ArtifactProgress | None:
        """What is here of an artifact, None where nothing is."""
        name = check_digest(digest)
        for partial in self._partials(name):
            return self._held(name, int(partial.suffix[1:]))
        return self._held(name, None)

    def claim(self, reference: ArtifactReference) -> None:
        """A fact is about to refer to an artifact: it is young again, so that nobody sweeps it meanwhile. Raises ArtifactMissing."""
        path = self._path(check_digest(reference.digest))
        with self._naming, self._disk():
            try:
                size = path.stat().st_size
                if size == reference.size:
                    self._touch(path)
            except FileNotFoundError:
                raise ArtifactMissing(f"{reference.digest}, to which the fact refers, is not here") from None
        if size != reference.size:
            why = f"{reference.digest} has {size} bytes, the fact says {reference.size}"
            raise ArtifactMissing(why, "correct the size in the fact, or the digest if another artifact is meant")

    def keep(self, reference: ArtifactReference) -> bool:
        """Whether the whole of it is here; then it is young again."""
        try:
            self.claim(reference)
        except ArtifactMissing:
            return False
        return True

    def has(self, digest: str) -> bool:
        """Whether the whole of it is here."""
        return self._path(check_digest(digest)).exists()

    def read_chunk(self, digest: str, offset: int, length: int) -> tuple[int, bytes]:
        """Size of a complete artifact, and up to `length` of its bytes from `offset` on. Raises ArtifactRefused, ArtifactMissing,
        StoreUnavailable."""
        if offset < 0 or not 0 < length <= CHUNK_BYTES_MAX:
            raise ArtifactRefused(f"{length} bytes from {offset}", f"a chunk has 1 to {CHUNK_BYTES_MAX}")
        path = self._path(check_digest(digest))
        with self._disk():
            try:
                with path.open("rb") as file:
                    size = os.fstat(file.fileno()).st_size
                    file.seek(offset)
                    return size, file.read(length)
            except FileNotFoundError:
                raise ArtifactMissing(f"{digest} is not here") from None

    def verify(self, digest: str) -> bool:
        """Whether the bytes stored are those the digest names. Raises ArtifactMissing, StoreUnavailable."""
        name = check_digest(digest)
        with self._disk():
            try:
                with self._path(name).open("rb") as file:
                    return hashlib.file_digest(file, "sha256").hexdigest() == name
            except FileNotFoundError:
                raise ArtifactMissing(f"{digest} is not here") from None

    def digests(self) -> Iterator[str]:
        """Every complete artifact."""
        for path in sorted(self._complete_files()):
            yield f"sha256:{path.name}"

    def bytes_used(self) -> int:
        """Bytes of all artifacts and of what is coming in; counted from the files once, in the calling thread. Raises StoreUnavailable."""
        used = self._used
        if used is None:
            with self._disk():
                used = self._used = sum(_size(path) for path in self._files())
        return used

    def bytes_lacking(self) -> int:
        """How much is to go before the artifact that the limit of all last refused has room; 0 where none waits. Raises StoreUnavailable."""
        if self._refused is None or time.monotonic() - self._refused[2] > REFUSED_S:
            return 0
        return max(0, self.bytes_used() + self._refused[1] - self.limits.total_max)

    def sweep(
        self, is_referenced: Callable[[str], bool], orphan_after_s: float, now_unix_s: float | None = None
    ) -> int:
        """Remove orphans, and transfers that never ended; returns how many. `is_referenced` is asked for each one that is old."""
        now_unix_s = time.time() if now_unix_s is None else now_unix_s
        removed = 0
        for path in self._files():
            with self._writing, self._disk():  # not around the whole: a chunk that comes meanwhile makes its file young
                removed += self._sweep_one(path, is_referenced, orphan_after_s, now_unix_s)
        return removed

    # ---------------------------------------------------------------------------------------------------------- internal

    def _sweep_one(
        self, path: Path, is_referenced: Callable[[str], bool], orphan_after_s: float, now_unix_s: float
    ) -> bool:
        is_partial = path.parent.name == PARTIAL
        with self._naming:
            try:
                age_s = now_unix_s - path.stat().st_mtime
            except FileNotFoundError:
                return False
            if not is_orphan(age_s, is_referenced=False, orphan_after_s=orphan_after_s):
                return False
            if not is_partial and is_referenced(f"sha256:{path.name}"):
                return False
            self._remove(path)
        return True

    def _files(self) -> list[Path]:
        return [*self._complete_files(), *(self.folder / PARTIAL).glob("*")]

    def _complete_files(self) -> Iterator[Path]:
        return self.folder.glob("[0-9a-f][0-9a-f]/*")

    def _path(self, name: str) -> Path:
        return self.folder / name[:2] / name

    def _partial(self, name: str, size: int) -> Path:
        return self.folder / PARTIAL / f"{name}.{size}"

    def _partials(self, name: str) -> Iterator[Path]:
        return (self.folder / PARTIAL).glob(f"{name}.*")

    def _held(self, name: str, size: int | None) -> ArtifactProgress | None:
        """The whole, or what has come of so many bytes."""
        with suppress(FileNotFoundError):
            found = self._path(name).stat().st_size
            return ArtifactProgress(found, found, is_complete=True)
        if size is not None:
            with suppress(FileNotFoundError):
                return ArtifactProgress(size, self._partial(name, size).stat().st_size, is_complete=False)
        return None

    def _is_claimed(self, name: str) -> bool:
        """Make it young again, as whoever puts it is about to refer to it; False where it was just swept."""
        with self._naming, suppress(FileNotFoundError):
            self._touch(self._path(name))
            return True
        return False

    def _touch(self, path: Path) -> None:
        os.utime(path)
        if path.parent not in self._durable:
            _sync_folder(path.parent)
            self._durable.add(path.parent)

    def _check_room(self, name: str, size: int, offset: int) -> None:
        try:
            check_artifact_room(self.limits, size, offset, self.bytes_used(), disk_free(self.folder.parent))
        except ArtifactsFull:
            self._refused = name, size - offset, time.monotonic()
            raise
        if self._refused is not None and self._refused[0] == name:
            self._refused = None

    def _append(self, partial: Path, offset: int, data: bytes) -> None:
        """Write a chunk at the end of what has come."""
        end = offset + len(data)
        running = self._digest_of(partial, offset) if offset else hashlib.sha256()
        self._running.pop(partial, None)  # until the bytes are there: what a failed write leaves is read again
        self._make_folders(partial.parent)
        used = self.bytes_used()
        with partial.open("ab") as file:
            self._used = None
            file.write(data)
            file.flush()
            if offset // SYNC_BYTES != end // SYNC_BYTES:
                _sync(file.fileno(), partial)
        self._used = used + len(data)
        running.update(data)
        self._running[partial] = end, running
        if len(self._running) > RUNNING_MAX:
            self._running.popitem(last=False)

    def _digest_of(self, partial: Path, length: int) -> hashlib._Hash:
        """The running digest of what has come; read from the disk where an earlier life brought it."""
        known, running = self._running.get(partial, (0, None))
        if running is not None and known == length:
            return running
        with partial.open("rb") as file:
            return hashlib.file_digest(file, "sha256")

    def _complete(self, name: str, partial: Path) -> None:
        """All bytes are there: an artifact if they are the right ones, else nothing, and the sender begins anew."""
        found = self._digest_of(partial, _size(partial)).hexdigest()
        if found != name:
            self._remove(partial)
            raise ArtifactMismatch(f"the bytes sent as sha256:{name} are sha256:{found}")
        with partial.open("rb") as file:
            _sync(file.fileno(), partial)
        path = self._path(name)
        self._make_folders(path.parent)
        partial.rename(path)
        self._running.pop(partial, None)
        for other in list(self._partials(name)):  # announced with another size by somebody who was wrong
            self._remove(other)
        try:
            _sync_folder(path.parent)  # the name is durable before it is answered
        except OSError:
            self._remove(path)
            raise
        self._durable.add(path.parent)

    def _remove(self, path: Path) -> None:
        size = _size(path)
        path.unlink()
        self._running.pop(path, None)
        if self._used is not None:
            self._used -= size

    def _make_folders(self, folder: Path) -> None:
        """Each durable in the one above it."""
        for one in (self.folder, folder):
            if not one.is_dir():
                one.mkdir(mode=0o700, exist_ok=True)
                _sync_folder(one.parent)

    @contextmanager
    def _disk(self) -> Iterator[None]:
        """What the disk refuses, in the store's words. It may pass; what was written is looked at anew."""
        try:
            yield
        except OSError as error:
            self._used = None
            if error.errno in _FULL:
                why = f"the disk is full: {self.folder}"
                raise StoreFull(why, "free space, then put it again: it goes on") from error
            raise StoreUnavailable(f"{self.folder}: {error.strerror}", "check the disk, then try again") from error


def _size(path: Path) -> int:
    with suppress(FileNotFoundError):
        return path.stat().st_size
    return 0


def _sync(descriptor: int, partial: Path) -> None:
    """Raises OSError, and leaves nothing of the file: after a failed sync nobody knows what the disk has of it."""
    try:
        os.fsync(descriptor)
    except OSError:
        partial.unlink()
        raise


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
