"""The ballast: a file that is deleted to make room when the disk is full.

On a full disk SQLite can neither open a database (its shared memory needs 32 kB) nor delete rows (the WAL must grow
first), so a node restarted there could not even serve its facts. The ballast is made while there is room above the
floor, deleted before a store is opened on a full disk and when a commit finds no room, and made again when there is
room. Its bytes are allocated; a sparse file would not help.
"""

from __future__ import annotations

import os
from pathlib import Path

from agent.fact_store.sqlite import OPENING_BYTES


class Ballast:
    """The ballast of the store at `store_file`, of `size` bytes; with 0 none is made."""

    def __init__(self, store_file: Path, size: int) -> None:
        self.path = store_file.with_name(f"{store_file.name}.ballast")
        self._size = size

    @property
    def exists(self) -> bool:
        """Whether the file exists."""
        return self.path.exists()

    def delete(self) -> bool:
        """Delete the file; False if there was none."""
        try:
            self.path.unlink()
        except OSError:
            return False
        return True

    def delete_if_needed(self, disk_free: int | None) -> bool:
        """Delete the file if the disk has too little room to open the store; True if it was deleted."""
        return disk_free is not None and disk_free < OPENING_BYTES and self.delete()

    def make(self, disk_free: int | None, floor: int) -> bool:
        """Make the file if the disk then still has `floor` bytes free; True if it exists."""
        if not self._size or self.exists:
            return self.exists
        if disk_free is None or disk_free < floor + self._size + OPENING_BYTES:
            return False
        try:
            descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o640)
        except OSError:
            return False
        try:
            os.posix_fallocate(descriptor, 0, self._size)
        except OSError:
            self.delete()
            return False
        finally:
            os.close(descriptor)
        return True
