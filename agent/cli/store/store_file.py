"""The option that names a store file, a reader of it, and the report of offsets that cannot be read."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import click

from agent.cli import FILE
from agent.cli.local_node import load_settings
from agent.fact_store import StoreReader, open_copy
from agent.query.scan import ScanCounters

file_option = click.option(
    "--file",
    "store_file",
    type=FILE,
    help="The file of a store, or one that was set aside.  [default: the store of the node]",
)


@contextlib.contextmanager
def open_reader(config_file: Path, store_file: Path | None) -> Iterator[StoreReader]:
    """A reader of `store_file`, or of the node's store where that is None."""
    opened = open_copy(store_file) if store_file else StoreReader(load_settings(config_file).node.store_file)
    with contextlib.closing(opened) as reader:
        yield reader


def report_holes(counters: ScanCounters) -> int:
    """Print to standard error which offsets and definitions could not be read. Returns the exit status: 1 if data are
    damaged."""
    for stream, hole in counters.holes:
        click.echo(f"bsfg: {stream}: offsets {hole.first_offset} to {hole.last_offset} are {hole.reason}", err=True)
    if counters.holes_total > len(counters.holes):
        click.echo(f"bsfg: {counters.holes_total - len(counters.holes)} more holes", err=True)
    for what in counters.unreadable:
        click.echo(f"bsfg: {what}", err=True)
    return int(counters.is_damaged)
