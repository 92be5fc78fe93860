"""Artifact files: one file for each complete artifact below `artifacts/`, named by digest, and partial ones below
`artifacts/partial/`.

Promised: a file gets its name only when all its bytes are written, have the digest, and are synced; transfers resume
where they stopped, also in a later life; bytes once stored never change. Reading a chunk checks no digest: the receiver
of the last chunk does, and `verify` does here. After a power cut a partial file may have fewer bytes than were
acknowledged, or other ones: only the last chunk makes an artifact durable, and bytes from an earlier life are read
again for the digest.

Thread-safe. Writing and removing exclude each other. `claim` waits for neither sync nor digest, because its caller is
about to append, maybe in an event loop. Errors of the disk are raised as StoreFull and StoreUnavailable.
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
)
from agent.fact_store.retention import disk_free
from agent.fact_store.sqlite import sync_folder
from agent.pages import ArtifactProgress, ArtifactReference

PARTIAL = "partial"
SYNC_BYTES = 8 * 1024 * 1024
"""Bytes between two syncs: what a power cut can lose, and what the last chunk must still sync."""
RUNNING_MAX = 16
"""Transfers whose running digest is kept; another one's bytes are read again with its next chunk."""
REFUSED_S = 600
"""Seconds until a refused artifact counts as given up: a pull retries within seconds, a program within minutes."""
_FULL = frozenset({errno.ENOSPC, errno.EDQUOT})


