"""`bsfg store`: commands on one store file, a module each. They verify, export and migrate it, print its statistics, and
begin a new epoch."""

from __future__ import annotations

import click

from agent.cli import LazyGroup

_VERBS = {
    "export": "agent.cli.store.export:export",
    "migrate": "agent.cli.store.migrate:migrate",
    "new-epoch": "agent.cli.store.new_epoch:new_epoch",
    "stats": "agent.cli.store.stats:stats",
    "verify": "agent.cli.store.verify:verify",
}


@click.group(cls=LazyGroup, lazy=_VERBS)
def store() -> None:
    """Check, migrate and export a store, print its statistics, begin a new epoch."""
