"""A file that can be given up: room for the moment when the disk is really full.

On a full disk SQLite can neither open a database (its shared memory needs 32 kB) nor delete from one (the log must grow first),
so a node that was restarted there could not even serve what it holds. The ballast is made while there is room above the floor,
given up before a store is opened on a full disk and when a commit finds none, and made again when room has come back. Its bytes are
allocated, not promised: a sparse file would be no ballast.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

OPENING_BYTES = 1024 * 1024  # shared memory, and the log of the first commits


class Ballast:
    """The file beside the store; `size` 0 does without."""

    def __init__(self, store_file: Path, size: int) -> None:
        self.path = store_file.with_name(f"{store_file.name}.ballast")
        self._size = size

    @property
    def is_there(self) -> bool:
        """Whether there is something to give up."""
        return self.path.exists()

    def give_up(self) -> bool:
        """Free its bytes; False when there was none."""
        try:
            self.path.unlink()
        except OSError:
            return False
        return True

    def give_up_if_needed(self, disk_free: int | None) -> bool:
        """Before opening: give it up on a disk that has no room for that. True when it was."""
        return disk_free is not None and disk_free < OPENING_BYTES and self.give_up()

    def make(self, disk_free: int | None, floor: int) -> bool:
        """Make it where the disk stays above the floor with it, and a little; True when it is there."""
        if not self._size or self.is_there:
            return self.is_there
        if disk_free is None or disk_free < floor + self._size + OPENING_BYTES:
            return False
        try:
            descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o640)
        except OSError:
            return False
        try:
            os.posix_fallocate(descriptor, 0, self._size)
        except OSError:
            self.give_up()
            return False
        finally:
            os.close(descriptor)
        return True


def disk_free(folder: Path) -> int | None:
    """Bytes that this user may still write below a folder; None where the disk does not say."""
    with suppress(OSError):
        found = os.statvfs(folder)
        return found.f_bavail * found.f_frsize
    return None
