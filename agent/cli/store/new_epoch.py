"""`bsfg store new-epoch`: begin a new epoch of a store that was restored from an old copy, by hand.

A store that is restored without its witness begins a new epoch by itself. A store that is restored with its witness
refuses peers that have read further (incident `ahead`), because an unproven claim of a peer must not begin an epoch.
"""

from __future__ import annotations

import json
from pathlib import Path

import click

from agent import local_socket
from agent.cli import config_option, json_option
from agent.cli.local_node import ask
from agent.config import load


@click.command("new-epoch")
@config_option
@click.option(
    "--because", default="an operator restored the store", show_default=True, help="Reason, recorded with the epoch."
)
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
@json_option
def new_epoch(config_file: Path, because: str, yes: bool, as_json: bool) -> None:
    """Begin a new epoch, because this store was restored from an old copy. No fact is lost: every peer reads the store
    once more, and skips what it holds."""
    settings = load(config_file)
    if not yes:
        click.confirm("Every peer will read this store from its beginning. Begin a new epoch?", abort=True, err=True)
    answer = ask(settings, local_socket.BeginEpoch(because), local_socket.EpochBegan)
    if as_json:
        click.echo(json.dumps({"epoch": answer.epoch, "previous_epoch": answer.previous_epoch}))
    else:
        click.echo(f"epoch {answer.epoch} began after {answer.previous_epoch}")
