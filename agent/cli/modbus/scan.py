"""`bsfg modbus scan`: the units that answer behind an address, or the registers that one of them has."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator, Sequence
from typing import Any

import click

from agent.cli import json_option, print_json
from agent.cli.modbus.options import ModbusTarget, device_options, target_of
from agent.cli.terminal import Progress
from agent.escaping import printable
from agent.ingest import SourceError
from agent.ingest.modbus.explore.device import FoundUnit, find_units, open_device, scan_registers
from agent.ingest.modbus.explore.register_scan import RegisterScan
from agent.ingest.modbus.explore.register_text import RegisterRange, parse_ranges, span_text

UNITS = "1-16,255"
BITS_PER_READ = 1_000  # far below what the standard allows, which many devices do not


@click.command()
@device_options
@click.argument("registers", required=False, metavar="[TABLE:REGISTER-LAST]")
@click.option("--units", help=f"Units to ask, as 1-16,255.  [default: {UNITS}]")
@click.option(
    "--reads-max", type=click.IntRange(1, 100_000), default=2_000, show_default=True, help="Maximum number of reads."
)
@json_option
def scan(registers: str | None, units: str | None, reads_max: int, as_json: bool, **options: Any) -> None:
    """Ask which units answer at DEVICE, or which registers a unit has: scan tcp://host:502 --base 1 holding:1-500.

    Each unit is asked for one register; a silent unit takes --timeout-ms. Registers are found by splitting refused
    ranges. The command only reads, one request at a time, with a pause. Exit status 1 when nothing was found.
    """
    if registers is not None and units is not None:
        raise click.UsageError(
            "--units asks for units, TABLE:REGISTER-LAST for the registers of --unit; give one of them"
        )
    target = target_of(options, needs_base=registers is not None)
    if registers is None:
        _units(target, _numbers(units or UNITS), as_json=as_json)
        return
    try:
        places = parse_ranges(registers, target.settings)
    except ValueError as error:
        raise click.UsageError(str(error)) from error
    found = asyncio.run(_scan(target, places, reads_max))
    for place, done in found:
        if as_json:
            print_json(_json_object(target, place, done))
        else:
            for line in _lines(target, place, done):
                click.echo(printable(line))
    if not any(done.found for _, done in found):
        sys.exit(1)


# --- units ------------------------------------------------------------------------------------------------------------


def _numbers(text: str) -> list[int]:
    """The units in `1-16,255`."""
    units: list[int] = []
    try:
        for part in text.split(","):
            first, _, last = part.strip().partition("-")
            units += range(int(first), int(last or first) + 1)
    except ValueError:
        units = []
    if not units or not all(0 <= unit_id <= 255 for unit_id in units):
        raise click.UsageError(f"--units {text!r}: write numbers from 0 to 255, as 1-16,255")
    return list(dict.fromkeys(units))


def _units(target: ModbusTarget, unit_ids: Sequence[int], *, as_json: bool) -> None:
    progress = Progress()
    found: list[FoundUnit] = asyncio.run(find_units(target.settings, unit_ids, progress))
    progress.remove_line()
    if as_json:
        units = [{"unit_id": unit.unit_id, "how": unit.how, "is_answer": not unit.is_garbled} for unit in found]
        print_json({"asked": list(unit_ids), "units": units})
    for unit in () if as_json else found:
        click.echo(printable(f"unit {unit.unit_id:<3} {unit.how}"))
    right = sum(not unit.is_garbled for unit in found)
    if not right:
        todo = "ask others with --units, or wait longer (--timeout-ms)"
        if found:
            is_serial = target.settings.transport == "rtu"
            todo = "--baud-rate and --parity" if is_serial else "whether it speaks tcp:// or rtu+tcp://"
            todo = f"{len(found)} of them send something else: check {todo}"
        click.echo(f"none of {len(unit_ids)} units answers a read; {todo}", err=True)
        sys.exit(1)
    if not as_json:
        click.echo(f"{right} of {len(unit_ids)} units answer")
        if right == len(unit_ids) > 1:
            click.echo(
                "all of them: this device may answer for any unit; look for registers (TABLE:REGISTER-LAST --unit N)"
            )


# --- registers --------------------------------------------------------------------------------------------------------


async def _scan(
    target: ModbusTarget, places: Sequence[RegisterRange], reads_max: int
) -> list[tuple[RegisterRange, RegisterScan]]:
    """Scan each place over one connection, all of them with `reads_max` reads. What was found before the connection
    broke is kept."""
    progress = Progress()
    scans = list[tuple[RegisterRange, RegisterScan]]()
    settings = target.settings
    async with open_device(settings) as line:
        for place in places:
            count_max = BITS_PER_READ if place.table.is_bits else settings.registers_per_read_max
            reads_left = reads_max - sum(done.reads_total for _, done in scans)
            scan = RegisterScan(place.address, place.address + place.count, count_max, reads_left)
            scans.append((place, scan))
            try:
                await scan_registers(line, settings.unit_id, place.table, scan, progress)
            except SourceError as error:
                if not any(done.found for _, done in scans):
                    raise
                scan.why_cut = str(error)
                break
    progress.remove_line()
    return scans


def _lines(target: ModbusTarget, place: RegisterRange, done: RegisterScan) -> Iterator[str]:
    table = place.table.value
    base = target.settings.address_base
    for span in done.found:
        yield f"{table} {span_text(place.table, *span, base)} ({span[1] - span[0]:,})"
    total = sum(end - first for first, end in done.found)
    yield f"{total:,} of {place.count:,} {table} registers of unit {target.settings.unit_id} exist, {done.reads_total:,} reads"
    for why, count in done.refusals.most_common():
        yield f"{count:,} do not: {why}"
    if done.too_long:
        yield (
            f"a read of {done.too_long} is refused for its length, one of {done.count_max} is answered: set "
            f"registers_per_read_max = {done.count_max}, or as much as the manual allows"
        )
    if done.unknown:
        spans = ", ".join(span_text(place.table, *span, base) for span in done.unknown)
        todo = done.why_cut or "--reads-max is reached; raise it, or scan a part"
        yield f"not looked at: {spans}; {todo}"


def _json_object(target: ModbusTarget, place: RegisterRange, done: RegisterScan) -> dict[str, Any]:
    return {
        "unit_id": target.settings.unit_id,
        "table": place.table.value,
        "address_base": target.settings.address_base,
        "found": [{"address": first, "count": end - first} for first, end in done.found],
        "refused": dict(done.refusals),
        "unknown": [{"address": first, "count": end - first} for first, end in done.unknown],
        "registers_per_read_max": done.count_max,
        "reads": done.reads_total,
        "why_cut": done.why_cut,
    }
