"""`bsfg source list`: the sources of node.toml, and their state in the running node."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import click

from agent.cli import config_option, json_option, print_json
from agent.cli.node_settings import load_settings
from agent.cli.table import lines
from agent.client import Client, NodeSilent
from agent.health.problems import duration
from agent.ingest import TagMapError, load_tag_map
from agent.settings.node import NodeSettings
from agent.settings.sources import ModbusSourceSettings, SourceSettings

Entries = dict[str, dict[str, Any]]
COLUMNS = ("name", "protocol", "endpoint", "state", "tags", "good", "bad", "silent", "level", "last value", "")


@click.command()
@config_option
@json_option
def list_command(config_file: Path, as_json: bool) -> None:
    """List the sources: endpoint, state in the running node, tags with and without a value, age of the last value."""
    settings = load_settings(config_file)
    entries = _entries(settings)
    if as_json:
        for source in settings.sources:
            print_json(_json_object(source, entries))
        return
    if not settings.sources:
        click.echo(f"{config_file} names no [[opcua]] and no [[modbus]]; see bsfg opcua test and bsfg modbus probe")
        return
    for line in lines(COLUMNS, _rows(settings.sources, entries), "table"):
        click.echo(line)
    if entries is None:
        click.echo("no node runs here: this is what node.toml and the tag files say", err=True)


def _entries(settings: NodeSettings) -> Entries | None:
    """The sources of the running node by name, as its status has them; None when no node runs."""
    try:
        found = Client(settings.node.state_dir).status(everything=True)
    except NodeSilent:
        return None
    return {source["name"]: source for source in found["sources"]}


def _rows(sources: Sequence[SourceSettings], entries: Entries | None) -> Iterator[tuple[object, ...]]:
    for source in sources:
        head = (source.name, _protocol(source), source.where)
        entry = None if entries is None else entries.get(source.name)
        if entry is None:
            count, problem = _tags(source)
            state = "" if entries is None else "unknown"
            remark = problem if entries is None else "the running node does not read it; restart the node"
            yield *head, state, count, *("",) * 4, "", remark
            continue
        last_ms, tags, bad, silent = (entry[name] for name in ("last_value_unix_ms", "tags", "tags_bad", "tags_silent"))
        age = "never" if last_ms is None else f"{duration(time.time() - last_ms / 1000)} ago"
        remark = entry["trouble"] or entry["tags_problem"] or entry["remarks"]
        level = "" if entry["service_level"] is None else entry["service_level"]
        yield *head, entry["state"], tags, tags - bad - silent, bad, silent, level, age, remark


def _tags(source: SourceSettings) -> tuple[int | str, str]:
    """How many tags the file has, or its first problem."""
    try:
        return len(load_tag_map(source).tags), ""
    except TagMapError as error:
        return "", str(error.problems[0])


def _protocol(source: SourceSettings) -> str:
    return "modbus" if isinstance(source, ModbusSourceSettings) else "opcua"


def _json_object(source: SourceSettings, entries: Entries | None) -> dict[str, object]:
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
    return {**basics, **entry, "tags_good": entry["tags"] - entry["tags_bad"] - entry["tags_silent"]}
