"""The settings of a node for a command that looks at it or speaks to it: those that the node runs with.

A mistake in one section of node.toml must not take the other commands from the person who corrects it. What is not in
force is named on standard error.
"""

from __future__ import annotations

from pathlib import Path

import click

from agent.config import load_sections, load_usable
from agent.settings.node import NodeSettings

_LOADED = f"{__name__}.loaded"


def load_settings(config_file: Path) -> NodeSettings:
    """The settings of the file as far as they are right, and those last in force for the rest; a command reads them
    once. Raises ConfigError if a node could not start with it."""
    loaded: dict[Path, NodeSettings] = click.get_current_context().meta.setdefault(_LOADED, {})
    if config_file not in loaded:
        plan = load_usable(load_sections(config_file))
        assert plan.settings is not None, "there are settings to run with"
        for part in plan.not_in_force:
            click.echo(f"bsfg: {config_file}: {part}; see bsfg check", err=True)
        loaded[config_file] = plan.settings
    return loaded[config_file]
