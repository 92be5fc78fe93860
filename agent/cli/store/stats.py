"""`bsfg store stats`: counts of a store by stream, origin and consumer, and the size of its files. `bsfg store lives`:
the lives of each zone of which a store has facts: when each began, how many facts, and where.

They read only the summaries of batches, so a store of 100 million facts takes about a second. Flash wear is estimated
from the bytes that the running node has written, or, without a node, from the batches and the times when they were
recorded.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from agent.batch import Origin
from agent.cli import config_option, json_option, print_json
from agent.cli.local_node import load_settings
from agent.cli.store.store_file import file_option, open_reader
from agent.cli.table import lines
from agent.client import Client, NodeSilent
from agent.fact_store import StoreReader
from agent.health.flash import BYTES_PER_BYTE, BYTES_PER_COMMIT, written_bytes_per_s, years_text
from agent.health.problems import counted
from agent.health.verdict import HISTORY
from agent.message import time_text
from agent.positions import begun_ms
from agent.query.statistics import Statistics, statistics

INCIDENTS_SHOWN = 5
MEASURED_S_MIN = 300.0
"""A shorter run consists mostly of writes at the start: definitions, and a growing log."""
LIFE_COLUMNS = ("zone", "life", "begun", "stream", "facts", "first", "last", "ranges")


@click.command()
@config_option
@file_option
@json_option
def stats(config_file: Path, store_file: Path | None, as_json: bool) -> None:
    """Print statistics of a store: streams, origins, definitions, consumers, files, incidents."""
    with open_reader(config_file, store_file) as reader:
        found = statistics(reader)
        flash = _measured(config_file, found.zone) if store_file is None else None
        flash = flash or _estimated(reader, found)
    if as_json:
        print_json({**found.to_dict(), "flash": flash})
    else:
        click.echo("\n".join([text(found), *([] if flash is None else [f"  flash       {flash['text']}"])]))


def _measured(config_file: Path, zone: str) -> dict[str, Any] | None:
    """Bytes per second that the running node of this store has written since its start; None if no node answers, if it
    has just started, or if nothing was counted."""
    settings = load_settings(config_file)
    try:
        answer = Client(settings.node.state_dir).status()
    except NodeSilent:
        return None
    if answer["zone"] != zone:  # another node has the socket
        return None
    seconds = (answer["taken_unix_ms"] - answer["started_unix_ms"]) / 1000
    written = answer["store"].get("written_bytes_total")
    if not written or seconds < MEASURED_S_MIN:  # a kernel may not count, as for a file system in memory
        return None
    per_s = written / seconds
    return {
        "written_bytes_per_s": round(per_s),
        "text": f"the node wrote {years_text(per_s)}, measured since its start",
    }


def _estimated(reader: StoreReader, found: Statistics) -> dict[str, Any] | None:
    """An estimate from the store's batches; None if they were recorded within a few minutes. Batches of several streams
    usually share commits, so only those of the busiest stream count."""
    marks = {stream.name: [unix_ms for _, unix_ms in reader.clock_marks(stream.name)] for stream in found.streams}
    times = [unix_ms for some in marks.values() for unix_ms in some]
    seconds = (max(times) - min(times)) / 1000 if times else 0.0
    if seconds < MEASURED_S_MIN:
        return None
    batches, sealed = max(stream.batches for stream in found.streams), sum(stream.bytes for stream in found.streams)
    per_s = written_bytes_per_s(batches / seconds, sealed / seconds)
    sum_text = (
        f"{batches / seconds:.2f} batches/s x {BYTES_PER_COMMIT:,} bytes + {sealed / seconds:,.0f} sealed bytes/s x "
        f"{BYTES_PER_BYTE:g}"
    )
    return {
        "written_bytes_per_s": round(per_s),
        "text": f"its batches make {years_text(per_s)}; estimated: {sum_text}",
    }


def text(found: Statistics) -> str:
    """The statistics as text for people."""
    file = found.file
    per_fact = f", {file.bytes / found.facts:.2f} bytes a fact" if found.facts else ""
    lines = [
        f"{found.zone}: {found.facts:,} facts in {file.path}",
        f"  file        {_mb(file.bytes)}{per_fact}; {_mb(file.free_bytes)} of it free for reuse; log {_mb(file.wal_bytes)}",
    ]
    for stream in found.streams:
        lines.append(
            f"  stream      {stream.name}: offsets {stream.first_offset:,} to {stream.end_offset:,}, {stream.facts:,} facts "
            f"({stream.messages:,} messages) in {stream.batches:,} batches, {_mb(stream.bytes)}"
        )
        if stream.oldest_ns is not None and stream.newest_ns is not None:
            per_fact = (
                f", {stream.bytes / stream.facts:.2f} bytes a fact, {stream.facts / stream.batches:.0f} facts a batch"
            )
            lines.append(f"              from {time_text(stream.oldest_ns)} to {time_text(stream.newest_ns)}{per_fact}")
        for origin, of in stream.origins.items():
            missing = f", {of.missing:,} of them missing" if of.missing else ""
            lines.append(
                f"    from      {_name(origin)}: {of.facts:,} facts, sequences {of.first_sequence:,} to "
                f"{of.last_sequence:,}{missing}"
            )
    lines += [f"  definitions {zone}: {count:,}" for zone, count in found.definitions.items()]
    for consumer in found.consumers:
        state = consumer.state
        lines.append(
            f"  consumer    {state.name} ({state.zone}) of {state.stream}: confirmed to {state.frontier:,}; "
            f"holds back {consumer.unconfirmed_facts:,} facts, {_mb(consumer.unconfirmed_bytes)}"
        )
    for incident in found.incidents[:INCIDENTS_SHOWN]:
        at = time_text(incident.last_unix_ms * 1_000_000)
        how_often = f"{counted(incident.count, 'time')}, last {at}"
        lines.append(f"  incident    {incident.kind} {incident.subject}, {how_often}: {incident.detail}")
        if incident.kind in HISTORY:
            lines.append(f"              -> {HISTORY[incident.kind].value.remedy}")
    if len(found.incidents) > INCIDENTS_SHOWN:
        lines.append(f"              and {len(found.incidents) - INCIDENTS_SHOWN} more")
    return "\n".join(lines)


def _name(origin: Origin) -> str:
    return f"{origin.zone}, life {origin.life.hex()[:16]}"


def _mb(size: int) -> str:
    return f"{size / 1e6:,.1f} MB"


@click.command()
@config_option
@file_option
@click.option("--zone", help="Only the lives of this zone.")
@json_option
def lives(config_file: Path, store_file: Path | None, zone: str | None, as_json: bool) -> None:
    """Print the lives of each zone: each opening of its store that recorded something, and the facts of it that are, or
    were, held here, by stream. Several ranges mean that facts between them were never here."""
    with open_reader(config_file, store_file) as reader:
        held = reader.lives_held(zone)
    rows = (
        (of, life.hex(), time_text(begun_ms(life) * 1_000_000), stream, facts, first, last, ranges)
        for of, life, stream, facts, first, last, ranges in held
    )
    for line in lines(LIFE_COLUMNS, rows, "json" if as_json else "table"):
        click.echo(line)
