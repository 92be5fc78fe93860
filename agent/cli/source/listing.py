"""`bsfg source list`: the sources of node.toml, and their state in the running node."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import click
import msgspec

from agent import local_socket
from agent.cli import config_option, json_option
from agent.cli.node_settings import load_settings
from agent.cli.table import lines
from agent.escaping import printable
from agent.health.verdict import duration
from agent.ingest import TagMapError, load_tag_map
from agent.settings.node import NodeSettings
from agent.settings.sources import ModbusSourceSettings, SourceSettings

COLUMNS = ("name", "protocol", "endpoint", "state", "tags", "good", "bad", "silent", "level", "last value", "")


@click.command()
@config_option
@json_option
def list_command(config_file: Path, as_json: bool) -> None:
    """List the sources: endpoint, state in the running node, tags with and without a value, age of the last value."""
    settings = load_settings(config_file)
    entries = asyncio.run(_entries(settings))
    if as_json:
        for source in settings.sources:
            click.echo(json.dumps(_json_object(source, entries), ensure_ascii=False))
        return
    if not settings.sources:
        click.echo(f"{config_file} names no [[opcua]] and no [[modbus]]; see bsfg opcua test and bsfg modbus probe")
        return
    for line in lines(COLUMNS, _rows(settings.sources, entries), "table"):
        click.echo(printable(line))
    if entries is None:
        click.echo("no node runs here: this is what node.toml and the tag files say", err=True)


async def _entries(settings: NodeSettings) -> dict[str, local_socket.SourceEntry] | None:
    """The sources of the running node by name; None when no node runs. Raises LocalError."""
    try:
        answer = await local_socket.ask(settings.node.state_dir, local_socket.ListSources())
    except (FileNotFoundError, ConnectionRefusedError):
        return None
    return {entry.name: entry for entry in local_socket.accepted(answer, local_socket.SourceEntries).sources}


def _rows(
    sources: Sequence[SourceSettings], entries: dict[str, local_socket.SourceEntry] | None
) -> Iterator[tuple[object, ...]]:
    for source in sources:
        head = (source.name, _protocol(source), source.where)
        entry = None if entries is None else entries.get(source.name)
        if entry is None:
            count, problem = _tags(source)
            state = "" if entries is None else "unknown"
            remark = problem if entries is None else "the running node does not read it; restart the node"
            yield *head, state, count, *("",) * 4, "", remark
            continue
        good = entry.tags - entry.tags_bad - entry.tags_silent
        age_s = None if entry.last_value_unix_ms is None else max(0.0, time.time() - entry.last_value_unix_ms / 1000)
        age = "never" if age_s is None else f"{duration(age_s)} ago"
        remark = entry.trouble or entry.tags_problem or entry.remarks
        level = "" if entry.service_level is None else entry.service_level
        yield *head, entry.state, entry.tags, good, entry.tags_bad, entry.tags_silent, level, age, remark


def _tags(source: SourceSettings) -> tuple[int | str, str]:
    """How many tags the file has, or its first problem."""
    try:
        return len(load_tag_map(source).tags), ""
    except TagMapError as error:
        return "", str(error.problems[0])


def _protocol(source: SourceSettings) -> str:
    return "modbus" if isinstance(source, ModbusSourceSettings) else "opcua"


def _json_object(source: SourceSettings, entries: dict[str, local_socket.SourceEntry] | None) -> dict[str, object]:
    entry = None if entries is None else entries.get(source.name)
    basics: dict[str, object] = {
        "name": source.name,
        "protocol": _protocol(source),
        "endpoint": source.where,
        "is_node_running": entries is not None,
    }
    if entry is None:
        count, problem = _tags(source)
        return {**basics, "state": None, "tags": count or None, "tags_problem": problem}
    known = {name: value for name, value in msgspec.structs.asdict(entry).items() if name != "kind"}
    return {**basics, **known, "tags_good": entry.tags - entry.tags_bad - entry.tags_silent}
