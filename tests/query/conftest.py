"""The store that tests of queries read. A module that needs another one overrides `file`."""

from pathlib import Path
from typing import Any

import pytest

from tests.query.making import everything, naive


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with everything in it, three times."""
    return everything(tmp_path_factory.mktemp("query"), rounds=3)


@pytest.fixture(scope="module")
def facts(file: Path) -> list[dict[str, Any]]:
    """The facts of the store, read by the simplest code."""
    return naive(file)
