"""The source whose settings determine how a tag file is read: a source of node.toml, or a temporary one made from
options."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import click

from agent.cli.source.access import named_source
from agent.config import ConfigError, load_sections
from agent.settings.sources import ADDRESS_BASES, ModbusSourceSettings, OpcuaSourceSettings, SourceSettings

PROTOCOLS = ("opcua", "modbus")

protocol_option = click.option("--protocol", type=click.Choice(PROTOCOLS), help="The protocol, without a node.toml.")
source_option = click.option("--source", "source_name", metavar="NAME", help="A source of node.toml.")
base_option = click.option(
    "--base",
    type=click.Choice(ADDRESS_BASES),
    help="address_base: registers count from 0, from 1, or with the table's digit.",
)


def temporary_source(protocol: str, file: Path, base: int | None) -> SourceSettings:
    """A source of this protocol that reads `file`."""
    if protocol == "opcua":
        return OpcuaSourceSettings("plc", "opc.tcp://192.0.2.10:4840", file)
    if base is None:
        bases = ", ".join(map(str, ADDRESS_BASES))
        raise click.UsageError(f"say how registers are counted: --base {bases} (address_base of the source)")
    return ModbusSourceSettings(name="device", host="192.0.2.20", tags_file=file, address_base=base)


def sources_of(config_file: Path) -> tuple[SourceSettings, ...]:
    """The sources of node.toml whose sections are valid; none if there is no file."""
    try:
        return load_sections(config_file).sources
    except ConfigError:
        return ()


def source_for(
    file: Path,
    sources: tuple[SourceSettings, ...],
    name: str | None,
    protocol: str | None,
    base: int | None,
    config: Path,
) -> SourceSettings:
    """The source that reads `file`: the named one, a temporary one of the protocol, or the source of node.toml that
    uses this file."""
    if name is not None and protocol is not None:
        raise click.UsageError(
            "--source takes the settings of a source, --protocol those of a temporary one; give one of them"
        )
    if name is not None:
        return replace(named_source(sources, name, config), tags_file=file)
    if protocol is not None:
        return temporary_source(protocol, file, base)
    for source in sources:
        if source.tags_file.absolute() == file.absolute():
            return source
    raise click.UsageError(f"no source of {config} reads {file}; name one with --source, or give --protocol")
