"""The group `bsfg modbus`: a device is looked at with the settings of a source, or with those of the options. The commands
are imported when they are called."""

import click

from agent.cli import LazyGroup

_COMMANDS = {
    "scan": "agent.cli.modbus.scan:scan",
    "read": "agent.cli.modbus.read:read",
    "probe": "agent.cli.modbus.probe:probe",
    "plan": "agent.cli.modbus.plan:plan",
}


@click.group(cls=LazyGroup, lazy=_COMMANDS)
def modbus() -> None:
    """Scan and read Modbus devices, find types and byte orders, show the requests of a tag file."""
