"""`bsfg source read`: read the present values of a source's tags from the device, once, without recording them."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path

import click

from agent.cli import config_option, json_option, print_json
from agent.cli.source.access import read_tags, source_of
from agent.cli.table import lines
from agent.cli.terminal import value_text
from agent.ingest import Tag, TagReading, load_tag_map
from agent.message import json_value, time_text
from agent.status_codes import status_name

COLUMNS = ("tag", "value", "unit", "status", "source_time", "")


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
            print_json(_json_object(reading))
    else:
        for line in lines(COLUMNS, _rows(found), "table"):
            click.echo(line)
    if any(reading.is_bad for reading in found):
        sys.exit(1)


def _wanted(known: Sequence[Tag], names: Sequence[str], source: str) -> list[Tag]:
    by_name = {tag.name: tag for tag in known}
    unknown = [name for name in names if name not in by_name]
    if unknown:
        raise click.UsageError(f"source {source} has no tag {unknown[0]!r}; its tag file has {len(known):,} others")
    return [by_name[name] for name in dict.fromkeys(names)] if names else list(known)


def _rows(found: Sequence[TagReading]) -> Iterator[tuple[str, ...]]:
    for reading in found:
        time = time_text(reading.source_time_ns) if reading.source_time_ns else ""
        yield reading.tag, value_text(reading.value), reading.unit, status_name(reading.quality), time, reading.why


def _json_object(reading: TagReading) -> dict[str, object]:
    time = time_text(reading.source_time_ns) if reading.source_time_ns else None
    plain = {
        **asdict(reading),
        "value": json_value(reading.value),
        "status": status_name(reading.quality),
        "source_time": time,
    }
    del plain["source_time_ns"]
    return plain
