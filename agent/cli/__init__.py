"""The command line: `bsfg` and its subcommands, a module for each noun. `_COMMANDS` says which module holds which
command.

A command prints one line or facts; with `--json` it prints JSON. The exit status is 0 for a good result, 1 for a bad
one and 2 for wrong usage; Ctrl-C ends it as its signal does. An error message ends with what to do. A command's module
is imported when the command is called, so that `bsfg status` does not load OPC UA. A command reads its arguments, calls
the product and prints; it decides nothing.
"""

from __future__ import annotations

import contextlib
import importlib
import io
import json
import math
import os
import re
import signal
import stat
import sys
from collections.abc import Collection, Iterator, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

import click

import agent.cli.node_choice as node_choice  # noqa: PLR0402 a from-import would be a face of this package
from agent import __version__
from agent.errors import BsfgError
from agent.escaping import printable, printable_lines
from agent.file_replace import write_file

EXTRAS = ("pyspark", "pyarrow")
"""Packages that a gateway does not have, because only Spark and Parquet need them."""

_COMMANDS = {
    "init": "agent.cli.prepare.init:init",
    "check": "agent.cli.prepare.check:check",
    "setup": "agent.cli.prepare.setup:setup",
    "run": "agent.cli.run:run",
    "reload": "agent.cli.run:reload",
    "backup": "agent.cli.backup:backup_command",
    "restore": "agent.cli.backup:restore",
    "status": "agent.cli.health.status:status",
    "append": "agent.cli.facts.append:append",
    "lease": "agent.cli.facts.append:lease",
    "object": "agent.cli.facts.object:object_",
    "fetch": "agent.cli.facts.fetch:fetch",
    "confirm": "agent.cli.facts.fetch:confirm",
    "consumer": "agent.cli.consumer:consumer",
    "tail": "agent.cli.facts.fetch:tail",
    "latest": "agent.cli.facts.latest:latest",
    "page": "agent.cli.health.page:page",
    "fleet": "agent.cli.health.page:fleet",
    "top": "agent.cli.health.page:top",
    "diag": "agent.cli.health.diag:diag",
    "sql": "agent.cli.store.export:sql",
    "store": "agent.cli.groups:store",
    "pki": "agent.cli.groups:pki",
    "broker": "agent.cli.broker:broker",
    "pair": "agent.cli.pair:pair",
    "peer": "agent.cli.peer:peer",
    "source": "agent.cli.groups:source",
    "tags": "agent.cli.groups:tags",
    "opcua": "agent.cli.groups:opcua",
    "modbus": "agent.cli.groups:modbus",
    "hardware": "agent.cli.groups:hardware",
    "bench": "agent.cli.bench:bench",
    "demo": "agent.cli.demo:demo",
}


class Interrupted(Exception):
    """Ctrl-C, which click would make a bad result."""


class LazyGroup(click.Group):
    """A group whose commands are imported when they are called; `lazy` maps a command to its module:name."""

    def __init__(self, *arguments: Any, lazy: Mapping[str, str], **more: Any) -> None:
        super().__init__(*arguments, **more)
        self._lazy = lazy

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 click's signature
        return list(self._lazy)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """The command; that of an unknown name is an error that names similar ones, also of other groups."""
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError as error:
            found = self._similar(ctx, args[0])
            if not found:
                raise
            raise click.UsageError(f"{error.message} Did you mean {' or '.join(map(repr, found))}?", ctx) from None

    def _similar(self, ctx: click.Context, name: str) -> list[str]:
        import difflib  # late, as a command that exists does not need it

        groups = {group: self.get_command(ctx, group) for group in self._lazy}
        within = [
            f"{group} {name}"
            for group, command in groups.items()
            if isinstance(command, click.Group) and name in command.list_commands(ctx)
        ]
        return within or difflib.get_close_matches(name, self._lazy, n=1)

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command with control characters escaped in its output, which may hold text of a peer or a device."""
        try:
            from agent.cli.terminal import printable_streams  # late, because that module imports the product

            with printable_streams():
                return super().invoke(ctx)
        except KeyboardInterrupt:
            raise Interrupted from None

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002 click's signature
        if cmd_name not in self._lazy:
            return None
        module, _, name = self._lazy[cmd_name].partition(":")
        command = getattr(importlib.import_module(module), name)
        assert isinstance(command, click.Command)
        return node_choice.with_node_argument(command)


@click.group(cls=LazyGroup, lazy=_COMMANDS, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="bsfg")
def bsfg() -> None:
    """Store-and-forward agent for the boundary between plant and enterprise."""


config_option = click.option(
    "--config",
    "config_file",
    type=node_choice.NodeFileParam(),
    default=node_choice.default_file,
    show_default="./node.toml, else the only file in /etc/bsfg",
    envvar="BSFG_CONFIG",
    show_envvar=True,
    callback=node_choice.chosen_node,
    help="The node: its file, or its name in /etc/bsfg.",
)


class NumberRange(click.FloatRange):
    """A number in a range, which infinity and nan never are."""

    name = "number range"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """The number. Anything else is wrong usage."""
        number: float = super().convert(value, param, ctx)
        if not math.isfinite(number):
            self.fail(f"{value} is not a finite number.", param, ctx)
        return number


PATH = click.Path(path_type=Path)
FILE = click.Path(path_type=Path, dir_okay=False)
INPUT = click.Path(path_type=Path, dir_okay=False, exists=True)
FILE_OR_STDOUT = click.Path(path_type=Path, dir_okay=False, allow_dash=True)
FOLDER = click.Path(path_type=Path, file_okay=False)
WRITABLE_FOLDER = click.Path(path_type=Path, file_okay=False, exists=True, writable=True)
json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON for programs.")


@contextlib.contextmanager
def writing(file: Path) -> Iterator[None]:
    """A block that writes a file for the operator. Raises ClickException, with the system's reason."""
    try:
        yield
    except OSError as error:
        why = error.strerror or str(error)
        raise click.ClickException(
            f"{file} cannot be written: {why}; look at the rights of its folder, and at the free space"
        ) from error


