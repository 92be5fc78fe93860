"""`bsfg source retry`: make the running node connect to a source now instead of after its back-off, for example after a
repair of the device.

The command sends the request to the node's local socket and does not connect to the device itself.
"""

from __future__ import annotations

from pathlib import Path

import click

from agent import local_socket
from agent.cli import config_option, json_option, print_either
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
    text = f"{name} is {answer.state} already; tags that its server refuses are tried now"
    if answer.state == "waiting":
        text = f"{name} connects now; see bsfg status"
    print_either({"source": name, "was": answer.state}, text, as_json=as_json)
