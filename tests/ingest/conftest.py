"""The servers of the demonstration's plant, each in a process of its own."""

from collections.abc import Iterator

import pytest

from tests.ingest.fakes import Program, running


@pytest.fixture(name="plc")
def running_plc() -> Iterator[Program]:
    """The plant's OPC UA server."""
    with running("opcua_server") as program:
        yield program


@pytest.fixture(name="meter")
def running_meter() -> Iterator[Program]:
    """The plant's Modbus device."""
    with running("modbus_server") as program:
        yield program