def write_whole(file: Path, data: bytes, mode: int = 0o666) -> None:
    """Write a file for the operator: on a full disk, one that was there stays as it was, and keeps mode and owner in
    any case. `mode` of a new one, less the umask. Raises ClickException, with the system's reason."""
    with writing(file):
        file.parent.mkdir(parents=True, exist_ok=True)
        if file.exists() and not file.is_file():  # such as /dev/stdout
            file.write_bytes(data)
            return
        target = file.resolve()  # a link to a file stays one
        os.umask(umask := os.umask(0o077))
        rights = (mode & ~umask, -1, -1)
        if target.exists():
            before = target.stat()
            rights = (stat.S_IMODE(before.st_mode), before.st_gid, before.st_uid)
        try:
            write_file(target, data, *rights)
        except PermissionError:  # a folder that is closed, a file of another owner, a disk without modes
            target.write_bytes(data)


def refuse_given(names: Collection[str], why: str) -> None:
    """Raise UsageError if the command line has one of these options of the command: it would have no effect."""
    context = click.get_current_context()
    for option in context.command.params:
        is_given = context.get_parameter_source(option.name or "") is click.core.ParameterSource.COMMANDLINE
        if is_given and option.name in names:
            raise click.UsageError(f"{option.opts[0]} {why}")


def print_json(value: object) -> None:
    """Print one value as a line, times in ISO 8601."""
    click.echo(json.dumps(value, ensure_ascii=False, default=datetime.isoformat))


def print_either(value: object, *lines: str, as_json: bool) -> None:
    """Print a value as JSON for programs, or lines for a person."""
    if as_json:
        print_json(value)
    else:
        click.echo("\n".join(lines))


def _prepare_streams() -> None:
    """What is printed to a closed stream vanishes, and no other file gets its descriptor. Characters that the encoding
    of the output lacks are escaped."""
    for name in ("stdin", "stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(os.open(os.devnull, os.O_RDWR), "r+", encoding="utf-8"))
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")


def main() -> None:
    """Entry point of the `bsfg` command."""
    if sys.flags.optimize:
        sys.exit("bsfg: python -O removes the assertions that this program relies on; start it without -O")
    _prepare_streams()
    try:
        bsfg(prog_name="bsfg")
    except Interrupted:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        signal.raise_signal(signal.SIGINT)  # a shell ends the loop around a command that has died of it
    except UnicodeEncodeError:
        word = next((word for word in sys.argv if re.search("[\ud800-\udfff]", word)), None)
        if word is None:
            raise
        sys.exit(f"bsfg: '{printable(word)}' is not text in UTF-8; set the terminal to UTF-8, or save the script so")
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package not in EXTRAS:
            raise
        sys.exit(
            f"bsfg: the package {package} is not installed; only Spark and Parquet need it, and a "
            f"gateway does without; elsewhere, run pip install {' '.join(EXTRAS)} with the Python of this bsfg"
        )
    except BsfgError as error:
        text = str(error)
        if getattr(error, "file", None) == node_choice.DEFAULT_CONFIG and not node_choice.DEFAULT_CONFIG.exists():
            text = node_choice.why_none() or text
        hint = error.hint if error.hint[:2].isupper() else error.hint[:1].lower() + error.hint[1:].rstrip(".")
        text = f"bsfg: {text}" if not hint or hint in text or error.hint in text else f"bsfg: {text}; {hint}"
        sys.exit(printable_lines(text))
