"""Which node a command is about: `bsfg status plant-a` and `--config plant-a` mean /etc/bsfg/plant-a.toml. Without a
name it is ./node.toml, else the only file in /etc/bsfg."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import click

DEFAULT_CONFIG = Path("node.toml")
CONFIG_FOLDER = Path("/etc/bsfg")
_NAMED = f"{__name__}.named"


class NodeFileParam(click.ParamType[Path]):
    """The configuration of a node, by its path or by its name in /etc/bsfg."""

    name = "node"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Path:
        """The path. Fails for a name that is not in /etc/bsfg."""
        path = Path(value)
        if isinstance(value, Path) or "/" in value or path.suffix or path.exists():
            return path
        file = CONFIG_FOLDER / f"{value}.toml"
        if not _may_list() or file.exists():
            return file
        return self.fail(f"there is no node {value!r}: {_known()}", param, ctx)


def default_file() -> Path:
    """The configuration of a command that names none."""
    files = _files()
    return files[0] if len(files) == 1 and not DEFAULT_CONFIG.exists() else DEFAULT_CONFIG


def chosen_node(ctx: click.Context, param: click.Parameter, value: Path) -> Path:
    """The node that the command names, as an argument or an option."""
    named = ctx.meta.pop(_NAMED, None)
    if named is not None:
        if ctx.get_parameter_source("config_file") is click.core.ParameterSource.COMMANDLINE:
            raise click.UsageError("name the node as an argument or with --config, not both")
        return NodeFileParam().convert(named, param, ctx)
    return value


def why_none() -> str:
    """Why no node was found for a command that names none; empty if there is simply none."""
    if not _may_list():
        hint = "run as root or as a member of group bsfg (usermod -aG bsfg USER, then log in again)"
        return f"this user may not read {CONFIG_FOLDER}; {hint}"
    return f"name a node, as --config {files[0].stem}: {_known()}" if (files := _files()) else ""


def _remember(ctx: click.Context, _: click.Parameter, value: str | None) -> None:
    if value is not None:
        ctx.meta[_NAMED] = value


def with_node_argument(command: click.Command) -> click.Command:
    """The command, which takes the node as its argument too if it has a node and no other argument."""
    has_node = any(
        isinstance(parameter.type, NodeFileParam) and parameter.callback is chosen_node for parameter in command.params
    )
    if has_node and not any(isinstance(parameter, click.Argument) for parameter in command.params):
        node = click.Argument(["node"], required=False, expose_value=False, is_eager=True, callback=_remember)
        command.params.append(node)
    return command


def _files() -> list[Path]:
    return sorted(CONFIG_FOLDER.glob("*.toml")) if _may_list() else []


def _may_list() -> bool:
    return not CONFIG_FOLDER.exists() or os.access(CONFIG_FOLDER, os.R_OK | os.X_OK)


def _known() -> str:
    return f"{CONFIG_FOLDER} has {', '.join(file.stem for file in _files()) or 'none'}"
