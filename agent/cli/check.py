"""`bsfg check`: every problem that can be found before a node starts, in one list.

It reads node.toml, the tag maps that it names, the certificates and keys of brokers and sources, and checks that the
state folder can hold a store. It writes nothing, and connects to nothing unless `--connect` is given. What `check`
accepts, `run` starts with.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Iterator
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import click

from agent.cli import config_option, json_option
from agent.cli.terminal import printable
from agent.config import BrokerSettings, ConfigError, NodeSettings, load
from agent.ingest import TagMapError, load_tag_map
from agent.ingest.opcua.security.file_check import check_source_files
from agent.replication.pki import check_identity

if TYPE_CHECKING:
    from agent.cli.source.connections import Tried


@click.command()
@config_option
@click.option("--connect", is_flag=True, help="Also try each source, broker and peer.")
@json_option
def check(config_file: Path, connect: bool, as_json: bool) -> None:  # noqa: FBT001 click passes options by name
    """Read node.toml and the files that it names, and print every problem."""
    tried: list[Tried] = []
    try:
        settings = load(config_file)
    except ConfigError as error:
        problems, text, notes = [f"{config_file}: {problem}" for problem in error.problems], "", []
    else:
        if connect:
            from agent.cli.source.connections import try_all

            tried = asyncio.run(try_all(settings))
        problems, notes = list(problems_of(settings)), notes_on(settings)
        text = "" if problems else summary(settings)
    if as_json:
        found = {"file": str(config_file), "problems": problems, "notes": notes}
        click.echo(json.dumps(found | ({"connections": [asdict(one) for one in tried]} if connect else {})))
    elif problems:
        click.echo(f"{len(problems)} problem{'s' * (len(problems) > 1)}:")
        for problem in problems:
            click.echo(f"  {problem}")
    else:
        click.echo(f"{config_file}: good; {text}")
    for note in () if as_json else notes:
        click.echo(f"note: {note}")
    for one in () if as_json else tried:
        click.echo(printable(f"  {'failed' if one.is_bad else 'ok':<7} {one.kind} {one.name}: {one.what}"))
        if one.is_bad and one.todo:
            click.echo(printable(f"{'':10}-> {one.todo}"))
    sys.exit(1 if problems or any(one.is_bad for one in tried) else 0)


def problems_of(settings: NodeSettings) -> Iterator[str]:
    """The problems of the files and folders that the settings name."""
    yield from _state_problems(settings.node.state_dir)
    for broker in settings.broker:
        yield from _identity_problems(broker, settings.node.zone)
    for source in settings.sources:
        try:
            load_tag_map(source)
        except TagMapError as error:
            yield from (str(problem) for problem in error.problems)
    yield from (found.text for found in check_source_files(settings.sources, datetime.now(UTC)) if found.is_problem)


def notes_on(settings: NodeSettings) -> list[str]:
    """What works today and needs attention, such as a certificate that ends soon."""
    return [found.text for found in check_source_files(settings.sources, datetime.now(UTC)) if not found.is_problem]


def summary(settings: NodeSettings) -> str:
    """The node in one line: its zone, sources, tags and peers."""
    tags = sum(len(load_tag_map(source).tags) for source in settings.sources)
    peers = ", ".join(peer.zone for peer in settings.peer) or "none"
    return f"zone {settings.node.zone}, {len(settings.sources)} sources with {tags} tags, peers: {peers}"


def _state_problems(folder: Path) -> Iterator[str]:
    existing = folder
    try:
        while not existing.exists():
            existing = existing.parent
    except OSError as error:  # a name too long, a folder above that may not be entered
        yield f"{folder}: {error.strerror}; correct state_dir"
        return
    if not existing.is_dir():
        yield f"{existing}: is not a folder; state_dir must name one"
    elif not os.access(existing, os.W_OK | os.X_OK):
        yield f"{existing}: this user may not write there; run as the node's user, or correct state_dir"


def _identity_problems(broker: BrokerSettings, zone: str) -> Iterator[str]:
    return (str(problem) for problem in check_identity(broker.cert_file, broker.key_file, broker.ca_file, zone))
