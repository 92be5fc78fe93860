"""`bsfg opcua`: try a server, browse it, read from it, and keep the certificates that its sources trust.

The commands connect as a source with the same settings would: signed and encrypted unless `--insecure` is given, and to a
server whose certificate is trusted. URL is `opc.tcp://host:4840/path`, or the name of a source of node.toml, whose
settings are then used. A command's module is imported when it is called.
"""

from __future__ import annotations

import click

from agent.cli import LazyGroup

_COMMANDS = {
    "test": "agent.cli.opcua.probe:test",
    "browse": "agent.cli.opcua.browse:browse",
    "read": "agent.cli.opcua.read:read",
    "backfill": "agent.cli.opcua.backfill:backfill",
    "trust": "agent.cli.opcua.trust:trust",
    "certificate": "agent.cli.opcua.certificate:certificate",
}


@click.group(cls=LazyGroup, lazy=_COMMANDS)
def opcua() -> None:
    """Try, browse and read OPC UA servers; keep trusted certificates."""
