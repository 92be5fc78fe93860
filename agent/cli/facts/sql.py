"""`bsfg sql`: run a SELECT statement on a store, read-only, in a process of its own.

It works with and without a running node, on the node's store or on a file that was set aside. The answer is a table,
CSV or JSON lines. Offsets that could not be read are printed last, on standard error; damage gives exit status 1.
"""

from __future__ import annotations

import contextlib
import sys
import time
from pathlib import Path

import click

from agent.cli import config_option, json_option
from agent.cli.store.store_file import file_option, open_reader, report_holes
from agent.cli.table import lines
from agent.cli.terminal import echo_csv
from agent.query.sql import SqlSession


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
