"""`bsfg latest`: the latest value of every tag, its age and its staleness, from this store or from a peer.

Every row shows the staleness of its source. A tag of this node is marked `stale` or `removed` by the tag files of the
node. Tags without a value within the search depth are listed on standard error, or with --json as rows without a value.
With --summary, and for many tags, it prints counts, a few values, and the names of the tags that are not good.
"""

from __future__ import annotations

import json
import re
import shlex
import sys
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import click

from agent.cli import NumberRange, config_option, json_option, print_json, refuse_given
from agent.cli.local_node import answer_s_option, load_settings
from agent.cli.store.store_file import file_option, open_reader, report_holes
from agent.cli.table import lines
from agent.config import load_kept
from agent.query.latest import (
    DEPTH_FACTS,
    FRESH_MS,
    AgedRecord,
    LatestKey,
    LatestRecord,
    LatestSummary,
    TagsInForce,
    aged_record,
    find_latest,
    latest_record,
    merge_peer_records,
    streams_with,
    summarize,
    tags_matching,
)
from agent.query.scan import ScanCounters, Scanner
from agent.settings.node import NodeSettings
from agent.status_codes import status_name

COLUMNS = ("zone", "tag", "value", "unit", "quality", "source_time", "ahead", "age", "mode")
SPARSE = ("unit", "ahead")  # columns that are left out if no row has a value for them
DIGITS = 7
TELEMETRY = "facts.telemetry"
MISSING_NAMED = 5
ROWS_MAX = 100
"""Tags that are printed without --all; of more, a person who does not name them wants to know which are not good."""
SUMMARY_NAMED = 20  # tags that are bad, and as many that are silent


@click.command()
@config_option
@file_option
@click.option("--zone", help="Tags of this zone only.")
@click.option("--stream", help="Search this stream only.  [default: all; of a peer facts.telemetry]")
@click.option(
    "--depth",
    type=click.IntRange(0),
    default=DEPTH_FACTS,
    show_default=True,
    help="Number of facts to search from the end of each stream; 0 searches all.",
)
@click.option(
    "--from", "peer", metavar="NODE", help="Ask the node of this peer, for a stream that it exports to this node."
)
@answer_s_option
@click.option(
    "--fresh-s",
    type=NumberRange(0),
    default=FRESH_MS / 1000,
    show_default=True,
    help="Seconds without a value after which a source's values are degraded.",
)
@click.option(
    "--summary", "as_summary", is_flag=True, help="Print counts, the first values, and the tags that are not good."
)
@click.option("--all", "everything", is_flag=True, help=f"Print every tag, also of more than {ROWS_MAX}.")
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
    as_summary: bool,
    everything: bool,
    tag_glob: str,
    as_json: bool,
) -> None:
    """Print the latest value of each tag whose name matches TAG_GLOB, as "line1/*"; a summary of many, unless --all or
    --json is given."""
    chosen = {"--config": config_file, "--file": store_file, "--zone": zone, "--stream": stream, "--from": peer}
    wanted, fresh_ms = tags_matching(tag_glob, zone), int(fresh_s * 1000)
    in_force = None if store_file is not None else _tags_in_force(config_file)
    counters = ScanCounters()
    if peer is not None:
        refuse_given(["store_file", "depth"], "is for a store of this machine, --from for a peer's")
        from agent.cli.facts.peer_requests import get_latest  # MQTT is slow to import

        asked = get_latest(load_settings(config_file), peer, stream or TELEMETRY, tag_glob, fresh_ms, answer_s)
        records = [record for record in asked if zone in {None, record["zone"]}]
    else:
        records, counters = _records(config_file, store_file, tag_glob, zone, stream, depth, fresh_ms)
    now_ns = time.time_ns()  # after the search: no tag is younger than its source
    rows = [aged_record(row, in_force, now_ns) for row in records]
    if as_summary or (len(rows) > ROWS_MAX and not everything and not as_json):
        found = summarize(rows, in_force if peer is None else None, wanted)
        status = _print_summary(found, tag_glob, chosen, as_json=as_json)
        sys.exit(max(report_holes(counters), status))
    _print(rows, as_json=as_json)
    if not as_json:
        _report_ahead(rows)
        if peer is None:
            _report_peer_values(rows)
            _report_missing([row for row in rows if row["source_time"] is None and row["mode"] != "removed"], depth)
    _report_no_match(rows, tag_glob, zone)
    sys.exit(report_holes(counters) if rows else 1)


