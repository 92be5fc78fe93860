"""What several tests of the store share: a folder in memory."""

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture
def ram() -> Iterator[Path]:
    """A folder in memory, where there is one: syncs cost nothing there."""
    where = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    with tempfile.TemporaryDirectory(prefix="bsfg-", dir=where) as folder:
        yield Path(folder)
