"""`bsfg init`: write a node.toml that works without changes and explains every setting.

The file is a template in which only the zone is filled in. A test compares each `# key = default` in it with the
default of the settings.
"""

from __future__ import annotations

import json
import os
import re
from importlib import resources
from pathlib import Path

import click

from agent.cli import PATH, write_whole, writing
from agent.cli.node_choice import DEFAULT_CONFIG
from agent.cli.prepare import unit
from agent.message import ZONE

TEMPLATE = "node.toml"


def node_toml(zone: str, state_dir: Path | None = None, name: str = "") -> str:
    """The text of a new node.toml for `zone`; without `state_dir`, the state folder is beside the file. `name` of the
    node, if it is not the zone's."""
    template = resources.files("agent.cli").joinpath("templates", TEMPLATE).read_text(encoding="utf-8")
    if state_dir is not None:
        line = f"state_dir = {json.dumps(str(state_dir), ensure_ascii=False)}"
        template = re.sub(r"^# state_dir = .*$", lambda _: line, template, flags=re.MULTILINE)
    if name:
        template = re.sub(r"^# name = \"\"$", f'name = "{name}"', template, count=1, flags=re.MULTILINE)
    return template.replace("@zone@", zone).replace("@node@", name or zone)


def write_node_toml(config_file: Path, text: str) -> None:
    """Write the file. In /etc/bsfg, the group of the folder, which is the node's, may read it."""
    write_whole(config_file, text.encode())
    if os.geteuid() == 0 and unit.is_of_unit(config_file):
        os.chown(config_file, -1, config_file.parent.stat().st_gid)
        config_file.chmod(0o640)


@click.command()
@click.option("--zone", required=True, help="The zone of this node: 1 to 32 of a-z, 0-9 and -.")
@click.option(
    "--name", default="", help="The name of this node, if two nodes record for the zone.  [default: the zone]"
)
@click.option(
    "--config", "config_file", type=PATH, default=DEFAULT_CONFIG, show_default=True, help="The file to write."
)
@click.option(
    "--state-dir",
    type=PATH,
    help="The folder of the store.  [default: /var/lib/bsfg/NAME for /etc/bsfg/NAME.toml, else state beside the file]",
)
@click.option("--force", is_flag=True, help="Replace an existing file.")
def init(zone: str, name: str, config_file: Path, state_dir: Path | None, force: bool) -> None:
    """Write a commented node.toml that works without changes."""
    for option, given in (("--zone", zone), ("--name", name or zone)):
        if not ZONE.fullmatch(given):
            raise click.UsageError(f"{option} {given!r}: a name is 1 to 32 of a-z, 0-9 and -")
    with writing(config_file):  # a folder above may be a file, or closed
        is_there = config_file.exists()
    if is_there and not force:
        raise click.ClickException(f"{config_file} exists; name another file with --config, or give --force")
    if state_dir is None and unit.is_of_unit(config_file):
        state_dir = unit.state_dir_of(config_file)
    write_node_toml(config_file, node_toml(zone, state_dir, name))
    click.echo(f"wrote {config_file}; next: edit it, then `bsfg check --config {config_file}`")
