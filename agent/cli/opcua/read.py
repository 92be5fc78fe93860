"""`bsfg opcua read`: values of single nodes of a server, with type, status and times, and a tag file row for each."""

from __future__ import annotations

import asyncio
import sys
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from agent.cli import json_option, print_json
from agent.cli.opcua.options import Connection, connection_of, connection_options
from agent.escaping import printable
from agent.ingest.opcua.explore.explorer import explore, row_text

if TYPE_CHECKING:
    from agent.ingest.opcua.explore.explorer import NodeReading


@click.command()
@connection_options
@click.argument("nodes", nargs=-1, required=True, metavar="NODE...")
@json_option
def read(nodes: tuple[str, ...], as_json: bool, **options: Any) -> None:
    """Read NODEs of URL: value, type, status, times, and the row for a tag file.

    A NODE is nsu=<namespace URI>;s=<name>, also ;i= ;g= and ;b=, or ns=<index>;... as other clients show it. Exit
    status 1 when one of them is bad.
    """
    connection = connection_of(options)
    found = asyncio.run(_read(connection, nodes))
    is_bad = False
    for value in found:
        is_bad |= value.status.startswith("Bad")
        row = row_text(value, connection.settings.name)
        if as_json:
            print_json({**asdict(value), "row": row})
            continue
        click.echo(printable(f"{value.name or '(no name)'}  {value.address}"))
        for name, text in (
            ("value", value.value),
            ("type", value.data_type),
            ("status", value.status),
            ("source time", value.source_time or "none"),
            ("server time", value.server_time or "none"),
            ("row", row),
        ):
            click.echo(printable(f"  {name:<12} {text}").rstrip())
    if is_bad:
        sys.exit(1)


async def _read(connection: Connection, nodes: tuple[str, ...]) -> list[NodeReading]:
    async with explore(connection.settings, connection.password) as explorer:
        addresses = []
        for node in nodes:
            try:
                addresses.append(explorer.address(node))
            except ValueError as error:
                raise click.UsageError(f"{node!r} {error}") from error
        return await explorer.read(addresses)