def _records(
    config_file: Path,
    store_file: Path | None,
    tag_glob: str,
    zone: str | None,
    stream: str | None,
    depth: int,
    fresh_ms: int,
) -> tuple[list[LatestRecord], ScanCounters]:
    """The latest values in the store's file, and for that of the node the values that peers reported."""
    wanted = tags_matching(tag_glob, zone)
    with open_reader(config_file, store_file) as reader:
        scanner, now_ns = Scanner(reader), time.time_ns()
        streams = streams_with(scanner, tag_glob, stream)
        found = find_latest(scanner, now_ns, wanted, streams=streams, depth_facts=depth, fresh_ms=fresh_ms)
    records = [latest_record(row) for row in found]
    if store_file is None:
        from_peers = [
            row
            for row in _peer_records(config_file, stream)
            if wanted(LatestKey(row["zone"], row["subject"], row["predicate"]))
        ]
        records = merge_peer_records(records, from_peers, now_ns, fresh_ms) if from_peers else records
    return records, scanner.counters


def _print(rows: Sequence[AgedRecord], *, as_json: bool) -> None:
    """Print the rows that have a value as a table, or all rows as JSON objects. A zone that all rows share has no
    column."""
    if as_json:
        for row in rows:
            print_json(row)
        return
    cells = [_cells(row) for row in rows if row["source_time"] is not None]
    unused = {name for name in SPARSE if not any(row[name] for row in cells)}
    if len({row["zone"] for row in cells}) == 1:
        unused.add("zone")
    columns = [name for name in COLUMNS if name not in unused]
    for line in lines(columns, ([row[name] for name in columns] for row in cells), "table"):
        click.echo(line)


def _print_summary(summary: LatestSummary, tag_glob: str, chosen: Mapping[str, object], *, as_json: bool) -> int:
    """Print a summary; the exit status, 1 where there is no tag. `chosen`: the options that chose the tags."""
    counts = {"good": summary.good, "bad": len(summary.bad), "silent": len(summary.silent)}
    rare = {"uncertain": summary.uncertain, "removed": summary.removed}
    if as_json:
        names = {
            "bad_tags": [_name(row["subject"]) for row in summary.bad[:SUMMARY_NAMED]],
            "silent_tags": [_name(subject) for subject in summary.silent[:SUMMARY_NAMED]],
        }
        print_json({"tags": summary.tags, **counts, **rare, **names})
        return 0 if summary.tags else 1
    if summary.first:
        _print(summary.first, as_json=False)
    counts |= {what: count for what, count in rare.items() if count}
    said = ", ".join(f"{count:,} {what}" for what, count in counts.items())
    click.echo(f"{summary.tags:,} tags: {said}")
    bad = [f"{_name(row['subject'])}  {status_name(row['quality'] or 0)}" for row in summary.bad]
    for what, tags in (("bad", bad), ("silent", [_name(subject) for subject in summary.silent])):
        for line in _named(what, tags):
            click.echo(line)
    words = [
        "bsfg",
        "latest",
        *(["--all"] if summary.tags > ROWS_MAX else []),
        *([] if tag_glob == "*" else [tag_glob]),
    ]
    words += [str(word) for name, value in chosen.items() if value is not None for word in (name, value)]
    click.echo(f"every tag: {shlex.join(words)}")
    return 0 if summary.tags else 1


def _named(what: str, tags: Sequence[str]) -> Iterator[str]:
    """The first tags, one a line, and the number of the others."""
    yield from (f"  {what}: {tag}" for tag in tags[:SUMMARY_NAMED])
    if len(tags) > SUMMARY_NAMED:
        yield f"  and {len(tags) - SUMMARY_NAMED:,} more {what}"


def _cells(row: AgedRecord) -> dict[str, Any]:
    """The columns of a row; a terminal has eighty to a hundred characters for them, and JSON has the others."""
    value = row["value"]
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return {
        "zone": row["zone"],
        "tag": _name(row["subject"]),
        "value": _rounded(value) if is_number else json.dumps(value, ensure_ascii=False),
        "unit": row["unit"] or "",
        "quality": status_name(row["quality"] or 0),
        "source_time": re.sub(r"\.\d+", "", row["source_time"] or ""),
        "ahead": _duration(row["ahead_ms"]) if row["ahead_ms"] else "",
        "age": "" if row["age_ms"] is None else _duration(row["age_ms"]),
        "mode": row["mode"],
    }