class ArtifactFiles:
    """The artifacts of one node, within `limits`."""

    def __init__(self, folder: Path, limits: ArtifactLimits = ArtifactLimits()) -> None:  # noqa: B008 frozen
        self.folder = folder
        self.limits = limits
        self._writing = threading.Lock()
        # Excludes claim and removal from each other; taken inside `_writing`, held for a stat and one change.
        self._naming = threading.Lock()
        self._running: OrderedDict[Path, tuple[int, hashlib._Hash]] = OrderedDict()
        self._used: int | None = None
        # The last artifact refused for the limit: its name, missing bytes, and when.
        self._refused: tuple[str, int, float] | None = None
        # Folders synced in this life: an earlier life may have ended before it synced them.
        self._durable = set[Path]()

    def put_chunk(self, digest: str, size: int, offset: int, data: bytes) -> ArtifactProgress:
        """Store a chunk; returns how much of the artifact is here. Raises ArtifactRefused, ArtifactTooLarge,
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
        """How much of an artifact is here; None for nothing."""
        name = check_digest(digest)
        for partial in self._partials(name):
            return self._held(name, int(partial.suffix[1:]))
        return self._held(name, None)

    def claim(self, reference: ArtifactReference) -> None:
        """A fact is about to refer to an artifact: reset its age, so that it is not swept meanwhile. Raises
        ArtifactMissing."""
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
        """Whether the complete artifact is here; then its age is reset."""
        try:
            self.claim(reference)
        except ArtifactMissing:
            return False
        return True

    def has(self, digest: str) -> bool:
        """Whether the complete artifact is here."""
        return self._path(check_digest(digest)).exists()

    def read_chunk(self, digest: str, offset: int, length: int) -> tuple[int, bytes]:
        """Size of a complete artifact, and up to `length` of its bytes from `offset` on. Raises ArtifactRefused,
        ArtifactMissing, StoreUnavailable."""
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
        """Whether the stored bytes have the digest. Raises ArtifactMissing, StoreUnavailable."""
        name = check_digest(digest)
        with self._disk():
            try:
                with self._path(name).open("rb") as file:
                    return hashlib.file_digest(file, "sha256").hexdigest() == name
            except FileNotFoundError:
                raise ArtifactMissing(f"{digest} is not here") from None

    def digests(self) -> Iterator[str]:
        """The digests of all complete artifacts."""
        for path in sorted(self._complete_files()):
            yield f"sha256:{path.name}"

    def bytes_used(self) -> int:
        """Bytes of all complete and partial artifacts; the first call counts the files. Raises StoreUnavailable."""
        used = self._used
        if used is None:
            with self._disk():
                used = self._used = sum(_size(path) for path in self._files())
        return used

    def bytes_lacking(self) -> int:
        """Bytes to be removed before the artifact last refused for `total_max` has room; 0 where none waits. Raises
        StoreUnavailable."""
        if self._refused is None or time.monotonic() - self._refused[2] > REFUSED_S:
            return 0
        return max(0, self.bytes_used() + self._refused[1] - self.limits.total_max)

    def sweep(
        self, is_referenced: Callable[[str], bool], orphan_after_s: float, now_unix_s: float | None = None
    ) -> int:
        """Remove orphans and abandoned transfers; returns how many. `is_referenced` is called for each complete one
        that is old enough."""
        now_unix_s = time.time() if now_unix_s is None else now_unix_s
        removed = 0
        for path in self._files():
            with self._writing, self._disk():  # for each file alone, so that chunks can come between
                removed += self._sweep_one(path, is_referenced, orphan_after_s, now_unix_s)
        return removed

    # --------------------------------------------------------------------------------------------------------- internal

    def _sweep_one(
        self, path: Path, is_referenced: Callable[[str], bool], orphan_after_s: float, now_unix_s: float
    ) -> bool:
        is_partial = path.parent.name == PARTIAL
        with self._naming:
            try:
                age_s = now_unix_s - path.stat().st_mtime
            except FileNotFoundError:
                return False
            # Old enough that its producer has had time to append the fact, and no held fact refers to it.
            if age_s < orphan_after_s or (not is_partial and is_referenced(f"sha256:{path.name}")):
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
        """The complete artifact, or the partial one announced with `size` bytes."""
        with suppress(FileNotFoundError):
            found = self._path(name).stat().st_size
            return ArtifactProgress(found, found, is_complete=True)
        if size is not None:
            with suppress(FileNotFoundError):
                return ArtifactProgress(size, self._partial(name, size).stat().st_size, is_complete=False)
        return None

    def _is_claimed(self, name: str) -> bool:
        """Reset the age of an artifact that was put again; False where it was just swept."""
        with self._naming, suppress(FileNotFoundError):
            self._touch(self._path(name))
            return True
        return False

    def _touch(self, path: Path) -> None:
        os.utime(path)
        if path.parent not in self._durable:
            sync_folder(path.parent)
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
        """Write a chunk at the end of the partial file."""
        end = offset + len(data)
        running = self._digest_of(partial, offset) if offset else hashlib.sha256()
        self._running.pop(partial, None)  # until the bytes are written: after a failed write the file is read again
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
        """The running digest of a partial file; computed from the file where it is not kept."""
        known, running = self._running.get(partial, (0, None))
        if running is not None and known == length:
            return running
        with partial.open("rb") as file:
            return hashlib.file_digest(file, "sha256")

    def _complete(self, name: str, partial: Path) -> None:
        """Check the digest of all bytes; complete the artifact, or remove the file so that the sender starts again."""
        found = self._digest_of(partial, _size(partial)).hexdigest()
        if found != name:
            self._remove(partial)
            raise ArtifactMismatch(f"the bytes sent as sha256:{name} are sha256:{found}")
        # Synced before it gets its name, so a power cut leaves the complete file or no such name (decision 0039).
        with partial.open("rb") as file:
            _sync(file.fileno(), partial)
        path = self._path(name)
        self._make_folders(path.parent)
        partial.rename(path)
        self._running.pop(partial, None)
        for other in list(self._partials(name)):  # announced with a wrong size
            self._remove(other)
        try:
            sync_folder(path.parent)  # the name is durable before it is answered
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
        """Make the folders, each durable in its parent."""
        for one in (self.folder, folder):
            if not one.is_dir():
                one.mkdir(mode=0o700, exist_ok=True)
                sync_folder(one.parent)

    @contextmanager
    def _disk(self) -> Iterator[None]:
        """Raise errors of the disk as StoreFull or StoreUnavailable, and count the files again."""
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
    """Sync a partial file. Raises OSError and removes the file: after a failed sync its bytes on the disk are
    unknown."""
    try:
        os.fsync(descriptor)
    except OSError:
        partial.unlink()
        raise
