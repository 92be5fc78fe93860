"""A folder in memory for stores that many examples or lives open: a sync costs nothing there, and the folder is deleted
after each."""

import os
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
