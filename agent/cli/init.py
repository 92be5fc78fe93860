"""`bsfg init`: write a node.toml that works without changes and explains every setting.

The file is a template in which only the zone is filled in. A test compares each `# key = default` in it with the
default of the settings.
"""

from __future__ import annotations

import re
from importlib import resources
from pathlib import Path

import click

from agent.cli import DEFAULT_CONFIG
from agent.message import ZONE

TEMPLATE = "node.toml"


def node_toml(zone: str) -> str:
    """The text of a new node.toml for `zone`."""
    template = resources.files("agent.cli").joinpath("templates", TEMPLATE).read_text(encoding="utf-8")
    return re.sub("@zone@", zone, template)


@click.command()
@click.option("--zone", required=True, help="The zone of this node: 1 to 32 of a-z, 0-9 and -.")
@click.option("--config", "config_file", type=click.Path(path_type=Path), default=DEFAULT_CONFIG, show_default=True)
@click.option("--force", is_flag=True, help="Replace an existing file.")
def init(zone: str, config_file: Path, force: bool) -> None:  # noqa: FBT001 click passes options by name
    """Write a commented node.toml that works without changes."""
    if not ZONE.fullmatch(zone):
        raise click.UsageError(f"--zone {zone!r}: a zone is 1 to 32 of a-z, 0-9 and -")
    if config_file.exists() and not force:
        raise click.ClickException(f"{config_file} exists; name another file with --config, or give --force")
    config_file.parent.mkdir(parents=True, exist_ok=True)
    config_file.write_text(node_toml(zone), encoding="utf-8")
    click.echo(f"wrote {config_file}; next: edit it, then `bsfg check --config {config_file}`")
