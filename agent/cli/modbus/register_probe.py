"""`bsfg modbus probe`: every interpretation of registers, and which of them match the value on the device's panel."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import click

from agent.cli import NumberRange, json_option, print_json
from agent.cli.modbus.options import ModbusTarget, device_options, target_of
from agent.cli.table import lines
from agent.cli.terminal import Progress, value_text
from agent.errors import BsfgError
from agent.escaping import printable
from agent.ingest.modbus.explore import interpretation
from agent.ingest.modbus.explore.device import RefusedRange, open_device, read_around
from agent.ingest.modbus.explore.interpretation import Candidate, Interpretation, PanelValue
from agent.ingest.modbus.explore.register_text import RegisterRange, base_hint, parse_ranges, register_text, span_text
from agent.message import json_value
from agent.settings.sources import section

COUNT_MAX = 32  # registers of one call, each in some forty readings


class NothingRead(BsfgError):
    """The device returned none of the registers."""

    hint = "other units and registers: bsfg modbus scan"


@dataclass(frozen=True, slots=True)
class _Look:
    """One place and what was read there, once or several times."""

    place: RegisterRange
    words: list[dict[int, int]]
    refusals: list[RefusedRange]


@click.command()
@device_options
@click.argument("register", metavar="[TABLE:]REGISTER[-LAST]")
@click.option("--value", "text", help="What the device's panel shows now: 231.4, or a text such as a model name.")
@click.option(
    "--tolerance",
    default=interpretation.TOLERANCE,
    show_default=True,
    help="How far from --value a reading may be: 1% of it, or 0.5 in its own unit.",
)
@click.option(
    "--again", type=click.IntRange(0, 1000), default=0, help="Read so many more times, and report what changed."
)
@click.option("--interval-s", type=NumberRange(0.01, 3600), default=1.0, show_default=True, help="For --again.")
@json_option
def probe(
    register: str, text: str | None, tolerance: str, again: int, interval_s: float, as_json: bool, **options: Any
) -> None:
    """Read registers of DEVICE in every type and byte order. With --value, interpretations that match it are marked,
    plain or scaled by a power of ten. The neighbouring registers are searched too, because manuals count from 0 or from
    1. TABLE is input or holding; without it both are read.

    DEVICE is tcp://host:502, tls://host, rtu+tcp://host:port, a serial port such as /dev/ttyS1, or a source of
    node.toml. Exit status 1 when nothing matches the value.
    """
    target = target_of(options)
    try:
        wanted = None if text is None else interpretation.parse_wanted(text, tolerance)
        places = parse_ranges(register, target.settings)
    except ValueError as error:
        raise click.UsageError(str(error)) from error
    _check(places)
    if wanted is not None and wanted.number is None:  # it may have one character a register
        places = [replace(place, count=max(place.count, min(len(wanted.text), COUNT_MAX))) for place in places]
    looks = asyncio.run(_look(target, places, 1 + again, interval_s))
    found = [] if wanted is None else _candidates(looks, wanted)
    doubts = [] if wanted is None else interpretation.doubts(found, wanted)
    if as_json:
        print_json(_json_object(target, looks, found, doubts))
    else:
        for line in _lines(target, looks, found, doubts, wanted):
            click.echo(printable(line))
    if wanted is not None and not found:
        sys.exit(1)


def _check(places: Sequence[RegisterRange]) -> None:
    for place in places:
        if place.table.is_bits:
            raise click.UsageError(f"an entry of table {place.table.value} is one bit; see it with bsfg modbus read")
        if place.count > COUNT_MAX:
            raise click.UsageError(f"{place.count} registers; name at most {COUNT_MAX}")


async def _look(target: ModbusTarget, places: Sequence[RegisterRange], times: int, interval_s: float) -> list[_Look]:
    """Read around each place, several times. Raises SourceLost, UnitSilent, NothingRead."""
    looks = [_Look(place, [], []) for place in places]
    progress = Progress()
    async with open_device(target.settings) as line:
        for number in range(times):
            if number:
                await asyncio.sleep(interval_s)
            for look in looks:
                place = look.place
                words, refusals = await read_around(
                    line, target.settings.unit_id, place.table, place.address, place.count
                )
                look.words.append(words)
                look.refusals[:] = refusals
            progress("looks", number + 1)
    progress.remove_line()
    if not any(look.words[-1] for look in looks):
        whys = {f"{look.place.table.value}: {refusal.why}" for look in looks for refusal in look.refusals}
        raise NothingRead(f"unit {target.settings.unit_id} gives none of these registers ({'; '.join(sorted(whys))})")
    return looks


def _candidates(looks: Sequence[_Look], wanted: PanelValue) -> list[Candidate]:
    return interpretation.ranked(
        candidate
        for look in looks
        for candidate in interpretation.candidates(
            look.words[0], look.place.table, look.place.address, look.place.count, wanted
        )
    )


# --- for people -------------------------------------------------------------------------------------------------------


def _lines(
    target: ModbusTarget,
    looks: Sequence[_Look],
    found: Sequence[Candidate],
    doubts: Sequence[str],
    wanted: PanelValue | None,
) -> Iterator[str]:
    base = target.settings.address_base
    marks = {
        (candidate.found.table, candidate.found.address, name, candidate.found.kind.order): candidate.found.kind.scale
        for candidate in found
        for name in (candidate.found.kind.name, *candidate.also)
    }
    for look in looks:
        for address in range(look.place.address, look.place.address + look.place.count):
            yield from _readings(look, address, base, marks)
        for refusal in look.refusals:
            span = span_text(look.place.table, refusal.first, refusal.end, base)
            yield f"not given: {look.place.table.value} {span}: {refusal.why}"
    if wanted is None:
        yield "to mark the readings that equal the value on the device's panel: --value 231.4"
        return
    margin = f"{100 * wanted.tolerance:.4g} %" if wanted.is_relative else f"{wanted.tolerance:.4g}"
    if not found:
        yield f"nothing here or one register off equals {wanted.text} within {margin}, in any power of ten"
        yield "try another TABLE, more registers (100-131), another --unit, or a larger --tolerance"
        return
    yield f"equal to {wanted.text} within {margin}:"
    seen = [f"in {len(looks[0].words)} looks"] if len(looks[0].words) > 1 else []
    columns = ("register", "type", "byte_order", "scale", "value", "off", *seen, "")
    yield from lines(columns, _rows(target, looks, found), "table")
    for doubt in doubts:
        yield f"careful: {doubt}"
    yield from _to_paste(target, found[0])


def _readings(look: _Look, address: int, base: int, marks: dict[tuple[Any, ...], float]) -> Iterator[str]:
    """The matrix of types and orders at one address."""
    words = look.words[0]
    table = look.place.table
    found = list(interpretation.interpretations(words, table, address))
    if not found:
        return
    raw = " ".join(f"{words[place]:04X}" for place in range(address, address + interpretation.WIDEST) if place in words)
    yield f"{table.value} {register_text(table, address, base)} (wire address {address}): {raw}"
    for registers, names in interpretation.TYPES.items():
        part = [reading for reading in found if reading.kind.registers == registers]
        orders = list(dict.fromkeys(reading.kind.order_name for reading in part))
        if not part:
            continue
        cells = {(reading.kind.name, reading.kind.order_name): _marked(reading, marks) for reading in part}
        rows = [(name, *(cells.get((name, order), "-") for order in orders)) for name in names]
        yield from lines(("type", *orders), rows, "table")
    for reading in interpretation.texts(words, table, look.place.address, look.place.count):
        if address == look.place.address:
            yield f"{interpretation.type_text(reading.kind)} {reading.kind.order_name}: {value_text(reading.value)}"
    yield ""


def _marked(reading: Interpretation, marks: dict[tuple[Any, ...], float]) -> str:
    """A value, with a star if it equals the value on the panel; `*0.1` if it does with this scale. `?` marks what
    makers use for "no value"."""
    text = value_text(reading.value) + ("?" if interpretation.is_suspicious(reading.kind, reading.value) else "")
    scale = marks.get((reading.table, reading.address, reading.kind.name, reading.kind.order))
    return text if scale is None else f"{text} *" if scale == 1 else f"{text} *{scale:g}"


def _rows(target: ModbusTarget, looks: Sequence[_Look], found: Sequence[Candidate]) -> Iterator[tuple[Any, ...]]:
    for candidate in found:
        it = candidate.found
        look = next(look for look in looks if look.place.table is it.table)
        hint = base_hint(look.place.number, target.settings.address_base, it.address)
        remarks = [] if candidate.is_asked else [f"one register off {hint}".rstrip()]
        remarks += [f"{', '.join(candidate.also)} reads the same now"] if candidate.also else []
        register = f"{it.table.value} {register_text(it.table, it.address, target.settings.address_base)}"
        scale = "" if it.kind.scale == 1 else f"{it.kind.scale:g}"
        off = "0" if not candidate.error else f"{100 * candidate.error:.2g} %"
        seen = [_movement(look, it)] if len(look.words) > 1 else []
        yield (
            register,
            interpretation.type_text(it.kind),
            it.kind.order_name,
            scale,
            value_text(it.value),
            off,
            *seen,
            "; ".join(remarks),
        )


def _movement(look: _Look, found: Interpretation) -> str:
    values, changed = interpretation.moved(look.words, found)
    numbers = [value for value in values if isinstance(value, int | float)]
    if not changed or not numbers:
        return "constant"
    constant = found.kind.registers - len(changed)
    rest = f", {constant} of {found.kind.registers} registers constant" if constant else ""
    return f"{value_text(min(numbers))} to {value_text(max(numbers))}{rest}"


def _to_paste(target: ModbusTarget, best: Candidate) -> Iterator[str]:
    """The row for the tag file, and the section for node.toml."""
    settings = target.settings
    row = interpretation.tag_row(best.found, settings.unit_id, settings.address_base, settings.name)
    yield ""
    yield f"# row for the tag file (address_base = {settings.address_base})"
    yield from lines(list(row), [list(row.values())], "csv")
    if not target.is_source:
        yield ""
        yield "# for node.toml"
        yield from section(settings, {"request_pause_ms"}).splitlines()  # the pause is for exploring


# --- for programs -----------------------------------------------------------------------------------------------------


def _json_object(
    target: ModbusTarget, looks: Sequence[_Look], found: Sequence[Candidate], doubts: Sequence[str]
) -> dict[str, Any]:
    settings = target.settings
    readings = [
        _reading(reading, settings.address_base)
        for look in looks
        for address in range(look.place.address, look.place.address + look.place.count)
        for reading in interpretation.interpretations(look.words[0], look.place.table, address)
    ]
    return {
        "unit_id": settings.unit_id,
        "address_base": settings.address_base,
        "words": [
            {"table": look.place.table.value, "address": address, "words": [words.get(address) for words in look.words]}
            for look in looks
            for address in sorted(look.words[0])
        ],
        "refused": [
            {
                "table": look.place.table.value,
                "address": refusal.first,
                "count": refusal.end - refusal.first,
                "why": refusal.why,
            }
            for look in looks
            for refusal in look.refusals
        ],
        "readings": readings,
        "candidates": [
            {
                **_reading(candidate.found, settings.address_base),
                "scale": candidate.found.kind.scale,
                "error": candidate.error,
                "is_exact": candidate.is_exact,
                "is_asked": candidate.is_asked,
                "also": candidate.also,
                "row": interpretation.tag_row(candidate.found, settings.unit_id, settings.address_base, settings.name),
            }
            for candidate in found
        ],
        "doubts": list(doubts),
    }


def _reading(reading: Interpretation, base: int) -> dict[str, Any]:
    return {
        "table": reading.table.value,
        "register": register_text(reading.table, reading.address, base),
        "address": reading.address,
        "type": reading.kind.name,
        "byte_order": reading.kind.order_name,
        "value": json_value(reading.value),
    }
