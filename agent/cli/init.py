"""`bsfg init`: a configuration that works as it stands, with every setting explained where it stands.

The file is a template with one hole, the zone. A test holds each `# key = default` in it equal to the settings' own default,
so an operator can trust what the comments say.
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
@click.option("--zone", required=True, help="The zone this node stands for: 1 to 32 of a-z, 0-9 and -.")
@click.option("--config", "config_file", type=click.Path(path_type=Path), default=DEFAULT_CONFIG, show_default=True)
@click.option("--force", is_flag=True, help="Replace a file that is there.")
def init(zone: str, config_file: Path, force: bool) -> None:  # noqa: FBT001 click passes options by name
    """Write a commented node.toml that works as it stands."""
    if not ZONE.fullmatch(zone):
        raise click.UsageError(f"--zone {zone!r}: a zone is 1 to 32 of a-z, 0-9 and -")
    if config_file.exists() and not force:
        raise click.ClickException(f"{config_file} exists; name another file with --config, or say --force")
    config_file.parent.mkdir(parents=True, exist_ok=True)
    config_file.write_text(node_toml(zone), encoding="utf-8")
    click.echo(f"wrote {config_file}; next: edit it, then `bsfg check --config {config_file}`")
