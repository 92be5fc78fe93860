"""`bsfg fetch`, `confirm` and `tail`: print facts on the machine of the node, and confirm them.

Facts are read from the store's file, read-only, whether a node runs or not, and printed as JSON lines with offset,
envelope and fact. A consumer's cursor is moved by the running node; where none runs, the command opens the store
itself.
"""

from __future__ import annotations

import contextlib
import sys
import time
from pathlib import Path
from typing import Any

import click

from agent.cli import config_option, json_option, print_either, print_json
from agent.cli.local_node import load_settings, node_client, start_option, unknown_stream
from agent.client import FetchedFact
from agent.fact_store import StoreReader
from agent.pages import Hole, Start
from agent.query.scan import StreamUnknown, fact_messages, shown_fact

FOLLOW_S = 0.2
PAGE_FACTS = 10_000  # of one request; so many are in memory, 20 MB of samples


@click.command()
@config_option
@click.option("--stream", default="facts.operational", show_default=True, help="The stream.")
@click.option("--consumer", required=True, help="The consumer; registered at its first fetch.")
@start_option
@click.option(
    "--limit", type=click.IntRange(1, 1_000_000), default=100, show_default=True, help="Maximum number of facts."
)
def fetch(config_file: Path, stream: str, consumer: str, start: Start, limit: int) -> None:
    """Print the facts after the consumer's frontier, oldest first. Until they are confirmed, the next fetch prints them
    again."""
    settings = load_settings(config_file)
    with contextlib.closing(StoreReader(settings.node.store_file)) as reader:
        known = _streams(reader)
    node, after, damaged = node_client(settings), None, False
    while limit > 0:
        page = node.fetch(consumer, stream, limit=min(limit, PAGE_FACTS), start=start, after=after)
        for part in page.in_order():
            _print(_shown(part), stream)
        damaged |= any(hole.reason == "damaged" for hole in page.holes)
        if not page.more or page.position == after:
            break
        after, limit = page.position, limit - len(page.facts)
    if stream not in known:  # not refused: a consumer may exist before the first fact
        click.echo(unknown_stream(known, stream, consumer), err=True)
    sys.exit(1 if damaged else 0)


@click.command()
@config_option
@click.option("--consumer", required=True, help="The consumer.")
@click.option("--first-offset", type=click.IntRange(1), help="Confirm only from here on.  [default: the frontier]")
@click.argument("offset", type=click.IntRange(1))
@json_option
def confirm(config_file: Path, consumer: str, first_offset: int | None, offset: int, as_json: bool) -> None:
    """Confirm that the consumer has stored everything up to OFFSET. The frontier never moves back."""
    settings = load_settings(config_file)
    node = node_client(settings)
    advanced = node.confirm(consumer, node.position(consumer, offset), first_offset)
    print_either({"cursor_advanced_to": advanced}, f"cursor advanced to {advanced}", as_json=as_json)


@click.command()
@config_option
@click.option("--stream", default="facts.telemetry", show_default=True, help="The stream.")
@click.option(
    "--limit", type=click.IntRange(1, 1_000_000), default=10, show_default=True, help="How many of the last facts."
)
@click.option("--follow", is_flag=True, help="Keep printing new facts until Ctrl-C.")
def tail(config_file: Path, stream: str, limit: int, follow: bool) -> None:
    """Print the last facts of a stream. No cursor moves."""
    settings = load_settings(config_file)
    with contextlib.ExitStack() as stack:
        reader = stack.enter_context(contextlib.closing(StoreReader(settings.node.store_file)))
        stack.enter_context(contextlib.suppress(KeyboardInterrupt, BrokenPipeError))
        known, end = _streams(reader), reader.end_offset(stream)
        if stream not in known:
            if not follow:  # which may wait for the first fact
                raise StreamUnknown(f"there is no stream {stream!r}", f"there are: {', '.join(known) or 'none'}")
            click.echo(unknown_stream(known, stream), err=True)
        after, damaged = max(0, end - limit), False
        while True:
            # Without --follow, stop at the end found at the start: a running node keeps appending.
            for message in fact_messages(reader, stream, after, sys.maxsize if follow else end - after):
                after = _print(message, stream)
                damaged |= isinstance(message, Hole) and message.reason == "damaged"
            if not follow:
                sys.exit(1 if damaged else 0)
            time.sleep(FOLLOW_S)


def _streams(reader: StoreReader) -> list[str]:
    return sorted(info.name for info in reader.streams())


def _shown(part: FetchedFact | Hole) -> dict[str, Any] | Hole:
    return part if isinstance(part, Hole) else shown_fact(part.offset, part.envelope, part.fact)


def _print(message: dict[str, Any] | Hole, stream: str) -> int:
    """Print a fact, or a hole on standard error. Returns the last offset that was printed."""
    if isinstance(message, Hole):
        click.echo(
            f"bsfg: {stream}: offsets {message.first_offset} to {message.last_offset} are {message.reason}", err=True
        )
        return message.last_offset
    print_json(message)
    return int(message["offset"])
