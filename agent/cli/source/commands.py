"""`bsfg source list`, `test`, `read` and `retry`, for the sources of node.toml; `bsfg opcua backfill`.

`test` and `read` connect to the device and record nothing, also while the node runs. `retry` and `backfill` ask the
running node: to connect now instead of after its back-off, or to read a time range from the history of a source's
server, as it does by itself after every gap. Values that the store has already are left out.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from agent import local_socket
from agent.cli import config_option, json_option, print_either, print_json
from agent.cli.local_node import ask, load_settings
from agent.cli.source.access import read_tags, source_of, steps
from agent.cli.table import lines
from agent.cli.terminal import print_step, value_text
from agent.client import Client, NodeSilent
from agent.health.problems import duration
from agent.ingest import Tag, TagMapError, TagReading, accept_part, load_tag_map, some_tags
from agent.message import json_value, time_text
from agent.query.scan import parse_moment_ns
from agent.settings.node import NodeSettings
from agent.settings.sources import ModbusSourceSettings, SourceSettings
from agent.status_codes import status_name

Entries = dict[str, dict[str, Any]]
LISTED_COLUMNS = ("name", "protocol", "endpoint", "state", "tags", "good", "bad", "silent", "level", "last value", "")
READ_COLUMNS = ("tag", "value", "unit", "status", "source_time", "")


@click.command()
@config_option
@json_option
def list_command(config_file: Path, as_json: bool) -> None:
    """List the sources: endpoint, state in the running node, tags with and without a value, age of the last value."""
    settings = load_settings(config_file)
    entries = _entries(settings)
    if as_json:
        for source in settings.sources:
            print_json(_source_object(source, entries))
        return
    if not settings.sources:
        click.echo(f"{config_file} names no [[opcua]] and no [[modbus]]; see bsfg opcua test and bsfg modbus probe")
        return
    for line in lines(LISTED_COLUMNS, _source_rows(settings.sources, entries), "table"):
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


def _source_rows(sources: Sequence[SourceSettings], entries: Entries | None) -> Iterator[tuple[object, ...]]:
    for source in sources:
        head = (source.name, _protocol(source), source.where)
        entry = None if entries is None else entries.get(source.name)
        if entry is None:
            count, problem = _tags(source)
            state = "" if entries is None else "unknown"
            remark = problem if entries is None else "the running node does not read it; bsfg reload"
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


def _source_object(source: SourceSettings, entries: Entries | None) -> dict[str, object]:
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


@click.command()
@config_option
@click.argument("name")
@click.argument("tags", nargs=-1, metavar="[TAG]...")
@json_option
def read(config_file: Path, name: str, tags: tuple[str, ...], as_json: bool) -> None:
    """Read TAGs of the source NAME once, by default all, without recording them.

    bsfg latest shows what was recorded. Exit status 1 when one has no value.
    """
    node, source = source_of(config_file, name)
    wanted = _wanted(load_tag_map(source).tags, tags, name)
    found = asyncio.run(read_tags(node, source, wanted))
    if as_json:
        for reading in found:
            print_json(_value_object(reading))
    else:
        for line in lines(READ_COLUMNS, _value_rows(found), "table"):
            click.echo(line)
    if any(reading.is_bad for reading in found):
        sys.exit(1)


def _wanted(known: Sequence[Tag], names: Sequence[str], source: str) -> list[Tag]:
    by_name = {tag.name: tag for tag in known}
    unknown = [name for name in names if name not in by_name]
    if unknown:
        raise click.UsageError(f"source {source} has no tag {unknown[0]!r}; its tag file has {len(known):,} others")
    return [by_name[name] for name in dict.fromkeys(names)] if names else list(known)


def _value_rows(found: Sequence[TagReading]) -> Iterator[tuple[str, ...]]:
    for reading in found:
        read_at = time_text(reading.source_time_ns) if reading.source_time_ns else ""
        yield reading.tag, value_text(reading.value), reading.unit, status_name(reading.quality), read_at, reading.why


def _value_object(reading: TagReading) -> dict[str, object]:
    read_at = time_text(reading.source_time_ns) if reading.source_time_ns else None
    plain = {
        **asdict(reading),
        "value": json_value(reading.value),
        "status": status_name(reading.quality),
        "source_time": read_at,
    }
    del plain["source_time_ns"]
    return plain


@click.command()
@config_option
@click.argument("name")
@json_option
def retry(config_file: Path, name: str, as_json: bool) -> None:
    """Connect to the source NAME now instead of waiting for the next attempt, for example after a repair.

    At an OPC UA source that is connected, the tags that its server refuses are tried at once.
    """
    settings = load_settings(config_file)
    answer = ask(settings, local_socket.RetrySource(name), local_socket.SourceRetried)
    text = f"{name} is {answer.state} already"
    if any(source.name == name for source in settings.opcua):
        text += "; tags that its server refuses are tried now"
    if answer.state == "waiting":
        text = f"{name} connects now; see bsfg status"
    print_either({"source": name, "was": answer.state}, text, as_json=as_json)


@click.command()
@config_option
@click.argument("name")
@click.option("--from", "first", required=True, help="Begin: ISO 8601 with a zone, or a time before now such as 2h.")
@click.option("--to", "last", default="0s", show_default=True, help="End, in the same forms.")
@json_option
def backfill(config_file: Path, name: str, first: str, last: str, as_json: bool) -> None:
    """Read missing values of the source NAME between two times from its server's history.

    Returns at once. The fact history_backfilled in facts.operational records the end and the result. The last ten
    seconds before now are not read, because live values cover them.
    """
    now_ns = time.time_ns()
    first_ns, last_ns = parse_moment_ns(first, now_ns), parse_moment_ns(last, now_ns)
    if first_ns >= last_ns:
        raise click.BadParameter(f"{first} is not before {last}", param_hint="--from")
    request = local_socket.BackfillSource(name, first_ns, last_ns)
    answer = ask(load_settings(config_file), request, local_socket.BackfillQueued)
    if as_json:
        times = {"first_time": time_text(first_ns), "last_time": time_text(last_ns)}
        print_json({"source": name, **times, "gaps_open": answer.gaps_open})
    else:
        click.echo(f"{name}: {time_text(first_ns)} to {time_text(last_ns)} will be read from the server's history")
        click.echo(f"gaps to fill now: {answer.gaps_open}; for the result: bsfg tail --stream facts.operational")
