"""`bsfg opcua backfill`: make the running node read a time range from the history of a source's server.

The node does this by itself after every gap. Use the command for values that a server added to its history later.
Values that the store has already are left out.
"""

from __future__ import annotations

import time
from pathlib import Path

import click

from agent import local_socket
from agent.cli import config_option, json_option, print_json
from agent.cli.local_node import ask
from agent.cli.node_settings import load_settings
from agent.message import time_text
from agent.query.scan import parse_moment_ns


@click.command()
@config_option
@click.argument("name")
@click.option("--from", "first", required=True, help="Begin: ISO 8601 with a zone, or a time before now such as 2h.")
@click.option("--to", "last", default="0s", show_default=True, help="End, in the same forms.")
@json_option
def backfill(config_file: Path, name: str, first: str, last: str, as_json: bool) -> None:
    """Read missing values of the source NAME between two times from its server's history.

    Returns at once. The fact history_backfilled in facts.operational records the end and the result. The last ten
    seconds before now are not read, because live values cover them.
    """
    now_ns = time.time_ns()
    first_ns, last_ns = parse_moment_ns(first, now_ns), parse_moment_ns(last, now_ns)
    if first_ns >= last_ns:
        raise click.BadParameter(f"{first} is not before {last}", param_hint="--from")
    request = local_socket.BackfillSource(name, first_ns, last_ns)
    answer = ask(load_settings(config_file), request, local_socket.BackfillQueued)
    if as_json:
        times = {"first_time": time_text(first_ns), "last_time": time_text(last_ns)}
        print_json({"source": name, **times, "gaps_open": answer.gaps_open})
    else:
        click.echo(f"{name}: {time_text(first_ns)} to {time_text(last_ns)} will be read from the server's history")
        click.echo(f"gaps to fill now: {answer.gaps_open}; for the result: bsfg tail --stream facts.operational")
