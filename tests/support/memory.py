"""A folder in memory for stores that many examples or lives open: a sync costs nothing there, and the folder is deleted
after each. And how much memory a process has."""

import os
import resource
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def memory_folder() -> Iterator[Path]:
    """A folder in /dev/shm, or in the folder for temporary files where there is none."""
    where = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    with tempfile.TemporaryDirectory(prefix="bsfg-", dir=where) as folder:
        yield Path(folder)


def rss_bytes(pid: int | None = None) -> int:
    """What a process has in memory; without a number, this one."""
    pages = Path(f"/proc/{pid or 'self'}/statm").read_text("ascii").split()[1]
    return int(pages) * resource.getpagesize()
