"""`bsfg hardware conduits` and `bsfg hardware udev`: files for the packet filter, systemd and udev, made from the
node.toml of each node of this machine. They are printed; nothing here changes the machine.

    AddressUnknown          the name of a device or broker does not resolve now
    PortUnknown             a serial port of node.toml does not exist, or has a name that these rules make
"""

from __future__ import annotations

import re
import socket
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import click

from agent.cli.node_choice import default_file
from agent.cli.prepare import unit
from agent.config import load
from agent.errors import BsfgError
from agent.hardware.conduits import Flow, render_conduits, render_drop_in
from agent.hardware.machine import read_serial_port
from agent.hardware.udev import SerialPort, device_of, render_udev
from agent.settings.node import NodeSettings
from agent.settings.sources import ModbusSourceSettings

RESOLV_CONF = Path("/etc/resolv.conf")
OPCUA_PORT = 4840  # of an opc.tcp:// address without one (OPC 10000-6, 7.2)
_configs = click.argument("configs", nargs=-1, type=click.Path(path_type=Path))


class AddressUnknown(BsfgError):
    """The name of a device or broker does not resolve now."""

    hint = "correct the name, or write the address into node.toml"


class PortUnknown(BsfgError):
    """A serial port that node.toml names cannot be described."""

    hint = "plug the adapter in, and name the port as the kernel does now, such as /dev/ttyUSB0"


@click.command()
@_configs
@click.option("--user", default=unit.USER, show_default=True, help="The user whose connections are restricted.")
@click.option("--systemd", "is_drop_in", is_flag=True, help="Print the drop-in conduit.conf instead.")
def conduits(configs: tuple[Path, ...], user: str, is_drop_in: bool) -> None:
    """Print nftables rules that let the nodes with these CONFIGS reach only their brokers and sources.

    Name every node of this machine, because they share a user. [default: node.toml]
    """
    every = [load(file) for file in configs or (default_file(),)]
    wanted = list(dict.fromkeys(target for settings in every for target in _wanted(settings)))
    flows = [Flow(what, _addresses(what, host), port) for what, host, port in wanted]
    resolvers = _resolvers() if any(not _is_address(host) for _, host, _ in wanted) else []
    text = render_drop_in(flows, resolvers) if is_drop_in else render_conduits(user, flows, resolvers)
    click.echo(text, nl=False)


@click.command()
@_configs
@click.option("--group", default=unit.USER, show_default=True, help="The group that may use the ports.")
def udev(configs: tuple[Path, ...], group: str) -> None:
    """Print udev rules that give the serial port of each Modbus RTU source of these CONFIGS a permanent name.

    The adapters must be plugged in. Afterwards name the new port in node.toml. [default: node.toml]
    """
    sources = [
        source for file in configs or (default_file(),) for source in load(file).modbus if source.transport == "rtu"
    ]
    if not sources:
        raise click.UsageError('no source of these files has transport = "rtu"')
    ports: dict[str, tuple[str, SerialPort]] = {}  # several sources may share a line: the first names it
    for source in sources:
        ports.setdefault(source.serial_port, (source.name, _port(source)))
    click.echo(render_udev(ports.values(), group), nl=False)
    for device, (name, _) in ports.items():
        click.echo(f'# {device} then is: serial_port = "{device_of(name)}"')


def _wanted(settings: NodeSettings) -> Iterator[tuple[str, str, int]]:
    """(what, host, port) of everything that a node connects to."""
    for broker in settings.broker:
        yield f"broker {broker.name}", broker.host, broker.port
    for server in settings.opcua:
        parts = urlsplit(server.url)
        yield f"opcua {server.name}", parts.hostname or "", parts.port or OPCUA_PORT
    for device in settings.modbus:
        if device.transport != "rtu":
            yield f"modbus {device.name}", device.host, device.port


def _addresses(what: str, host: str) -> tuple[str, ...]:
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except OSError as error:
        raise AddressUnknown(f"{what}: {host}: {error}") from error
    return tuple(dict.fromkeys(str(answer[4][0]).partition("%")[0] for answer in found))


def _is_address(host: str) -> bool:
    return ":" in host or re.fullmatch(r"[0-9.]+", host) is not None


def _resolvers() -> list[str]:
    """The resolvers of this machine; none without RESOLV_CONF, when names come from /etc/hosts."""
    try:
        text = RESOLV_CONF.read_text("utf-8", "replace")
    except OSError:
        return []
    return [found.partition("%")[0] for found in re.findall(r"(?m)^nameserver\s+(\S+)", text)]


def _port(source: ModbusSourceSettings) -> SerialPort:
    try:
        return read_serial_port(Path(source.serial_port))
    except (OSError, ValueError) as error:
        raise PortUnknown(f"modbus {source.name}: serial_port {source.serial_port}: {error}") from error
