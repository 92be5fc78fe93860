"""`bsfg store verify`: check a store for damage, read-only, alongside a running node or on a file that was set aside.
`bsfg store migrate`: migrate a store to the schema of this program, as a node does when it starts.

`verify` prints each damage with stream, offsets, origin and sequence, and at the end what to do; then where the history
of a zone divides, contradicts itself or has a gap, which is no damage. Exit status 1 when there is damage. Progress is
shown on a terminal only.

`migrate` is refused, without changes, while a node runs (StoreLocked) and for a store of a newer program (StoreTooNew).
"""

from __future__ import annotations

import contextlib
import sys
import time
from contextlib import closing
from dataclasses import asdict
from pathlib import Path

import click

from agent.cli import config_option, json_option, print_json
from agent.cli.local_node import load_settings
from agent.cli.store.store_file import file_option
from agent.cli.terminal import Progress
from agent.config import load
from agent.errors import StoreError
from agent.fact_store import (
    FILES,
    Damage,
    Incident,
    StoreReader,
    VerifyCounts,
    check_known,
    connect_reader,
    migrate_store,
    verify_store,
)
from agent.health.verdict import HISTORY

SHOWN_MAX = 100
WHAT_TO_DO = (
    "Damaged batches are reported to every reader as missing; the rest is served. Keep the file, check the disk (dmesg,"
    " SMART), and fetch what is missing from a zone that holds it: bsfg peer compare ZONE --scan --repair"
    " (docs/operate/integrity.md)."
)


@click.command()
@config_option
@file_option
@click.option(
    "--quick", is_flag=True, help="Check digests, chains and tables only; do not open batches or check pages."
)
@json_option
def verify(config_file: Path, store_file: Path | None, quick: bool, as_json: bool) -> None:
    """Compare every batch with its digest, its predecessor and the tables."""
    path = store_file or load_settings(config_file).node.store_file
    line = Progress()

    def show(stream: str, offset: int, end_offset: int) -> None:
        line.show(f"{stream} {offset / max(end_offset, 1):4.0%}")

    done, damages, began_s = VerifyCounts(), list[Damage](), time.monotonic()
    for damage in verify_store(path, done, show, is_quick=quick):
        damages.append(damage)
        if not as_json and len(damages) <= SHOWN_MAX:
            click.echo(f"damaged: {damage}")
    took_s = time.monotonic() - began_s
    if as_json:
        found = {"seconds": round(took_s, 3), "damages": [damage._asdict() for damage in damages]}
        print_json({"file": str(path), **asdict(done), **found})
    else:
        if len(damages) > SHOWN_MAX:
            click.echo(f"and {len(damages) - SHOWN_MAX} more; --json prints all")
        click.echo(
            f"{path}: {done.batches:,} batches with {done.facts:,} facts in {done.streams} streams,"
            f" {done.definitions:,} tag definitions, {done.signed:,} signed batches, {done.bytes / 1e6:,.1f} MB"
            f" in {took_s:.1f} s:"
            f" {f'{len(damages)} damages' if damages else 'as they were written'}"
        )
        if damages:
            click.echo(WHAT_TO_DO)
        for incident in _of_history(path):
            click.echo(f"{incident.kind}: {incident.subject}: {incident.detail}")
            click.echo(f"  -> {HISTORY[incident.kind].value.remedy}")
    sys.exit(1 if damages else 0)


def _of_history(path: Path) -> list[Incident]:
    """What is no damage: a history that divides, contradicts itself or has a gap. Of a damaged file, what can be
    read."""
    try:
        with contextlib.closing(StoreReader(path)) as reader:
            return reader.incidents(SHOWN_MAX, HISTORY)
    except StoreError:
        return []


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
