"""What tests of a node's parts start from."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from agent.fact_store import FactStore


@pytest.fixture
def store(tmp_path: Path) -> Iterator[FactStore]:
    """The empty store of plant-a, open."""
    with FactStore.open(tmp_path / "facts.db", "plant-a") as store:
        yield store
