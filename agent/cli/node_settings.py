"""The settings of a node for a command that looks at it or speaks to it: those that the node runs with.

A mistake in one section of node.toml must not take the other commands from the person who corrects it. What is not in
force is named on standard error.
"""

from __future__ import annotations

from pathlib import Path

import click

from agent.config import load_sections, load_usable
from agent.settings.node import NodeSettings

_NAMED = f"{__name__}.named"


def load_settings(config_file: Path) -> NodeSettings:
    """The settings of the file as far as they are right, and those last in force for the rest. Raises ConfigError if a
    node could not start with it."""
    plan = load_usable(load_sections(config_file))
    assert plan.settings is not None, "there are settings to run with"
    named = click.get_current_context().meta.setdefault(_NAMED, set())  # a command may ask several times
    for part in {*plan.not_in_force} - named:
        click.echo(f"bsfg: {config_file}: {part}; see bsfg check", err=True)
        named.add(part)
    return plan.settings
