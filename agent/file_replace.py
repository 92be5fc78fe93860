"""Replaces a file as a whole, so that readers, a crash, and a second writer at the same time see one complete content
or the other."""

from __future__ import annotations

import os
import secrets
from pathlib import Path


def write_file(path: Path, data: bytes, mode: int = 0o600, group: int = -1, owner: int = -1) -> None:
    """Write `data` to `path` atomically and durably, with these rights from its creation. Raises OSError."""
    # A name of its own: with a fixed one, two writers would write into one file.
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        with os.fdopen(os.open(temporary, flags, 0o600), "wb") as file:
            # Owner before mode: in the other order the old group could read the file for a moment.
            if (owner, group) != (-1, -1):  # the unit lets no process change an owner, not even to the same one
                os.fchown(file.fileno(), owner, group)
            os.fchmod(file.fileno(), mode)
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Make the names in a folder durable. Raises OSError."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
