"""The face: one command, `bsfg`, with a module for each noun.

A command says what happened in one line or prints facts; `--json` where it prints facts or figures. Exit status 0 is good,
1 a bad result, 2 bad usage; an error ends with what to do. Commands are loaded when they are called, so that `bsfg status`
does not pay for OPC UA. Nothing is decided here: a command reads its arguments, asks the product, and prints.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from agent import __version__
from agent.errors import BsfgError

DEFAULT_CONFIG = Path("node.toml")

_COMMANDS = {
    "init": "agent.cli.init:init",
    "check": "agent.cli.check:check",
    "run": "agent.cli.run:run",
    "status": "agent.cli.status:status",
    "append": "agent.cli.facts.facts:append",
    "lease": "agent.cli.facts.facts:lease",
    "object": "agent.cli.facts.object:object_",
    "fetch": "agent.cli.facts.facts:fetch",
    "confirm": "agent.cli.facts.facts:confirm",
    "consumer": "agent.cli.consumer:consumer",
    "tail": "agent.cli.facts.facts:tail",
    "latest": "agent.cli.facts.latest:latest",
    "sql": "agent.cli.facts.sql:sql",
    "store": "agent.cli.store.group:store",
    "pki": "agent.cli.pki.pki:pki",
    "broker": "agent.cli.broker:broker",
    "peer": "agent.cli.peer:peer",
    "hardware": "agent.cli.hardware:hardware",
    "bench": "agent.cli.bench:bench",
    "demo": "agent.cli.demo:demo",
}


class LazyGroup(click.Group):
    """A group whose commands are imported when somebody asks for them: `lazy` says where each lies, as module:name."""

    def __init__(self, *arguments: Any, lazy: Mapping[str, str], **more: Any) -> None:
        super().__init__(*arguments, **more)
        self._lazy = lazy

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 click's signature
        return list(self._lazy)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002 click's signature
        if cmd_name not in self._lazy:
            return None
        module, _, name = self._lazy[cmd_name].partition(":")
        command = getattr(importlib.import_module(module), name)
        assert isinstance(command, click.Command)
        return command


@click.group(cls=LazyGroup, lazy=_COMMANDS, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="bsfg")
def bsfg() -> None:
    """Store-and-forward agent for the boundary between plant and enterprise."""


config_option = click.option(
    "--config",
    "config_file",
    type=click.Path(path_type=Path),
    default=DEFAULT_CONFIG,
    show_default=True,
    envvar="BSFG_CONFIG",
    help="The node's configuration.",
)
json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON for programs.")


def main() -> None:
    """Entry point of the `bsfg` command."""
    if sys.flags.optimize:
        sys.exit("bsfg: python -O removes the assertions this program rests on; start it without -O")
    try:
        bsfg()
    except BsfgError as error:
        text = str(error)
        sys.exit(f"bsfg: {text}" if not error.hint or error.hint in text else f"bsfg: {text}; {error.hint}")
