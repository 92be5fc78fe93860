"""`bsfg latest`: the last known value of every tag, and how stale what we know of its source is; of our own store, or asked of a peer.

Every row says its own staleness, so that nobody takes a value of yesterday for one of now. Tags for which no value was found within
the depth are named too, on standard error, or as rows without a value in JSON.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import click

from agent.cli import config_option, json_option
from agent.cli.door import answer_s_option
from agent.cli.facts.sql import file_option, reader_of, tell_holes
from agent.cli.table import lines
from agent.config import load
from agent.query.latest import DEPTH_FACTS, FRESH_MS, LatestRecord, Tag, find_latest, latest_record, merge_peer_records
from agent.query.scan import Scanner, matches_glob

COLUMNS = ("zone", "tag", "value", "unit", "quality", "source_time", "mode", "as_of", "staleness")
TELEMETRY = "facts.telemetry"
MISSING_NAMED = 5


@click.command()
@config_option
@file_option
@click.option("--zone", help="Tags of this zone only.")
@click.option("--stream", help="Look in this stream only.  [default: all; of a peer facts.telemetry]")
@click.option(
    "--depth",
    type=click.IntRange(0),
    default=DEPTH_FACTS,
    show_default=True,
    help="Facts to look through from the end of a stream; 0 is all.",
)
@click.option("--from", "peer", metavar="ZONE", help="Ask the node of this peer for a stream it exports to us.")
@answer_s_option
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
    peer: str | None,
    answer_s: float,
    fresh_s: float,
    tag_glob: str,
    as_json: bool,  # noqa: FBT001 click passes options by name
) -> None:
    """Print the last known value of each tag whose name matches TAG_GLOB ("line1/*"; all of them without it)."""
    if peer is not None:
        if store_file is not None:
            raise click.UsageError("--file is our own, --from another node's")
        from agent.cli.facts.latest_from import ask_latest

        asked = ask_latest(load(config_file), peer, stream or TELEMETRY, tag_glob, int(fresh_s * 1000), answer_s)
        rows = [row for row in asked if zone in {None, row["zone"]}]
        _print(rows, as_json=as_json)
        _tell_none(rows, tag_glob, zone)
        sys.exit(0 if rows else 1)
    with reader_of(config_file, store_file) as reader:
        scanner = Scanner(reader)
        streams = None if stream is None else scanner.check_streams([stream])
        wanted, fresh_ms, now_ns = matching(tag_glob, zone), int(fresh_s * 1000), time.time_ns()
        found = find_latest(scanner, now_ns, wanted, streams=streams, depth_facts=depth, fresh_ms=fresh_ms)
    rows = [latest_record(row) for row in found.rows]
    if store_file is None:
        heard = [
            row for row in _heard(config_file, stream) if wanted(Tag(row["zone"], row["subject"], row["predicate"]))
        ]
        rows = merge_peer_records(rows, heard, now_ns, fresh_ms) if heard else rows
    _print(rows, as_json=as_json)
    if not as_json:
        _tell_heard(rows)
        _tell_missing([row for row in rows if row["source_time"] is None], depth)
    _tell_none(rows, tag_glob, zone)
    sys.exit(tell_holes(scanner.counters) if rows else 1)


def matching(tag_glob: str, zone: str | None) -> Callable[[Tag], bool]:
    """Tags whose subject, with or without its `tag:`, matches a pattern of * ? and [...]."""

    def matches(tag: Tag) -> bool:
        return (zone is None or tag.zone == zone) and matches_glob(tag.subject, [tag_glob])

    return matches


def quality_text(quality: int) -> str:
    """The severity of an OPC UA StatusCode, and its number where it says more than Good."""
    severity = ("Good", "Uncertain", "Bad", "Bad")[quality >> 30]
    return severity if quality == 0 else f"{severity} {quality:#010x}"


def _print(rows: Sequence[LatestRecord], *, as_json: bool) -> None:
    """A row with its value in a table, or each as a JSON object."""
    if as_json:
        for row in rows:
            click.echo(json.dumps(row, ensure_ascii=False))
        return
    for line in lines(COLUMNS, (_cells(row) for row in rows if row["source_time"] is not None), "table"):
        click.echo(line)


def _cells(row: LatestRecord) -> tuple[Any, ...]:
    value = row["value"]
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return (
        row["zone"],
        row["subject"].removeprefix("tag:"),
        value if is_number else json.dumps(value, ensure_ascii=False),
        row["unit"] or "",
        quality_text(row["quality"] or 0),
        row["source_time"],
        row["mode"],
        row["as_of"],
        _duration(row["staleness_ms"] or 0),
    )


def _duration(ms: int) -> str:
    for unit, unit_ms in (("d", 86_400_000), ("h", 3_600_000), ("min", 60_000)):
        if ms >= 2 * unit_ms:
            return f"{ms / unit_ms:.1f} {unit}"
    return f"{ms / 1000:.1f} s"


def _tell_none(rows: Sequence[object], tag_glob: str, zone: str | None) -> None:
    if not rows:
        click.echo(f"bsfg: no tag matches {tag_glob!r}" + (f" in zone {zone}" if zone else ""), err=True)


def _heard(config_file: Path, stream: str | None) -> list[LatestRecord]:
    """What peers told of streams whose pulls began at the latest values."""
    state_dir = load(config_file).node.state_dir
    if not (state_dir / "heard").is_dir():  # as nearly everywhere: do not load what reads it
        return []
    from agent.node.peer_latest_cache import heard_rows

    return heard_rows(state_dir, stream)


def _tell_heard(rows: Sequence[LatestRecord]) -> None:
    for zone in sorted({row["via"] for row in rows if row["via"] is not None}):
        count = sum(row["via"] == zone for row in rows)
        click.echo(
            f"bsfg: {count} of these values are not in this store: {zone} told of them (--json names them)", err=True
        )


def _tell_missing(missing: Sequence[LatestRecord], depth_facts: int) -> None:
    if missing:
        names = ", ".join(row["subject"].removeprefix("tag:") for row in missing[:MISSING_NAMED])
        more = f" and {len(missing) - MISSING_NAMED} more" if len(missing) > MISSING_NAMED else ""
        where = f"in the last {depth_facts:,} facts" if depth_facts else "in the store"
        click.echo(f"bsfg: no value {where} of {names}{more}", err=True)
