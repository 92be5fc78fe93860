"""`bsfg modbus read`: the values of single registers, once or until it is interrupted."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Iterator, Sequence
from time import time_ns
from typing import TYPE_CHECKING, Any

import click

from agent.cli import NumberRange, json_option
from agent.cli.modbus.options import ModbusTarget, device_options, target_of
from agent.cli.table import lines
from agent.cli.terminal import value_text
from agent.escaping import printable
from agent.ingest.modbus.explore.device import open_device, read_registers
from agent.ingest.modbus.explore.interpretation import is_suspicious
from agent.ingest.modbus.explore.register_text import parse_registers, register_text
from agent.message import json_value, time_text

if TYPE_CHECKING:
    from agent.ingest.modbus.explore.device import RegisterAnswer

COLUMNS = ("register", "type", "byte_order", "value", "words")


@click.command()
@device_options
@click.argument("points", nargs=-1, required=True, metavar="[TABLE:]REGISTER[-LAST][:TYPE[:ORDER]]...")
@click.option("--watch", is_flag=True, help="Read repeatedly and print the changes, until Ctrl-C.")
@click.option("--interval-s", type=NumberRange(0.01, 3600), default=1.0, show_default=True, help="For --watch.")
@json_option
def read(points: tuple[str, ...], watch: bool, interval_s: float, as_json: bool, **options: Any) -> None:
    """Read registers of DEVICE: holding:100, holding:100-109, input:16:float32:CDAB, coil:0-7.

    TABLE is coil, discrete, input or holding; with --base 40001 the first digit names it. TYPE and ORDER are those of
    tag files, uint16 by default.

    DEVICE is tcp://host:502, tls://host, rtu+tcp://host:port, a serial port such as /dev/ttyS1, or a source of
    node.toml. Exit status 1 when one has no value.
    """
    target = target_of(options)
    try:
        is_whole = asyncio.run(_read(target, points, interval_s if watch else None, as_json=as_json))
    except KeyboardInterrupt:
        return
    if not is_whole:
        sys.exit(1)


async def _read(target: ModbusTarget, points: Sequence[str], every_s: float | None, *, as_json: bool) -> bool:
    """Read once, or every so many seconds forever. Returns whether each register had a value."""
    try:
        registers = list(
            dict.fromkeys(register for text in points for register in parse_registers(text, target.settings))
        )
    except ValueError as error:
        raise click.UsageError(str(error)) from error
    before: dict[Any, RegisterAnswer] = {}
    async with open_device(target.settings) as line:
        while True:
            found = {answer.register: answer for answer in await read_registers(line, target.settings, registers)}
            changed = [answer for register in registers if (answer := found[register]) != before.get(register)]
            for text in _lines(target, changed, as_json=as_json, is_table=not before):
                click.echo(printable(text))
            if every_s is None:
                return not any(answer.why for answer in found.values())
            before = found
            await asyncio.sleep(every_s)


def _lines(target: ModbusTarget, answers: Sequence[RegisterAnswer], *, as_json: bool, is_table: bool) -> Iterator[str]:
    time, base = time_text(time_ns()), target.settings.address_base
    if as_json:
        yield from (json.dumps({"time": time, **_json_object(answer, base)}, ensure_ascii=False) for answer in answers)
        return
    rows = [_row(answer, base) for answer in answers]
    if is_table:
        yield from lines(COLUMNS, rows, "table")
    else:
        yield from (f"{time}  {'  '.join(filter(None, row))}" for row in rows)


def _row(answer: RegisterAnswer, base: int) -> tuple[str, ...]:
    at, is_bits = answer.register, answer.register.table.is_bits
    place = f"{at.table.value} {register_text(at.table, at.address, base)}"
    words = "" if is_bits else " ".join(f"{word:04X}" for word in answer.words)
    remark = " (no value?)" if is_suspicious(at.kind, answer.value) else ""
    value = "" if answer.why else value_text(answer.value) + remark
    return (
        place,
        at.kind.name,
        "" if is_bits else at.kind.order_name,
        value,
        ": ".join(filter(None, (words, answer.why))),
    )


def _json_object(answer: RegisterAnswer, base: int) -> dict[str, object]:
    at = answer.register
    return {
        "unit_id": at.unit_id,
        "table": at.table.value,
        "register": register_text(at.table, at.address, base),
        "address": at.address,
        "type": at.kind.name,
        "byte_order": at.kind.order_name,
        "value": json_value(answer.value),
        "words": answer.words,
        "why": answer.why,
    }
