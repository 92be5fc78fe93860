"""What several tests of the store share: a folder in memory, and that stores answer from their files."""

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from agent.fact_store.log import tail_cache


@pytest.fixture
def ram() -> Iterator[Path]:
    """A folder in memory, where there is one: syncs cost nothing there."""
    where = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    with tempfile.TemporaryDirectory(prefix="bsfg-", dir=where) as folder:
        yield Path(folder)


@pytest.fixture(autouse=True, scope="module")
def from_the_file() -> Iterator[None]:
    """The logs of these tests are so short that nobody would ever ask the file. The newest batches in memory have
    test_tail.py."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tail_cache, "BYTES_MAX", 0)
        yield
