"""`bsfg opcua browse`: the variables of a server as a tree, as JSON, or as a tag file. `bsfg opcua read`: values of
single nodes, with type, status and times, and a tag file row for each.

`agent.ingest` walks the server and makes the rows; this module filters, prints and writes them. Progress is shown on a
terminal only, on standard error.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from agent.cli import FILE_OR_STDOUT, json_option, print_json, write_whole
from agent.cli.opcua.options import SourceConnection, connection_of, connection_options
from agent.cli.terminal import Progress, echo_file
from agent.escaping import printable
from agent.ingest.opcua.explore.explorer import explore, row_text
from agent.ingest.opcua.explore.tag_rows import tag_file
from agent.ingest.opcua.explore.walk import OBJECTS, SERVER, Walk, is_excluded, is_wanted

if TYPE_CHECKING:
    from agent.ingest.opcua.explore.tag_rows import TagRow
    from agent.ingest.opcua.explore.walk import FoundVariable

    Found = list[tuple[FoundVariable, TagRow]]
    from agent.ingest.opcua.explore.explorer import NodeReading

STDOUT = Path("-")


@click.command()
@connection_options
@click.option("--start", default="", metavar="NODE", help="The node to start from; by default the Objects folder.")
@click.option("--filter", "text", default="", help="Only variables with this text in path or node id.")
@click.option("--glob", "pattern", default="", help="Only variables whose path matches, as 'Line1/*/Temperature'.")
@click.option("--depth", type=click.IntRange(1, 100), default=20, show_default=True, help="Maximum depth.")
@click.option(
    "--max-nodes",
    type=click.IntRange(1, 2_000_000),
    default=200_000,
    show_default=True,
    help="Maximum number of nodes.",
)
@click.option("--properties", is_flag=True, help="Include properties, such as serial numbers and limits.")
@click.option("--server-object", is_flag=True, help="Include the server's own state and diagnostics.")
@click.option("--csv", "csv_file", type=FILE_OR_STDOUT, help="Write a tag file; - is standard output.")
@click.option(
    "--exclude", multiple=True, metavar="GLOB", help="Leave out variables whose path or tag matches; may be repeated."
)
@click.option("--prefix", default="", help="Put this before each tag's name, as 'press-2/', for identical machines.")
@click.option("--force", is_flag=True, help="Replace an existing tag file.")
@json_option
def browse(csv_file: Path | None, force: bool, as_json: bool, **options: Any) -> None:
    """List the variables of URL as a tree, or write them as a tag file.

    Nodes that cannot be browsed or read are counted and named at the end. Exit status 1 when no variable was found.
    """
    names = ("start", "text", "pattern", "depth", "max_nodes", "properties", "server_object", "exclude", "prefix")
    wanted = {name: options.pop(name) for name in names}
    if csv_file is not None and csv_file != STDOUT and csv_file.exists() and not force:
        raise click.UsageError(f"{csv_file} exists; give another name, or --force to replace it")
    walk, found = asyncio.run(_browse(connection_of(options), **wanted))
    if csv_file is not None and found:
        data = tag_file([row for _, row in found])
        if csv_file == STDOUT:
            echo_file(data)
        else:
            write_whole(csv_file, data)
            click.echo(f"wrote {len(found):,} tags to {csv_file}")
    elif as_json:
        for variable, row in found:
            print_json({"path": variable.path_text, **asdict(row)})
    else:
        for line in _tree(found):
            click.echo(printable(line))
    for line in _remarks(walk, len(found)):
        click.echo(printable(line), err=True)
    if not found:
        sys.exit(1)


async def _browse(
    connection: SourceConnection,
    *,
    start: str,
    text: str,
    pattern: str,
    depth: int,
    max_nodes: int,
    properties: bool,
    server_object: bool,
    exclude: Sequence[str],
    prefix: str,
) -> tuple[Walk, Found]:
    progress = Progress()
    async with explore(connection.settings, connection.password) as explorer:
        try:
            node = explorer.address(start) if start else OBJECTS
        except ValueError as error:
            raise click.UsageError(f"--start {start!r} {error}") from error
        skipped = () if server_object or node == SERVER else (SERVER,)
        walk = Walk(node, depth, max_nodes, skipped, with_properties=properties)
        await explorer.walk(walk, progress)
        wanted = [variable for variable in walk.variables() if is_wanted(variable, text, pattern)]
        found = await explorer.rows(wanted, connection.settings.name, prefix, walk.failures, progress)
    progress.remove_line()
    return walk, [(variable, row) for variable, row in found if not is_excluded(variable, row.tag, exclude)]


def _tree(found: Found) -> Iterator[str]:
    """A line for each folder, and one for each variable with its type, unit and address."""
    above: tuple[str, ...] = ()
    for variable, row in found:
        shared = 0
        for name_above, name in zip(above, variable.path[:-1], strict=False):
            if name_above != name:
                break
            shared += 1
        for level, name in enumerate(variable.path[:-1]):
            if level >= shared:
                yield f"{'  ' * level}{name}"
        above = variable.path
        unit = f" {row.unit}" if row.unit else ""
        slow = f", sampled every {row.sampling_interval_ms} ms at most" if row.sampling_interval_ms else ""
        text = f"  {row.description}" if row.description else ""
        indent = "  " * (len(variable.path) - 1)
        yield f"{indent}{variable.path[-1]} [{row.data_type}{unit}{slow}] {row.address}{text}"


def _remarks(walk: Walk, count: int) -> Iterator[str]:
    """What was left out, and why."""
    if not count:
        yield "no variable found; widen --filter, --glob, --exclude or --depth, or connect as another user"
    if walk.is_cut:
        yield f"stopped after {walk.nodes_total:,} nodes; raise --max-nodes, or begin at a lower node with --start"
    if walk.deeper_total:
        yield f"{walk.deeper_total:,} nodes below --depth were not visited"
    for why, number in walk.failures.counts.most_common():
        yield f"{number:,} left out: {why}"
    for name in walk.failures.named:
        yield f"  {name}"
    more = walk.failures.counts.total() - len(walk.failures.named)
    if more > 0:
        yield f"  and {more:,} more"


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


async def _read(connection: SourceConnection, nodes: tuple[str, ...]) -> list[NodeReading]:
    async with explore(connection.settings, connection.password) as explorer:
        addresses = []
        for node in nodes:
            try:
                addresses.append(explorer.address(node))
            except ValueError as error:
                raise click.UsageError(f"{node!r} {error}") from error
        return await explorer.read(addresses)
