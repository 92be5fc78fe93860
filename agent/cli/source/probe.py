"""`bsfg source test`: test the connection to a source of node.toml step by step and read some of its tags; also while
the node runs."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import click

from agent.cli import config_option, json_option
from agent.cli.source.access import source_of, steps
from agent.cli.terminal import print_step
from agent.ingest import accept_part, load_tag_map, some_tags


@click.command()
@config_option
@click.argument("name")
@click.option("--all", "is_all", is_flag=True, help="Read all tags, not some twenty.")
@click.option("--partial", is_flag=True, help="Accept a source if at least one of the tags that were read has a value.")
@json_option
def test(config_file: Path, name: str, is_all: bool, partial: bool, as_json: bool) -> None:
    """Connect to the source NAME with its own settings and read some of its tags.

    Nothing is recorded, and a running node is not disturbed: a Modbus device to which it is connected is asked by the
    node, an OPC UA server over another session. Exit status 1 when a step fails.
    """
    node, source = source_of(config_file, name)
    tags = load_tag_map(source).tags

    async def run() -> bool:
        is_failed = False
        async for found in steps(node, source, tags if is_all else some_tags(tags), len(tags)):
            step = accept_part(found) if partial else found
            is_failed |= step.is_failed
            print_step(step, as_json=as_json)
        return is_failed

    if not as_json:
        click.echo(f"{name}: {source.where}")
    if asyncio.run(run()):
        sys.exit(1)
