"""`bsfg latest`: the last known value of every tag, and how stale what we know of its source is.

Every row says its own staleness, so that nobody takes a value of yesterday for one of now. Tags for which no value was found within
the depth are named too, on standard error, or as rows without a value in JSON.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from agent.cli import config_option, json_option
from agent.cli.sql import file_option, reader_of, tell_holes
from agent.cli.table import lines
from agent.message import json_value, time_text
from agent.query.bounds import matches_glob
from agent.query.facts import value_type
from agent.query.latest import LatestRow, Tag
from agent.query.latest_search import DEPTH_FACTS, FRESH_MS, Latest
from agent.query.latest_search import latest as search
from agent.query.scan import Scanner

COLUMNS = ("zone", "tag", "value", "unit", "quality", "source_time", "mode", "as_of", "staleness")
MISSING_NAMED = 5


@click.command()
@config_option
@file_option
@click.option("--zone", help="Tags of this zone only.")
@click.option("--stream", help="Look in this stream only.")
@click.option(
    "--depth",
    type=click.IntRange(0),
    default=DEPTH_FACTS,
    show_default=True,
    help="Facts to look through from the end of a stream; 0 is all.",
)
@click.option(
    "--fresh-s",
    type=click.FloatRange(0),
    default=FRESH_MS / 1000,
    show_default=True,
    help="Seconds of silence after which a source's values are degraded.",
)
@click.argument("tag_glob", default="*")
@json_option
def latest(
    config_file: Path,
    store_file: Path | None,
    zone: str | None,
    stream: str | None,
    depth: int,
    fresh_s: float,
    tag_glob: str,
    as_json: bool,  # noqa: FBT001 click passes options by name
) -> None:
    """Print the last known value of each tag whose name matches TAG_GLOB ("line1/*"; all of them without it)."""
    with reader_of(config_file, store_file) as reader:
        scanner = Scanner(reader)
        streams = None if stream is None else scanner.checked([stream])
        wanted, fresh_ms = matching(tag_glob, zone), int(fresh_s * 1000)
        found = search(scanner, time.time_ns(), wanted, streams=streams, depth_facts=depth, fresh_ms=fresh_ms)
    if as_json:
        for row in found.rows:
            click.echo(json.dumps(as_dict(row), ensure_ascii=False))
    else:
        for line in lines(COLUMNS, (_cells(row) for row in found.rows if row.known), "table"):
            click.echo(line)
        _tell_missing(found)
    if not found.rows:
        click.echo(f"bsfg: no tag matches {tag_glob!r}" + (f" in zone {zone}" if zone else ""), err=True)
    sys.exit(tell_holes(scanner.effort) if found.rows else 1)


def matching(tag_glob: str, zone: str | None) -> Callable[[Tag], bool]:
    """Tags whose subject, with or without its `tag:`, matches a pattern of * ? and [...]."""

    def matches(tag: Tag) -> bool:
        return (zone is None or tag.zone == zone) and matches_glob(tag.subject, [tag_glob])

    return matches


def as_dict(row: LatestRow) -> dict[str, Any]:
    """A row for programs; `value` as in a message, everything about it null where none was found."""
    known = row.known
    return {
        "zone": row.tag.zone,
        "subject": row.tag.subject,
        "predicate": row.tag.predicate,
        "source": row.source,
        "value": json_value(known.value) if known else None,
        "value_type": value_type(known.value) if known else None,
        "unit": known.unit or None if known else None,
        "quality": known.quality if known else None,
        "source_time": time_text(known.source_time_ns) if known else None,
        "stream": known.stream if known else None,
        "offset": known.offset if known else None,
        "as_of": None if row.as_of_ns is None else time_text(row.as_of_ns),
        "staleness_ms": row.staleness_ms,
        "mode": row.mode,
    }


def quality_text(quality: int) -> str:
    """The severity of an OPC UA StatusCode, and its number where it says more than Good."""
    severity = ("Good", "Uncertain", "Bad", "Bad")[quality >> 30]
    return severity if quality == 0 else f"{severity} {quality:#010x}"


def _cells(row: LatestRow) -> tuple[Any, ...]:
    known = row.known
    assert known is not None
    assert row.as_of_ns is not None
    value = json_value(known.value)
    return (
        row.tag.zone,
        row.tag.subject.removeprefix("tag:"),
        value
        if isinstance(value, int | float) and not isinstance(value, bool)
        else json.dumps(value, ensure_ascii=False),
        known.unit,
        quality_text(known.quality),
        time_text(known.source_time_ns),
        row.mode,
        time_text(row.as_of_ns),
        _duration(row.staleness_ms or 0),
    )


def _duration(ms: int) -> str:
    for unit, unit_ms in (("d", 86_400_000), ("h", 3_600_000), ("min", 60_000)):
        if ms >= 2 * unit_ms:
            return f"{ms / unit_ms:.1f} {unit}"
    return f"{ms / 1000:.1f} s"


def _tell_missing(found: Latest) -> None:
    missing = found.missing
    if missing:
        names = ", ".join(row.tag.subject.removeprefix("tag:") for row in missing[:MISSING_NAMED])
        more = f" and {len(missing) - MISSING_NAMED} more" if len(missing) > MISSING_NAMED else ""
        where = f"in the last {found.depth_facts:,} facts" if found.depth_facts else "in the store"
        click.echo(f"bsfg: no value {where} of {names}{more}", err=True)
