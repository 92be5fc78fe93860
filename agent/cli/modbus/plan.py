"""`bsfg modbus plan`: the requests of a tag file at each poll, and the reason for the end of each.

It sends nothing to the device. The spans that the device refused while a node ran are read from the node's state.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import click

from agent.cli import config_option, json_option
from agent.cli.modbus.options import BASES
from agent.cli.source.access import named_source
from agent.cli.table import lines
from agent.config import load
from agent.escaping import printable
from agent.ingest import LEARNED, SourceMemory, load_tag_map
from agent.ingest.modbus.explore.register_text import register_text, span_text
from agent.ingest.modbus.explore.request_plan import PlannedRead, RequestPlan, request_plan
from agent.settings.sources import ModbusSourceSettings

COLUMNS = ("unit", "registers", "count", "used", "tags", "ends because")


@click.command()
@config_option
@click.argument("name", required=False, metavar="[SOURCE]")
@click.option(
    "--tags", "tags_file", type=click.Path(path_type=Path, dir_okay=False), help="A tag file, without a source."
)
@click.option("--base", type=click.Choice(BASES), help="How the registers of --tags are counted.")
@click.option("--registers-per-read-max", type=click.IntRange(1, 125), help="Plan with another limit for one read.")
@click.option(
    "--hole-max", type=click.IntRange(0, 125), help="Plan with another limit for unused registers inside one read."
)
@json_option
def plan(
    config_file: Path,
    name: str | None,
    tags_file: Path | None,
    base: str | None,
    registers_per_read_max: int | None,
    hole_max: int | None,
    as_json: bool,
) -> None:
    """Show the requests for the tags of a SOURCE of node.toml, or of a tag file with --tags and --base."""
    given = {"registers_per_read_max": registers_per_read_max, "hole_max": hole_max}
    settings, learned = _settings(
        config_file, name, tags_file, base, {key: value for key, value in given.items() if value is not None}
    )
    found = request_plan(settings, load_tag_map(settings).tags, learned)
    if as_json:
        click.echo(json.dumps(_json_object(settings, found), ensure_ascii=False))
        return
    for line in lines(COLUMNS, (_row(settings, planned) for planned in found.reads), "table"):
        click.echo(line)
    for line in _summary(found):
        click.echo(printable(line))


def _settings(
    config_file: Path, name: str | None, tags_file: Path | None, base: str | None, given: dict[str, Any]
) -> tuple[ModbusSourceSettings, bytes | None]:
    """The settings, and what the source has learned about its device, if it has run."""
    if (name is None) == (tags_file is None):
        raise click.UsageError("name a SOURCE of node.toml, or a tag file with --tags FILE --base 0|1|40001")
    if tags_file is not None:
        if base is None:
            raise click.UsageError("--base is missing: how does the documentation count registers, from 0, 1 or 40001?")
        return ModbusSourceSettings("plan", tags_file, int(base), **given), None
    node = load(config_file)
    assert name is not None, "one of the two is given"
    found = named_source(node.modbus, name, config_file, "Modbus source")
    return replace(found, **given), SourceMemory(node.node.state_dir / LEARNED).load(found.name)


def _row(settings: ModbusSourceSettings, planned: PlannedRead) -> Sequence[object]:
    read = planned.read
    span = f"{read.table.value} {span_text(read.table, read.address, read.end, settings.address_base)}"
    return read.unit_id, span, read.count, planned.used, len(read.registers), planned.why


def _summary(found: RequestPlan) -> Iterator[str]:
    registers, used = sum(planned.read.count for planned in found.reads), sum(planned.used for planned in found.reads)
    for interval in found.intervals:
        yield f"{interval.tags:,} tags every {interval.interval_ms:,} ms: {interval.requests:,} requests"
    yield f"{len(found.reads):,} requests when all are due: {registers:,} registers read, {used:,} of them used"
    for parked in found.parked:
        yield f"read separately: {parked.tag} ({parked.address}) is refused: {parked.why}"


def _json_object(settings: ModbusSourceSettings, found: RequestPlan) -> dict[str, object]:
    return {
        "requests": [_request(settings, planned) for planned in found.reads],
        "intervals": [asdict(interval) for interval in found.intervals],
        "refused": [asdict(span) for span in found.parked],
    }


def _request(settings: ModbusSourceSettings, planned: PlannedRead) -> dict[str, object]:
    read = planned.read
    return {
        "unit_id": read.unit_id,
        "table": read.table.value,
        "address": read.address,
        "register": register_text(read.table, read.address, settings.address_base),
        "count": read.count,
        "used": planned.used,
        "tags": len(read.registers),
        "cut": planned.cut.value,
        "hole": planned.hole,
        "why": planned.why,
    }
