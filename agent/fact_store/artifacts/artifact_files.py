"""Artifact files: one file for each complete artifact below `artifacts/`, named by digest. `artifacts/partial/<zone>/`
contains, by the zone that sent them, files to which no fact refers yet: incomplete files, and a second link to complete
ones.

Guarantees: a file gets its name only when all its bytes are written, have the digest, and are synced; transfers resume
where they stopped, also in a later life; stored bytes never change. Reading a chunk checks no digest: the receiver of
the last chunk does, and `verify` does here. After a power cut a partial file may have fewer bytes than were
acknowledged, or wrong ones: only the last chunk makes an artifact durable, and bytes from an earlier life are read
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

from agent.errors import StoreFull, StoreUnavailable
from agent.fact_store.core import (
    CHUNK_BYTES_MAX,
    ArtifactLimits,
    ArtifactMismatch,
    ArtifactMissing,
    ArtifactRefused,
    ArtifactsFull,
    FinishArtifact,
    SkipChunk,
    artifact_room_lacking,
    check_artifact_quota,
    check_artifact_room,
    check_digest,
    decide_chunk,
    quota_charge,
)
from agent.fact_store.sqlite import disk_free
from agent.file_replace import sync_folder
from agent.pages import ArtifactProgress, ArtifactReference

PARTIAL = "partial"
SYNC_BYTES = 8 * 1024 * 1024
"""Bytes between two syncs: what a power cut can lose, and what the last chunk must still sync."""
RUNNING_MAX = 16
"""Transfers whose running digest is kept. The bytes of any other transfer are read again with its next chunk."""
REFUSED_S = 600
"""Seconds after which a refused artifact counts as abandoned: a pull retries within seconds, a program within
minutes."""
SETTLE_S = 1.0
"""Seconds between two checks which of a zone's files have become referenced. A check takes thousands of look-ups, which
a zone at its quota could otherwise cause with each chunk."""
_FULL = frozenset({errno.ENOSPC, errno.EDQUOT})


class ArtifactFiles:
    """The artifacts of one node, within `limits`. `is_referenced`: whether a held fact refers to a digest."""

    def __init__(
        self,
        folder: Path,
        limits: ArtifactLimits = ArtifactLimits(),  # noqa: B008 frozen
        is_referenced: Callable[[str], bool] = lambda _: False,
    ) -> None:
        self.folder = folder
        self.limits = limits
        self._is_referenced = is_referenced
        self._writing = threading.Lock()
        # Excludes claim and removal from each other; taken inside `_writing`, held for a stat and one change.
        self._naming = threading.Lock()
        self._running: OrderedDict[Path, tuple[int, hashlib._Hash]] = OrderedDict()
        self._used: int | None = None
        # By zone: when its charges were last settled, and the charge of each file to which no fact referred then.
        self._charges: dict[str, tuple[float, dict[Path, int]]] = {}
        # The last artifact refused for the limit: its name, missing bytes, and when.
        self._refused: tuple[str, int, float] | None = None
        # Folders synced in this life: an earlier life may have ended before it synced them.
        self._durable = set[Path]()

    def put_chunk(self, zone: str, digest: str, size: int, offset: int, data: bytes) -> ArtifactProgress:
        """Store a chunk that `zone` sends; returns how much of the artifact is stored. Zones do not share incomplete
        files, so no zone can corrupt another's. Raises ArtifactRefused, ArtifactTooLarge, ArtifactMismatch,
        ArtifactQuota, ArtifactsFull, StoreFull, and StoreUnavailable when the disk fails."""
        name = check_digest(digest)
        partial = self._partial(zone, name, size)
        with self._writing, self._disk():
            held = self._complete_one(name) or self._partial_one(partial, size)
            match decide_chunk(held, size, offset, len(data), self.limits.size_max):
                case SkipChunk(_, is_complete=True):
                    is_here = self._is_claimed(name)
                    return ArtifactProgress(size, size if is_here else 0, is_here)
                case SkipChunk(next_offset):
                    return ArtifactProgress(size, next_offset, is_complete=False)
                case FinishArtifact():
                    self._complete(name, partial)
                    return ArtifactProgress(size, size, is_complete=True)
            self._check_quota(zone, digest, partial, size)
            self._check_room(name, size, offset)
            self._append(partial, offset, data)
            if offset + len(data) < size:
                return ArtifactProgress(size, offset + len(data), is_complete=False)
            self._complete(name, partial)
            return ArtifactProgress(size, size, is_complete=True)

    def unreferenced(self) -> dict[str, int]:
        """By zone: the bytes charged to it for artifacts to which no fact refers, at most SETTLE_S old. Raises
        StoreUnavailable."""
        with self._disk():
            zones = [folder.name for folder in (self.folder / PARTIAL).glob("*")]
        found = dict[str, int]()
        for zone in zones:
            with self._writing, self._disk():
                if charged := sum(self._settled(zone).values()):
                    found[zone] = charged
        return found

    def size_of(self, digest: str) -> int | None:
        """Bytes of a complete artifact; None if it is not stored here."""
        held = self._complete_one(check_digest(digest))
        return None if held is None else held.size

    def claim(self, reference: ArtifactReference) -> None:
        """Reset the age of an artifact to which a fact is about to refer, so that it is not swept meanwhile. Raises
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
        """Whether the complete artifact is stored here; if so, reset its age."""
        try:
            self.claim(reference)
        except ArtifactMissing:
            return False
        return True

    def has(self, digest: str) -> bool:
        """Whether the complete artifact is stored here."""
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
        """The digests of all complete artifacts. Raises StoreUnavailable."""
        with self._disk(), suppress(FileNotFoundError):
            next(self.folder.iterdir(), None)  # raises where this user may not look, which a search passes over
        for path in sorted(self._complete_files()):
            yield f"sha256:{path.name}"

    def bytes_used(self) -> int:
        """Bytes of all complete and partial artifacts; the first call counts the files. Raises StoreUnavailable."""
        used = self._used
        if used is None:
            with self._disk():
                partial = (self.folder / PARTIAL).glob("*/*")
                used = sum(map(_size, self._complete_files())) + sum(
                    _size(path) for path in partial if not _is_named(path)
                )
                self._used = used
        return used

    def lacking(self) -> tuple[str, int]:
        """The setting that last refused an artifact for lack of room, and the bytes to be freed before it fits; ("", 0)
        if none waits. Raises StoreUnavailable."""
        if self._refused is None or time.monotonic() - self._refused[2] > REFUSED_S:
            return "", 0
        return artifact_room_lacking(self.limits, self._refused[1], self.bytes_used(), disk_free(self.folder.parent))

    def sweep(self, orphan_after_s: float, released_after_s: float, now_unix_s: float | None = None) -> int:
        """Remove artifacts to which no held fact refers: incomplete ones and those to which no fact ever referred after
        `orphan_after_s`, the others after `released_after_s`; returns how many."""
        now_unix_s = time.time() if now_unix_s is None else now_unix_s
        removed = 0
        for path in self._files():
            is_orphan = path.parent.parent != self.folder
            before_unix_s = now_unix_s - (orphan_after_s if is_orphan else released_after_s)
            with self._writing, self._disk(), suppress(FileNotFoundError):
                # The lock is taken for each file alone, so that chunks can be stored in between.
                removed += (
                    self._sweep_orphan(path, before_unix_s) if is_orphan else self._sweep_one(path, before_unix_s)
                )
        return removed

    # --------------------------------------------------------------------------------------------------------- internal

    def _sweep_orphan(self, partial: Path, before_unix_s: float) -> bool:
        """Sweep one file of `partial/`. The second name of a complete artifact is removed once a fact refers to it."""
        if not _is_named(partial):
            with self._naming:
                if partial.stat().st_mtime > before_unix_s:
                    return False
                self._remove(partial)
            return True
        name = _name_of(partial)
        if self._is_referenced(f"sha256:{name}"):
            self._uncharge(partial)
            partial.unlink()
            return False
        return self._sweep_one(self._path(name), before_unix_s, partial)

    def _sweep_one(self, path: Path, before_unix_s: float, second_name: Path | None = None) -> bool:
        """Sweep a complete artifact; one with a second name is removed only together with that name."""
        with self._naming:
            found = path.stat()
            is_waiting = second_name is None and found.st_nlink > 1
            # Old enough that its producer has had time to append the fact, and no held fact refers to it.
            if is_waiting or found.st_mtime > before_unix_s or self._is_referenced(f"sha256:{path.name}"):
                return False
            self._remove(path)
            if second_name is not None:
                self._uncharge(second_name)
                second_name.unlink()
        return True

    def _files(self) -> list[Path]:
        return [*self._complete_files(), *(self.folder / PARTIAL).glob("*/*")]

    def _complete_files(self) -> Iterator[Path]:
        return self.folder.glob("[0-9a-f][0-9a-f]/*")

    def _path(self, name: str) -> Path:
        return self.folder / name[:2] / name

    def _partial(self, zone: str, name: str, size: int) -> Path:
        return self.folder / PARTIAL / zone / f"{name}.{size}"

    def _complete_one(self, name: str) -> ArtifactProgress | None:
        with suppress(FileNotFoundError):
            found = self._path(name).stat().st_size
            return ArtifactProgress(found, found, is_complete=True)
        return None

    def _partial_one(self, partial: Path, size: int) -> ArtifactProgress | None:
        with suppress(FileNotFoundError):
            return ArtifactProgress(size, partial.stat().st_size, is_complete=False)
        return None

    def _check_quota(self, zone: str, digest: str, partial: Path, size: int) -> None:
        """Raise ArtifactQuota unless the zone may send an artifact to which no fact refers yet."""
        if not self.limits.unreferenced_max:
            return
        charges = self._charges.get(zone, (0.0, dict[Path, int]()))[1] or self._settled(zone)
        if partial in charges:
            return  # all its bytes were charged with its first chunk
        coming = quota_charge(size)
        if sum(charges.values()) + coming > self.limits.unreferenced_max:
            if self._is_referenced(digest):
                return  # a held fact refers to it, so the quota does not apply
            charges = self._settled(zone)
            check_artifact_quota(self.limits, zone, sum(charges.values()), coming)

    def _settled(self, zone: str) -> dict[Path, int]:
        """The charges of a zone, at most SETTLE_S old, without removed files and those to which facts refer by now."""
        settled_s, charges = self._charges.get(zone, (-SETTLE_S, {}))
        if time.monotonic() - settled_s < SETTLE_S:
            return charges
        charges = {
            partial: quota_charge(int(partial.suffix[1:]))
            for partial in (self.folder / PARTIAL / zone).glob("*")
            if not self._is_referenced(f"sha256:{_name_of(partial)}")
        }
        self._charges[zone] = time.monotonic(), charges
        return charges

    def _uncharge(self, partial: Path) -> None:
        if (known := self._charges.get(partial.parent.name)) is not None:
            known[1].pop(partial, None)

    def _is_claimed(self, name: str) -> bool:
        """Reset the age of an artifact that was put again; False if it was just swept."""
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
        self._make_folders(partial.parent.parent, partial.parent)
        used = self.bytes_used()
        with os.fdopen(os.open(partial, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600), "ab") as file:
            self._used = None
            file.write(data)
            file.flush()
            if offset // SYNC_BYTES != end // SYNC_BYTES:
                _sync(file.fileno(), partial)
        self._used = used + len(data)
        if (known := self._charges.get(partial.parent.name)) is not None:
            known[1][partial] = quota_charge(int(partial.suffix[1:]))
        running.update(data)
        self._running[partial] = end, running
        if len(self._running) > RUNNING_MAX:
            self._running.popitem(last=False)

    def _digest_of(self, partial: Path, length: int) -> hashlib._Hash:
        """The running digest of a partial file; computed from the file if it is not in memory."""
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
        os.link(partial, path)  # the other name stays, and the zone is charged, until a fact refers to it
        self._running.pop(partial, None)
        for leftover in list((self.folder / PARTIAL).glob(f"*/{name}.*")):  # of another zone, or with a wrong size
            if leftover != partial:
                self._remove(leftover)
        try:
            sync_folder(path.parent)  # the name is durable before it is answered
        except OSError:
            path.unlink()
            raise
        self._durable.add(path.parent)

    def _remove(self, path: Path) -> None:
        size = _size(path)
        path.unlink()
        self._running.pop(path, None)
        self._uncharge(path)
        if self._used is not None:
            self._used -= size

    def _make_folders(self, *folders: Path) -> None:
        """Make the folders, each durable in its parent."""
        for made in (self.folder, *folders):
            if not made.is_dir():
                made.mkdir(mode=0o700, exist_ok=True)
                sync_folder(made.parent)

    @contextmanager
    def _disk(self) -> Iterator[None]:
        """Raise errors of the disk as StoreFull or StoreUnavailable, and count the files again."""
        try:
            yield
        except OSError as error:
            self._used = None
            if error.errno in _FULL:
                why = f"the disk is full: {self.folder}"
                raise StoreFull(why, "free space, then put it again: the transfer resumes") from error
            raise StoreUnavailable(f"{self.folder}: {error.strerror}", "check the disk, then try again") from error


def _size(path: Path) -> int:
    with suppress(FileNotFoundError):
        return path.stat().st_size
    return 0


def _is_named(partial: Path) -> bool:
    """Whether a file of `partial/` is the second name of a complete artifact."""
    with suppress(FileNotFoundError):
        return partial.stat().st_nlink > 1
    return False


def _name_of(partial: Path) -> str:
    return partial.name.partition(".")[0]


def _sync(descriptor: int, partial: Path) -> None:
    """Sync a partial file. Raises OSError and removes the file: after a failed sync its bytes on the disk are
    unknown."""
    try:
        os.fsync(descriptor)
    except OSError:
        partial.unlink()
        raise
