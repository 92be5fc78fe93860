"""`bsfg tags`: begin a tag file, check one, compare it with the one in force, or make it from another product's list.

Nothing is read from a device. A file is read with the settings of a source of node.toml, or without one as `--protocol`
says. A command's module is imported when it is called.
"""

from __future__ import annotations

import click

from agent.cli import LazyGroup

_COMMANDS = {
    "template": "agent.cli.tags.template:template",
    "check": "agent.cli.tags.check:check",
    "diff": "agent.cli.tags.diff:diff",
    "import": "agent.cli.tags.import_list:import_list",
}


@click.group(cls=LazyGroup, lazy=_COMMANDS)
def tags() -> None:
    """Begin, check, compare and translate tag files."""
