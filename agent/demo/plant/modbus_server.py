"""The plant's Modbus TCP device: a power meter (unit 1) and a drive (unit 2) behind one port.

Addresses that hold nothing answer "illegal data address", as real devices do. For tests `--silent UNIT` makes a unit
not answer at all, like one that is switched off behind a gateway.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import struct
import time
from collections.abc import Callable, Coroutine
from pathlib import Path

from pymodbus.constants import ExcCodes
from pymodbus.server import ModbusTcpServer
from pymodbus.simulator import DataType, SimData, SimDevice

from agent.demo.plant.process import say_ready, stop_requested
from agent.demo.plant.signals import Meter, modbus_meters
from agent.demo.plant.tags import modbus_tags_csv
from agent.demo.processes import free_port

UNIT_BYTE = 6  # of the MBAP header
TABLES = ("coil", "discrete", "holding", "input")
FORMATS = {"int16": ">h", "uint16": ">H", "uint32": ">I", "uint64": ">Q", "float32": ">f", "float64": ">d"}
SWAPS = {"ABCD": (False, False), "CDAB": (True, False), "BADC": (False, True), "DCBA": (True, True)}


def registers_of(meter: Meter, seconds: float) -> list[int]:
    """The words that a meter holds at a time. The encoder is independent of the agent, so that it can test the agent's
    decoder."""
    value = meter.value(seconds)
    if meter.type == "bool":
        return [int(bool(value))]
    if meter.type.startswith("string"):
        data = str(value).encode().ljust(int(meter.type[6:]), b"\0")
    else:
        data = struct.pack(FORMATS[meter.type], value)
    words = [data[i : i + 2] for i in range(0, len(data), 2)]
    swap_words, swap_bytes = SWAPS[meter.byte_order]
    if swap_words:
        words.reverse()
    return [int.from_bytes(word, "little" if swap_bytes else "big") for word in words]


def _device(unit_id: int, meters: list[Meter], start_s: float) -> SimDevice:
    blocks: dict[str, list[SimData]] = {}
    for table in TABLES:
        mine = [meter for meter in meters if meter.table == table]
        if table in ("coil", "discrete"):
            bits = [bool(registers_of(meter, 0.0)[0]) for meter in mine] or [False]
            blocks[table] = [SimData(0, values=bits, datatype=DataType.BITS)]
            continue
        words = [(meter.address, registers_of(meter, 0.0)) for meter in mine]
        blocks[table] = [SimData(at, values=values, datatype=DataType.REGISTERS) for at, values in words]
        blocks[table] = blocks[table] or [SimData(65_535, datatype=DataType.INVALID)]
    return SimDevice(
        unit_id,
        simdata=(blocks["coil"], blocks["discrete"], blocks["holding"], blocks["input"]),
        action=_action(meters, start_s),
    )


def _action(meters: list[Meter], start_s: float) -> Callable[..., Coroutine[None, None, ExcCodes | None]]:
    """Called at each access: puts what the meters show now into the registers asked for."""
    table_of = {1: "coil", 2: "discrete", 3: "holding", 4: "input"}

    async def move(
        function_code: int,
        start_address: int,
        address: int,  # noqa: ARG001 the library's signature
        count: int,  # noqa: ARG001
        current_registers: list[int],
        set_values: list[int] | list[bool] | None,  # noqa: ARG001
    ) -> ExcCodes | None:
        seconds = time.monotonic() - start_s
        for meter in meters:
            if meter.table != table_of.get(function_code):
                continue
            words = registers_of(meter, seconds)
            if function_code in (1, 2):
                _set_bit(current_registers, meter.address - 16 * start_address, value=bool(words[0]))
                continue
            offset = meter.address - start_address
            current_registers[offset : offset + len(words)] = words
        return None

    return move


def _set_bit(registers: list[int], bit: int, *, value: bool) -> None:
    mask = 1 << bit % 16
    registers[bit // 16] = registers[bit // 16] | mask if value else registers[bit // 16] & ~mask


async def serve(options: argparse.Namespace) -> None:
    """Serve until the process is asked to end."""
    stopped = stop_requested()
    if options.tags_file:
        options.tags_file.write_text(modbus_tags_csv(), encoding="utf-8")
    port = options.port or free_port(options.host)
    meters, start_s = modbus_meters(), time.monotonic()
    units = sorted({meter.unit_id for meter in meters})
    devices = [_device(unit, [m for m in meters if m.unit_id == unit], start_s) for unit in units]
    silent = set(options.silent)

    def mute(sending: bool, packet: bytes) -> bytes:  # noqa: FBT001 the library's signature
        is_silent = packet[UNIT_BYTE] in silent
        return b"" if sending and is_silent else packet

    server = ModbusTcpServer(devices, address=(options.host, port), trace_packet=mute)
    await server.serve_forever(background=True)
    say_ready(port)
    await stopped.wait()
    await server.shutdown()  # type: ignore[no-untyped-call]


def main() -> None:
    """Read the command line and serve."""
    parser = argparse.ArgumentParser(description="simulated plant: Modbus TCP device")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=0, help="0: any free one, see the ready line")
    parser.add_argument("--tags-file", type=Path, help="write the tag file that fits, before anything else")
    parser.add_argument("--silent", type=int, action="append", default=[], help="for tests: this unit does not answer")
    logging.getLogger("pymodbus").setLevel(logging.CRITICAL)
    asyncio.run(serve(parser.parse_args()))


if __name__ == "__main__":
    main()
