"""`bsfg modbus plan`: the requests that a tag file costs at each poll, and why each ends where it does. Asks no device."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from agent.cli import config_option, json_option
from agent.cli.modbus.options import BASES
from agent.cli.table import lines
from agent.config import load
from agent.ingest import ModbusSourceSettings, load_tag_map
from agent.ingest.modbus.explore.place import register_text
from agent.ingest.modbus.explore.request_plan import PlannedRead, planned_reads

if TYPE_CHECKING:
    from agent.ingest import TagMap

COLUMNS = ("unit", "registers", "count", "used", "tags", "ends because")


@click.command()
@config_option
@click.argument("name", required=False, metavar="[SOURCE]")
@click.option(
    "--tags", "tags_file", type=click.Path(path_type=Path, dir_okay=False), help="A tag file, without a source."
)
@click.option("--base", type=click.Choice(BASES), help="How the registers of --tags are counted.")
@click.option("--registers-per-read-max", type=click.IntRange(1, 125), help="Try another limit of a read.")
@click.option("--hole-max", type=click.IntRange(0, 125), help="Try another largest hole.")
@json_option
def plan(
    config_file: Path,
    name: str | None,
    tags_file: Path | None,
    base: str | None,
    registers_per_read_max: int | None,
    hole_max: int | None,
    as_json: bool,  # noqa: FBT001 click's way
) -> None:
    """Show the requests for the tags of a SOURCE of node.toml, or of a tag file with --tags and --base."""
    given = {"registers_per_read_max": registers_per_read_max, "hole_max": hole_max}
    settings = _settings(
        config_file, name, tags_file, base, {key: one for key, one in given.items() if one is not None}
    )
    tags = load_tag_map(settings)
    planned = planned_reads(settings, (tag.point for tag in tags.tags))
    if as_json:
        for one in planned:
            click.echo(json.dumps(_facts(settings, one)))
        return
    rows = (_row(settings, one) for one in planned)
    for line in lines(COLUMNS, rows, "table"):
        click.echo(line)
    for line in _summary(settings, tags, planned):
        click.echo(line)


def _settings(
    config_file: Path, name: str | None, tags_file: Path | None, base: str | None, given: dict[str, Any]
) -> ModbusSourceSettings:
    if (name is None) == (tags_file is None):
        raise click.UsageError("name a SOURCE of node.toml, or a tag file with --tags FILE --base 0|1|40001")
    if tags_file is not None:
        if base is None:
            raise click.UsageError("--base is missing: how does the documentation count registers, from 0, 1 or 40001?")
        return ModbusSourceSettings("plan", tags_file, int(base), **given)
    sources = load(config_file).modbus
    found = next((source for source in sources if source.name == name), None)
    if found is None:
        known = ", ".join(source.name for source in sources) or "none"
        raise click.UsageError(f"{name!r} is no Modbus source of {config_file}; it names {known}")
    return replace(found, **given)


def _row(settings: ModbusSourceSettings, one: PlannedRead) -> Sequence[object]:
    first, last = (
        register_text(one.read.table, address, settings.address_base)
        for address in (one.read.address, one.read.end - 1)
    )
    span = f"{one.read.table.value} {first}" + ("" if first == last else f"-{last}")
    return one.read.unit_id, span, one.read.count, one.used, len(one.read.registers), one.why


def _summary(settings: ModbusSourceSettings, tags: TagMap, planned: Sequence[PlannedRead]) -> Iterator[str]:
    registers, used = sum(one.read.count for one in planned), sum(one.used for one in planned)
    yield (
        f"{len(tags.tags):,} tags, {len(planned):,} requests a poll of {settings.poll_interval_ms:,} ms: {registers:,} "
        f"registers read, {used:,} of them used"
    )


def _facts(settings: ModbusSourceSettings, one: PlannedRead) -> dict[str, object]:
    read = one.read
    return {
        "unit_id": read.unit_id,
        "table": read.table.value,
        "address": read.address,
        "register": register_text(read.table, read.address, settings.address_base),
        "count": read.count,
        "used": one.used,
        "tags": len(read.registers),
        "cut": one.cut.value,
        "hole": one.hole,
        "why": one.why,
    }
