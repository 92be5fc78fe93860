"""`bsfg store migrate`: migrate a store to the schema of this program. A node does the same when it starts.

It is refused, without changes, while a node runs (StoreLocked) and for a store of a newer program (StoreTooNew).
"""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import click

from agent.cli import config_option
from agent.cli.store.store_file import file_option
from agent.config import load
from agent.fact_store import FILES, check_known, connect_reader, migrate_store


@click.command()
@config_option
@file_option
def migrate(config_file: Path, store_file: Path | None) -> None:
    """Migrate a store to the schema of this program."""
    path = store_file or load(config_file).node.store_file
    with closing(connect_reader(path)) as connection:
        before = check_known(connection)
    migrate_store(path)
    now = FILES[-1].stem
    if len(before) == len(FILES):
        click.echo(f"{path} has schema {now} already")
    else:
        click.echo(f"{path}: from schema {before[-1] if before else 'none'} to {now}")
