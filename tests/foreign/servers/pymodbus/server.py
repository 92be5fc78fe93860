"""A Modbus TCP device on pymodbus's simulator, controlled by lines of words: one command on standard input, one answer,
a JSON object, on standard output.

    python server.py tcp 0 1 2      units 1 and 2 on 127.0.0.1, port found free

The commands are `set` and `status` of the libmodbus server beside it (tests/foreign/README.md). Ends with standard
input. The client under test is of the same library, so this one proves least.
"""

from __future__ import annotations

import asyncio
import json
import logging
import socket
import sys

from pymodbus.constants import ExcCodes
from pymodbus.server import ModbusTcpServer
from pymodbus.simulator import DataType, SimData, SimDevice

ADDRESSES = 65_536
TABLES = {1: "coil", 2: "discrete", 3: "holding", 4: "input"}


class Device:
    """One unit: what its tables hold, and the simulator's view of it."""

    def __init__(self, unit: int) -> None:
        self.requests = 0
        self.tables = {table: [0] * ADDRESSES for table in TABLES.values()}
        words = [SimData(0, values=[0] * ADDRESSES, datatype=DataType.REGISTERS)]
        bits = [SimData(0, values=[False] * ADDRESSES, datatype=DataType.BITS)]
        self.simulated = SimDevice(unit, simdata=(bits, bits, words, words), use_bit_addressing=True, action=self._show)

    async def _show(
        self,
        function: int,
        first: int,
        address: int,
        count: int,
        registers: list[int],
        written: list[int] | list[bool] | None,  # noqa: ARG002 the library's signature
    ) -> ExcCodes | None:
        """Called at each access: puts what the tables hold into the registers asked for."""
        self.requests += 1
        held = self.tables[TABLES[function]]
        if function in (1, 2):  # `count` is of words there
            for word in range(address // 16, min(address // 16 + count, ADDRESSES // 16)):
                bits = held[16 * word : 16 * word + 16]
                registers[word - first // 16] = sum(bit << place for place, bit in enumerate(bits))
        else:
            registers[address - first : address - first + count] = held[address : address + count]
        return None


def tell(answer: object) -> None:
    """One line of standard output."""
    print(json.dumps(answer), flush=True)


def obey(devices: dict[int, Device], line: str) -> object:
    """One command; its answer."""
    name, *words = line.split()
    if name == "set":
        unit, table, address, *values = words
        held, start = devices[int(unit)].tables[table], int(address)
        held[start : start + len(values)] = [int(value, 0) for value in values]
        return None
    if name == "status":
        return {"requests": sum(device.requests for device in devices.values())}
    raise ValueError("no such command")


async def main() -> None:
    """Serve until standard input ends."""
    logging.getLogger("pymodbus").setLevel(logging.CRITICAL)
    _, _, port, *units = sys.argv
    devices = {int(unit): Device(int(unit)) for unit in units}
    if int(port) == 0:
        with socket.create_server(("127.0.0.1", 0)) as found:
            port = str(found.getsockname()[1])
    server = ModbusTcpServer([device.simulated for device in devices.values()], address=("127.0.0.1", int(port)))
    await server.serve_forever(background=True)
    tell({"ready": {"port": int(port)}})
    loop = asyncio.get_running_loop()
    while line := await loop.run_in_executor(None, sys.stdin.readline):
        try:
            tell({"ok": obey(devices, line)})
        except (ValueError, KeyError) as error:
            tell({"error": str(error)})
    await server.shutdown()


if __name__ == "__main__":
    asyncio.run(main())
