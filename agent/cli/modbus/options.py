"""The options of every command that connects to a device, and the source settings made from them."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar, get_args
from urllib.parse import urlsplit

import click

from agent.cli import FILE, refuse_given
from agent.cli.node_choice import NodeFileParam, default_file
from agent.config import load
from agent.ingest.modbus.explore.device import PAUSE_MS
from agent.settings.host import url_problem
from agent.settings.sources import ADDRESS_BASES, ModbusSourceSettings, Parity, Transport

_Command = TypeVar("_Command", bound=Callable[..., Any])
PORT, TLS_PORT = 502, 802

_OPTIONS = (
    click.argument("device", metavar="DEVICE"),
    click.option(
        "--config", "config_file", type=NodeFileParam(), default=default_file, help="For a DEVICE that is a source."
    ),
    click.option(
        "--base",
        type=click.Choice(ADDRESS_BASES),
        help="How registers are counted: from 0 as on the wire, from 1, or from 40001 with the table as first digit.",
    ),
    click.option(
        "--unit", "unit_id", type=click.IntRange(0, 255), help="Id of the unit.  [default: 1, or the source's]"
    ),
    click.option("--timeout-ms", type=click.IntRange(10, 60_000), help="Time limit for each answer.  [default: 1000]"),
    click.option("--pause-ms", type=click.IntRange(0, 10_000), help=f"Pause between reads.  [default: {PAUSE_MS}]"),
    click.option(
        "--baud-rate", type=click.IntRange(300, 4_000_000), help="Baud rate of a serial port.  [default: 19200]"
    ),
    click.option("--parity", type=click.Choice(get_args(Parity)), help="Parity of a serial port.  [default: even]"),
    click.option("--stop-bits", type=click.IntRange(1, 2), help="Stop bits of a serial port.  [default: 1]"),
    click.option("--ca", "ca_file", type=FILE, help="For tls: the authority that signed the device's certificate."),
    click.option("--cert", "cert_file", type=FILE, help="For tls: our certificate."),
    click.option("--key", "key_file", type=FILE, help="For tls: the key of our certificate."),
    click.option("--server-name", help="For tls: the name in the device's certificate."),
)
_TRANSPORTS: dict[str, Transport] = {"tcp": "tcp", "tls": "tls", "rtu+tcp": "rtu_over_tcp"}


@dataclass(frozen=True, slots=True)
class ModbusTarget:
    """The device to read: its settings in the form of a source, and whether they come from a source of node.toml."""

    settings: ModbusSourceSettings
    is_source: bool


def device_options(command: _Command) -> _Command:
    """Give a command DEVICE and the options; it gets them as keyword arguments for `target_of`."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


def target_of(options: dict[str, Any], *, needs_base: bool = True) -> ModbusTarget:
    """The device that the options mean: tcp://host[:port], tls://, rtu+tcp://, host[:port], a serial port such as
    /dev/ttyS1, or a source of node.toml. Raises UsageError."""
    device, config_file, base = options.pop("device"), options.pop("config_file"), options.pop("base")
    pause_ms = options.pop("pause_ms")
    given = {name: value for name, value in options.items() if value is not None}
    source = None
    if "/" not in device and config_file.exists():
        source = next((source for source in load(config_file).modbus if source.name == device), None)
    if source is None and re.fullmatch(r"[\w-]+", device) and config_file.exists():
        click.echo(f"bsfg: {config_file} has no [[modbus]] source {device!r}; taken as the name of a host", err=True)
    if source is not None:
        given["request_pause_ms"] = max(source.request_pause_ms, PAUSE_MS) if pause_ms is None else pause_ms
        if base is not None:
            given["address_base"] = base
        return ModbusTarget(_checked(replace(source, **given)), is_source=True)
    if base is None and needs_base:
        raise click.UsageError(
            "--base is missing: 0 if the documentation's first register is 0, 1 if it is 1, 40001 if the first digit is "
            "the table"
        )
    transport = _transport_settings(device)
    name = re.sub(r"[^a-z0-9._-]+", "-", (transport.get("host") or Path(device).name).lower()).strip("-._") or "device"
    pause_ms = PAUSE_MS if pause_ms is None else pause_ms
    settings = ModbusSourceSettings(
        name, Path(f"tags.d/{name}.csv"), base or 0, request_pause_ms=pause_ms, **transport, **given
    )
    return ModbusTarget(_checked(settings), is_source=False)


def _transport_settings(device: str) -> dict[str, Any]:
    """Transport, host and port, or the serial port."""
    if device.startswith("/"):
        return {"transport": "rtu", "serial_port": device}
    url = device if "://" in device else f"tcp://{device}"
    parts = urlsplit("" if url_problem(url, "tcp://host:502", *_TRANSPORTS) else url)
    if not parts.hostname or parts.username or parts.path.strip("/") or parts.query:
        raise click.UsageError(
            f"{device!r} is not a device; write tcp://host:502 (or tls://, rtu+tcp://), a serial port such as /dev/ttyS1, or "
            "the name of a source of node.toml"
        )
    port = TLS_PORT if parts.scheme == "tls" else PORT
    return {"transport": _TRANSPORTS[parts.scheme], "host": parts.hostname, "port": parts.port or port}


def _checked(settings: ModbusSourceSettings) -> ModbusSourceSettings:
    if settings.transport != "rtu":
        refuse_given(["baud_rate", "parity", "stop_bits"], f"is for a serial port, not for {settings.where}")
    problems = [f"{name}: {why}" for name, why in settings.problems()]
    if problems:
        raise click.UsageError("; ".join(problems))
    return settings
