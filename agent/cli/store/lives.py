"""`bsfg store lives`: the lives of each zone of which a store has facts: when each began, how many facts, and where."""

from __future__ import annotations

from pathlib import Path

import click

from agent.cli import config_option, json_option
from agent.cli.store.store_file import file_option, open_reader
from agent.cli.table import lines
from agent.message import time_text
from agent.positions import begun_ms

COLUMNS = ("zone", "life", "begun", "stream", "facts", "first", "last", "ranges")


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
    for line in lines(COLUMNS, rows, "json" if as_json else "table"):
        click.echo(line)
