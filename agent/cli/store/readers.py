"""The processes that keep a read of the store's database open, by the locks that the kernel lists.

SQLite's readers hold a lock on one of five bytes of the `-shm` file while a transaction is open. The node cannot ask
the kernel itself, because its unit sees only its own processes.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path

READ_MARKS = range(123, 128)  # https://www.sqlite.org/walformat.html, "WAL Locks": WAL_READ_LOCK(0) to (4)
LASTING_S = 0.3  # a reader of ours ends within milliseconds


def lasting_readers(database: Path) -> list[str]:
    """The processes that hold a read for some time, as `1234 (python3)`; none if they cannot be seen from here."""
    shared = database.with_name(f"{database.name}-shm")
    try:
        first = set(_readers(shared))
        if not first:
            return []
        time.sleep(LASTING_S)
        return [f"{pid} ({_name(pid)})" for pid in sorted(first & set(_readers(shared)))]
    except OSError:
        return []


def _readers(file: Path) -> Iterator[int]:
    found = file.stat()
    place = f"{os.major(found.st_dev):02x}:{os.minor(found.st_dev):02x}:{found.st_ino}"
    for line in Path("/proc/locks").read_text("ascii").splitlines():
        words = line.split()
        if len(words) == 8 and words[5] == place and int(words[6]) in READ_MARKS and int(words[4]) > 0:
            yield int(words[4])


def _name(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text("utf-8", "replace").strip()
    except OSError:
        return "of another user"
