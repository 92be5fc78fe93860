"""Tests here need a stack that set-up installs; where it could not, they are skipped and say why."""

import asyncio
from collections.abc import Iterator
from contextlib import closing

import pytest

from tests.foreign.client import CLIENT_JS, PERL, ZSTD
from tests.foreign.modbus.device import LIBMODBUS, MODBUS_SERIAL, SOCAT
from tests.foreign.server import NODE_OPCUA, OPEN62541, ForeignServer

STACKS = {
    stack.name: stack for stack in (NODE_OPCUA, OPEN62541, LIBMODBUS, MODBUS_SERIAL, SOCAT, CLIENT_JS, PERL, ZSTD)
}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip what is marked `foreign(<stack>)` and has no such stack."""
    for item in items:
        marks = list(item.iter_markers("foreign"))
        if "either_server" in getattr(item, "fixturenames", ()):
            marks = marks[:1]  # its own, not the file's
        for mark in marks:
            if why := STACKS[mark.args[0]].why_not():
                item.add_marker(pytest.mark.skip(reason=why))


COUNT = {"name": "count", "type": "Int32", "period_ms": 50}


@pytest.fixture(scope="session")
def shared_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ForeignServer]:
    """One server for all tests, with one variable `count` that changes: a start takes seconds."""
    with closing(ForeignServer(tmp_path_factory.mktemp("server"), variables=[COUNT])) as server:
        yield server


@pytest.fixture(scope="session")
def shared_second(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ForeignServer]:
    """Such a one on open62541."""
    with closing(ForeignServer(tmp_path_factory.mktemp("second"), OPEN62541, variables=[COUNT])) as server:
        yield server


@pytest.fixture
def server(shared_server: ForeignServer) -> ForeignServer:
    """The server that tests share, well again whatever the test before did to it."""
    asyncio.run(shared_server.recover())
    return shared_server


@pytest.fixture(
    params=[pytest.param(stack.name, marks=pytest.mark.foreign(stack.name)) for stack in (NODE_OPCUA, OPEN62541)]
)
def either_server(request: pytest.FixtureRequest) -> ForeignServer:
    """As `server`, of one stack and then of the other: for promises that hold at each."""
    found: ForeignServer = request.getfixturevalue(
        "shared_server" if request.param == NODE_OPCUA.name else "shared_second"
    )
    asyncio.run(found.recover())
    return found
