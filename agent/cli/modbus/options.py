"""The options by which every command reaches a device, and the settings of a source made from them."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit

import click

from agent.cli import DEFAULT_CONFIG
from agent.config import load
from agent.ingest import ModbusSourceSettings
from agent.ingest.modbus.explore.device import PAUSE_MS

_Command = TypeVar("_Command", bound=Callable[..., Any])
_FILE = click.Path(path_type=Path, dir_okay=False)
PORT = 502
BASES = ("0", "1", "40001")

_OPTIONS = (
    click.argument("device", metavar="DEVICE"),
    click.option("--config", "config_file", type=_FILE, default=DEFAULT_CONFIG, help="For DEVICE as a source's name."),
    click.option(
        "--base",
        type=click.Choice(BASES),
        help="How registers are counted: 0 as on the wire, 1 from one, 40001 with the table as the first digit.",
    ),
    click.option("--unit", "unit_id", type=click.IntRange(0, 255), help="The unit.  [default: 1, or the source's]"),
    click.option("--timeout-ms", type=click.IntRange(10, 60_000), help="For each answer.  [default: 1000]"),
    click.option(
        "--pause-ms", type=click.IntRange(0, 60_000), default=PAUSE_MS, show_default=True, help="Between reads."
    ),
)


@dataclass(frozen=True, slots=True)
class Target:
    """The device to look at: settings as a source has them, and whether they are those of a source of node.toml."""

    settings: ModbusSourceSettings
    is_source: bool
    pause_ms: int


def device_options(command: _Command) -> _Command:
    """Give a command DEVICE and the options; it gets them as keyword arguments for `target_of`."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


def target_of(options: dict[str, Any], *, needs_base: bool = True) -> Target:
    """The device that the options mean. DEVICE is tcp://host[:port], host[:port], or a source of node.toml.

    Raises UsageError.
    """
    device, config_file, pause_ms = options.pop("device"), options.pop("config_file"), options.pop("pause_ms")
    base = options.pop("base")
    given = {name: value for name, value in options.items() if value is not None}
    if "://" not in device and config_file.exists():
        for source in load(config_file).modbus:
            if source.name == device:
                if base is not None:
                    given["address_base"] = int(base)
                return Target(_checked(replace(source, **given)), is_source=True, pause_ms=pause_ms)
    if base is None and needs_base:
        raise click.UsageError(
            "--base is missing: 0 if the documentation's first register is 0, 1 if it is 1, 40001 if the first digit is "
            "the table"
        )
    host, port = _address(device)
    name = re.sub(r"[^a-z0-9._-]+", "-", host.lower()).strip("-._") or "device"
    settings = ModbusSourceSettings(name, host, Path(f"tags.d/{name}.csv"), int(base or 0), port=port)
    return Target(_checked(replace(settings, **given)), is_source=False, pause_ms=pause_ms)


def _address(device: str) -> tuple[str, int]:
    """Host and port of `host`, `host:port`, `[::1]:502` or one of them after tcp://."""
    parts = urlsplit(device if "://" in device else f"tcp://{device}")
    try:
        port = parts.port or PORT
    except ValueError:
        port = 0
    if parts.scheme != "tcp" or not parts.hostname or not port or parts.username or parts.path.strip("/"):
        raise click.UsageError(f"{device!r} is no device; write tcp://host:502, or the name of a source of node.toml")
    return parts.hostname, port


def _checked(settings: ModbusSourceSettings) -> ModbusSourceSettings:
    problems = [f"{name}: {why}" for name, why in settings.problems()]
    if problems:
        raise click.UsageError("; ".join(problems))
    return settings
