"""Tests here need a stack that set-up installs; where it could not, they are skipped and say why."""

import asyncio
from collections.abc import Iterator

import pytest

from tests.foreign.modbus.device import LIBMODBUS, MBPOLL, MODBUS_SERIAL, SOCAT
from tests.foreign.server import NODE_OPCUA, OPEN62541, ForeignServer

STACKS = {stack.name: stack for stack in (NODE_OPCUA, OPEN62541, LIBMODBUS, MODBUS_SERIAL, MBPOLL, SOCAT)}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip what is marked `foreign(<stack>)` and has no such stack."""
    for item in items:
        for mark in item.iter_markers("foreign"):
            if why := STACKS[mark.args[0]].why_not():
                item.add_marker(pytest.mark.skip(reason=why))


@pytest.fixture(scope="module")
def shared_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ForeignServer]:
    """One server for the tests of a file, with one variable `count` that changes: a start takes seconds."""
    count = {"name": "count", "type": "Int32", "period_ms": 50}
    server = ForeignServer(tmp_path_factory.mktemp("server"), variables=[count])
    try:
        yield server
    finally:
        server.close()


@pytest.fixture
def server(shared_server: ForeignServer) -> ForeignServer:
    """The file's server, well again whatever the test before did to it."""
    asyncio.run(shared_server.recover())
    return shared_server