def _rounded(value: float) -> float:
    """A number with the digits that a sensor has; a whole one with all of its digits."""
    return value if isinstance(value, int) or value.is_integer() else float(f"{value:.{DIGITS}g}")


def _name(subject: str) -> str:
    return subject.removeprefix("tag:")


def _duration(ms: int) -> str:
    for unit, unit_ms in (("d", 86_400_000), ("h", 3_600_000), ("min", 60_000)):
        if ms >= 2 * unit_ms:
            return f"{ms / unit_ms:.1f} {unit}"
    return f"{ms / 1000:.1f} s"


def _report_no_match(rows: Sequence[object], tag_glob: str, zone: str | None) -> None:
    if not rows:
        click.echo(f"bsfg: no tag matches {tag_glob!r}" + (f" in zone {zone}" if zone else ""), err=True)


def _peer_records(config_file: Path, stream: str | None) -> list[LatestRecord]:
    """Values that peers reported for streams whose pulls began at the latest values."""
    state_dir = load_settings(config_file).node.state_dir
    if not (state_dir / "peer_latest").is_dir():  # the usual case: the module that reads them is not imported
        return []
    from agent.node import peer_latest

    return peer_latest(state_dir, stream)


def _report_peer_values(rows: Sequence[LatestRecord]) -> None:
    for zone in sorted({row["via"] for row in rows if row["via"] is not None}):
        count = sum(row["via"] == zone for row in rows)
        click.echo(
            f"bsfg: {count} of these values are not in this store; {zone} reported them (--json names them)", err=True
        )


def _report_ahead(rows: Sequence[LatestRecord]) -> None:
    ahead = [row for row in rows if row["ahead_ms"]]
    if ahead:
        sources = ", ".join(sorted({row["source"] or row["zone"] for row in ahead}))
        click.echo(
            f"bsfg: {len(ahead)} of these values had a source time ahead of the node's clock when recorded; compare the "
            f"clocks of {sources} and of the node",
            err=True,
        )


def _report_missing(missing: Sequence[LatestRecord], depth_facts: int) -> None:
    if missing:
        names = ", ".join(_name(row["subject"]) for row in missing[:MISSING_NAMED])
        more = f" and {len(missing) - MISSING_NAMED} more" if len(missing) > MISSING_NAMED else ""
        where = f"in the last {depth_facts:,} facts" if depth_facts else "in the store"
        click.echo(f"bsfg: no value {where} of {names}{more}", err=True)


def _tags_in_force(config_file: Path) -> TagsInForce | None:
    """None, with a line on standard error, if the tags of a source are not known."""
    settings = load_settings(config_file)
    if not settings.sources:  # of a node above many others: what reads tag files is not imported
        return TagsInForce(settings.node.zone, {})
    from agent.ingest import TagFile, find_tag_files

    found = find_tag_files(settings.sources)
    maps = {name: file.map for name, file in found.items() if isinstance(file, TagFile)}
    wrong = {name: file for name, file in found.items() if not isinstance(file, TagFile)}
    if wrong:
        maps |= _last_maps(settings, wrong)
    for name, problems in wrong.items():
        if name not in maps:
            click.echo(f"bsfg: stale and removed tags are not marked: {problems[0]}; see bsfg check", err=True)
            return None
    tags = [tag for file in maps.values() for tag in file.tags]
    return TagsInForce(settings.node.zone, {tag.definition.subject: tag.longest_interval_ms for tag in tags})


def _last_maps(settings: NodeSettings, sources: Collection[str]) -> dict[str, Any]:
    """The maps of these sources that were last in force."""
    from agent.ingest import TagMap, TagMapError, parse_tag_file

    kept, found = load_kept(settings.node.state_dir), dict[str, TagMap]()
    for source in () if kept is None else kept.settings.sources:
        data = None if kept is None or source.name not in sources else kept.tag_files.get(source.name)
        if data is not None:
            try:
                found[source.name] = parse_tag_file(source, data)
            except TagMapError:
                continue  # an older program read it
    return found
