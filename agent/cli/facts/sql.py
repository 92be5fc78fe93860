"""`bsfg sql`: ask a store in SQL, read-only, in a process of its own.

Works beside a running node and without one, on the node's store or on a file that was set aside. The answer is a table, CSV, or
JSON lines; what could not be read is said on standard error and ends with status 1, after everything else has been printed.
"""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import click

from agent.cli import config_option, json_option
from agent.cli.table import lines
from agent.config import load
from agent.fact_store import StoreReader
from agent.query.scan import ScanCounters
from agent.query.sql import SqlSession

file_option = click.option(
    "--file",
    "store_file",
    type=click.Path(path_type=Path, dir_okay=False),
    help="A store's file, also one that was set aside.  [default: the node's]",
)


@click.command()
@config_option
@file_option
@click.option("--csv", "as_csv", is_flag=True, help="Print CSV for spreadsheets.")
@json_option
@click.argument("statement")
def sql(config_file: Path, store_file: Path | None, as_csv: bool, as_json: bool, statement: str) -> None:  # noqa: FBT001 click passes options by name
    """Run the SELECT statement STATEMENT ("-" reads it from standard input) on the tables facts, latest, definitions, streams,
    consumers and incidents; see docs/operate/query.md for their columns."""
    text = sys.stdin.read() if statement == "-" else statement
    with reader_of(config_file, store_file) as reader:
        session = SqlSession(reader, time.time_ns())
        with contextlib.closing(session):
            answer = session.ask(text)
            for line in lines(answer.columns, answer.rows, "json" if as_json else "csv" if as_csv else "table"):
                click.echo(line)
            sys.exit(tell_holes(session.scanner.counters))


@contextlib.contextmanager
def reader_of(config_file: Path, store_file: Path | None) -> Iterator[StoreReader]:
    """A reader of the file named, or else of the node's store."""
    with contextlib.closing(StoreReader(store_file or load(config_file).store_file)) as reader:
        yield reader


def tell_holes(counters: ScanCounters) -> int:
    """Say on standard error what could not be read; the exit status that follows from it."""
    for stream, hole in counters.holes:
        click.echo(f"bsfg: {stream}: offsets {hole.first_offset} to {hole.last_offset} are {hole.reason}", err=True)
    if counters.holes_total > len(counters.holes):
        click.echo(f"bsfg: {counters.holes_total - len(counters.holes)} more holes", err=True)
    return 1 if any(hole.reason == "damaged" for _, hole in counters.holes) else 0
