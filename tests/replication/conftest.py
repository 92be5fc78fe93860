"""Fixtures of replication tests: one broker for the session, because starting it takes longer than most tests."""

from collections.abc import Iterator

import pytest

from tests.replication.nodes import OPENED
from tests.support.mosquitto import Mosquitto


@pytest.fixture(scope="session")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mosquitto]:
    """A real Mosquitto with mutual TLS and the access list of three zones in a chain, plus a second plant."""
    with Mosquitto.started(tmp_path_factory.mktemp("broker")) as running:
        yield running


@pytest.fixture(autouse=True)
def closed_stores() -> Iterator[None]:
    """Close the stores of the nodes that a test has opened."""
    yield
    for store in list(OPENED):
        store.close()
