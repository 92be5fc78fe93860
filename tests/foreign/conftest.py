"""Tests here need a stack that set-up installs; where it could not, they are skipped and say why."""

import pytest

from tests.foreign.server import NODE_OPCUA, OPEN62541

STACKS = {stack.name: stack for stack in (NODE_OPCUA, OPEN62541)}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip what is marked `foreign(<stack>)` and has no such stack."""
    for item in items:
        for mark in item.iter_markers("foreign"):
            if why := STACKS[mark.args[0]].why_not():
                item.add_marker(pytest.mark.skip(reason=why))
