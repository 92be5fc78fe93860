"""`bsfg store stats`: counts of a store by stream, origin and consumer, and the size of its files.

It reads the summaries of batches and opens none, so a store of 100 million facts takes about a second.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import click

from agent.batch import Origin
from agent.cli import config_option, json_option
from agent.cli.store.store_file import file_option, open_reader
from agent.message import time_text
from agent.query.statistics import Statistics, statistics

INCIDENTS_SHOWN = 5


@click.command()
@config_option
@file_option
@json_option
def stats(config_file: Path, store_file: Path | None, as_json: bool) -> None:  # noqa: FBT001 click passes options by name
    """Count what a store holds: streams, origins, definitions, consumers, files, incidents."""
    with open_reader(config_file, store_file) as reader:
        found = statistics(reader)
    click.echo(json.dumps(found.to_dict()) if as_json else text(found))
    sys.exit(0)


def text(found: Statistics) -> str:
    """The statistics as text for people."""
    file = found.file
    each = f", {file.bytes / found.facts:.2f} bytes a fact" if found.facts else ""
    lines = [
        f"{found.origin.zone}: {found.facts:,} facts in {file.path}",
        f"  file        {_mb(file.bytes)}{each}; {_mb(file.free_bytes)} of it free for reuse; log {_mb(file.wal_bytes)}",
    ]
    for stream in found.streams:
        lines.append(
            f"  stream      {stream.name}: offsets {stream.first_offset:,} to {stream.end_offset:,}, {stream.facts:,} facts "
            f"({stream.messages:,} messages) in {stream.batches:,} batches, {_mb(stream.bytes)}"
        )
        if stream.oldest_ns is not None and stream.newest_ns is not None:
            each = (
                f", {stream.bytes / stream.facts:.2f} bytes a fact, {stream.facts / stream.batches:.0f} facts a batch"
            )
            lines.append(f"              from {time_text(stream.oldest_ns)} to {time_text(stream.newest_ns)}{each}")
        for origin, of in stream.origins.items():
            missing = f", {of.missing:,} of them missing" if of.missing else ""
            lines.append(
                f"    from      {_name(origin)}: {of.facts:,} facts, sequences {of.first_sequence:,} to "
                f"{of.last_sequence:,}{missing}"
            )
    lines += [f"  definitions {_name(origin)}: {count:,}" for origin, count in found.definitions.items()]
    for consumer in found.consumers:
        state = consumer.state
        lines.append(
            f"  consumer    {state.name} ({state.zone}) of {state.stream}: {state.lifecycle.value}, confirmed to "
            f"{state.frontier:,}; holds back {consumer.unconfirmed_facts:,} facts, {_mb(consumer.unconfirmed_bytes)}"
        )
    for incident in found.incidents[:INCIDENTS_SHOWN]:
        at = time_text(incident.last_unix_ms * 1_000_000)
        lines.append(
            f"  incident    {incident.kind} {incident.subject}, {incident.count} times, last {at}: {incident.detail}"
        )
    if len(found.incidents) > INCIDENTS_SHOWN:
        lines.append(f"              and {len(found.incidents) - INCIDENTS_SHOWN} more")
    return "\n".join(lines)


def _name(origin: Origin) -> str:
    return f"{origin.zone}, epoch {origin.epoch.hex()[:8]}"


def _mb(size: int) -> str:
    return f"{size / 1e6:,.1f} MB"
