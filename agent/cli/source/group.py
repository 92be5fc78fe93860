"""The group `bsfg source`. The commands are imported when they are called, and the library of a protocol when a source of it
is asked."""

import click

from agent.cli import LazyGroup

_COMMANDS = {
    "list": "agent.cli.source.listing:list_command",
    "test": "agent.cli.source.probe:test",
    "read": "agent.cli.source.read:read",
    "retry": "agent.cli.source.retry:retry",
}


@click.group(cls=LazyGroup, lazy=_COMMANDS)
def source() -> None:
    """The OPC UA servers and Modbus devices that the node reads."""
