"""One broker for the folder: starting it with its authority and certificates takes longer than most tests here."""

from collections.abc import Iterator

import pytest

from tests.support.mosquitto import Mosquitto


@pytest.fixture(scope="session")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mosquitto]:
    """A real Mosquitto with mutual TLS and the access list of three zones in a chain, plus a second plant."""
    with Mosquitto.started(tmp_path_factory.mktemp("broker")) as running:
        yield running
