"""Connections of the zones at the session's broker."""

import contextlib
from collections.abc import Iterator

import pytest

from tests.replication.broker.zones import Zones
from tests.support.mosquitto import Mosquitto


@pytest.fixture
def zones(broker: Mosquitto) -> Iterator[Zones]:
    """Connections of the four zones."""
    with contextlib.ExitStack() as stack:
        yield Zones(broker, stack)
