"""The servers of the demonstration's plant, each in a process of its own, and a source without any."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.ingest.fakes import Program, running
from tests.ingest.lives import PlayedSource


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


@pytest.fixture
def played(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> PlayedSource:
    """A source whose lives the test plays."""
    return PlayedSource(monkeypatch, tmp_path)
