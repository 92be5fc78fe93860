"""`bsfg source retry`: make the running node connect to a source now instead of after its back-off, for example after a
repair of the device.

The command sends the request to the node's local socket and does not connect to the device itself.
"""

from __future__ import annotations

import json
from pathlib import Path

import click

from agent import local_socket
from agent.cli import config_option, json_option
from agent.cli.local_node import ask
from agent.cli.node_settings import load_settings


@click.command()
@config_option
@click.argument("name")
@json_option
def retry(config_file: Path, name: str, as_json: bool) -> None:
    """Connect to the source NAME now instead of waiting for the next attempt, for example after a repair.

    At an OPC UA source that is connected, the tags that its server refuses are tried at once.
    """
    answer = ask(load_settings(config_file), local_socket.RetrySource(name), local_socket.SourceRetried)
    if as_json:
        click.echo(json.dumps({"source": name, "was": answer.state}))
    elif answer.state == "waiting":
        click.echo(f"{name} connects now; see bsfg status")
    else:
        click.echo(f"{name} is {answer.state} already; tags that its server refuses are tried now")
