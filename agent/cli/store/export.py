"""`bsfg store export`: write facts to a flat file for other programs. `bsfg sql`: run a SELECT statement. Both read a
store alongside a running node or from a file that was set aside.

At the end they print which offsets they could not read; damage gives exit status 1. Progress is shown on a terminal
only.
"""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable
from pathlib import Path

import click

from agent.cli import FILE_OR_STDOUT, config_option, json_option
from agent.cli.store.store_file import file_option, open_reader, report_holes
from agent.cli.table import lines
from agent.cli.terminal import Progress, echo_csv
from agent.message import INT64_MIN
from agent.query.export import STDOUT, FormatName
from agent.query.export import export as write
from agent.query.scan import INT64_MAX, Bounds, Scanner, matches_glob, parse_moment_ns
from agent.query.sql import SqlSession


@click.command()
@config_option
@file_option
@click.option(
    "--format",
    "form",
    type=click.Choice(["sqlite", "csv", "jsonl", "parquet"]),
    required=True,
    help="The format; docs/reference/export.md describes how each one writes values.",
)
@click.option("--stream", "streams", multiple=True, help="Facts of this stream only; may be repeated.")
@click.option("--since", help="Source time from this on: 2026-11-21T06:00Z, or 2h for two hours ago.")
@click.option("--until", help="Source time before this.")
@click.option("--tags", multiple=True, help="Facts about subjects that match this pattern only; may be repeated.")
@click.option("--force", is_flag=True, help="Replace TARGET if it exists.")
@click.argument("target", type=FILE_OR_STDOUT)
def export(
    config_file: Path,
    store_file: Path | None,
    form: FormatName,
    streams: tuple[str, ...],
    since: str | None,
    until: str | None,
    tags: tuple[str, ...],
    force: bool,
    target: Path,
) -> None:
    """Write facts as flat rows to TARGET ("-" is standard output, for csv and jsonl)."""
    now_ns = time.time_ns()
    first_ns = parse_moment_ns(since, now_ns) if since else INT64_MIN
    last_ns = parse_moment_ns(until, now_ns) - 1 if until else INT64_MAX
    if first_ns > last_ns:
        raise click.UsageError(f"--until {until} is not after --since {since}")
    with open_reader(config_file, store_file) as reader:
        scanner = Scanner(reader)
        bounds = Bounds(
            streams=scanner.check_streams(streams) if streams else None,
            time_min_ns=first_ns,
            time_max_ns=last_ns,
            subject_tests=(lambda subject: matches_glob(subject, tags),) if tags else (),
        )
        line = Progress()
        try:
            done = write(scanner, bounds, target, form, force=force, progress=_progress(scanner, line))
        finally:
            line.remove_line()
        size = f" ({done.bytes / 1e6:,.1f} MB)" if target != STDOUT else ""
        click.echo(f"{done.facts:,} facts to {target}{size}", err=target == STDOUT)
        sys.exit(report_holes(scanner.counters))


def _progress(scanner: Scanner, line: Progress) -> Callable[[int, str, int], None]:
    """Shows facts written, and the share of the store that was read."""
    before: dict[str, int] = {}
    total = 0
    for stream, end_offset in sorted(scanner.ends.items()):
        before[stream], total = total, total + end_offset

    def show(facts: int, stream: str, offset: int) -> None:
        line.show(f"{facts:,} facts, {(before[stream] + offset) / max(total, 1):4.0%} of the store")

    return show


@click.command()
@config_option
@file_option
@click.option("--csv", "as_csv", is_flag=True, help="Print CSV for spreadsheets.")
@json_option
@click.argument("statement")
def sql(config_file: Path, store_file: Path | None, as_csv: bool, as_json: bool, statement: str) -> None:
    """Run the SELECT statement STATEMENT ("-" reads it from standard input) on the tables facts, samples, latest,
    definitions, streams, consumers and incidents; see docs/operate/query.md for their columns."""
    text = sys.stdin.read() if statement == "-" else statement
    with open_reader(config_file, store_file) as reader:
        session = SqlSession(reader, time.time_ns())
        with contextlib.closing(session):
            answer = session.ask(text)
            for line in lines(answer.columns, answer.rows, "json" if as_json else "csv" if as_csv else "table"):
                (echo_csv if as_csv and not as_json else click.echo)(line)
            sys.exit(report_holes(session.scanner.counters))
