"""`bsfg store`: the file in which a node keeps its facts, looked at and looked after. Each verb lies in a module of its own."""

from __future__ import annotations

import click

from agent.cli import LazyGroup

_VERBS = {
    "export": "agent.cli.store.export:export",
    "migrate": "agent.cli.store.migrate:migrate",
    "stats": "agent.cli.store.stats:stats",
    "verify": "agent.cli.store.verify:verify",
}


@click.group(cls=LazyGroup, lazy=_VERBS)
def store() -> None:
    """Look at a store, check it, migrate it, and take flat copies of what it holds."""
