"""The group `bsfg hardware`. The commands are imported when they are called, so that each loads only what it uses."""

import click

from agent.cli import LazyGroup

_COMMANDS = {
    "check": "agent.cli.hardware.check:check",
    "list": "agent.cli.hardware.check:list_",
    "conduits": "agent.cli.hardware.rules:conduits",
    "udev": "agent.cli.hardware.rules:udev",
}


@click.group(cls=LazyGroup, lazy=_COMMANDS)
def hardware() -> None:
    """Check gateways against a load, and make packet filter rules and names of serial ports."""
