"""The devices of `ingest --source modbus`: a server process that answers reads from registers prepared beforehand.

Every connection is a device of its own with as many units as are asked for. Of ten neighbouring tags five are words,
one an Int32, three are Floats and one is a bit of a word, as in an energy meter; half of the Floats have all their
digits. All values change with each poll. A request costs this process some 15 us, a tenth of what it costs a client.

At its end it reports when the first register of each device was requested: the times of the polls, measured outside
the client.
"""

from __future__ import annotations

import asyncio
import random
import signal
import struct
import time

from bench.common.measuring import peak_rss_mib
from bench.common.worker_io import Options, emit

TAGS_PER_UNIT = 40_000  # fits the addresses of one table
ROUNDS = 16  # distinct values before they repeat
READ_HOLDING = 3
REQUEST_BYTES = 12

# Type, registers and struct letter of a tag, by the last digit of its number.
KINDS = (
    (("uint16", 1, "H"),) * 4
    + (("int16", 1, "h"), ("int32", 2, "i"))
    + (("float32", 2, "f"),) * 3
    + (("bit3", 1, "H"),)
)
WORD = (("uint16", 1, "H"),)

Place = tuple[int, int, str]
"""Unit, address and type of a tag."""


def places(tags: int, *, words: bool) -> list[Place]:
    """Where each of so many tags is."""
    kinds = WORD if words else KINDS
    found, address = [], 0
    for number in range(tags):
        if number % TAGS_PER_UNIT == 0:
            address = 0
        name, registers, _ = kinds[number % len(kinds)]
        found.append((number // TAGS_PER_UNIT + 1, address, name))
        address += registers
    return found


def tag_file(device: str, tags: int, *, words: bool) -> str:
    """The tag file of a device."""
    rows = [
        f"{device}/item-{number},{unit},holding,{address},{kind}\n"
        for number, (unit, address, kind) in enumerate(places(tags, words=words), 1)
    ]
    return "tag,unit_id,table,register,type\n" + "".join(rows)


def registers_of(tags: int, *, words: bool) -> list[int]:
    """How many registers each unit has."""
    kinds = WORD if words else KINDS
    widths = [registers for _, registers, _ in kinds]
    cuts = range(0, tags, TAGS_PER_UNIT)
    return [sum(widths[n % len(kinds)] for n in range(cut, min(cut + TAGS_PER_UNIT, tags))) for cut in cuts]


def _rounds(tags: int, *, words: bool) -> list[bytes]:
    """The bytes of a unit's registers, for each round."""
    chance = random.Random(1)
    letters = [(WORD if words else KINDS)[n % (1 if words else 10)][2] for n in range(min(tags, TAGS_PER_UNIT))]
    packed = struct.Struct(">" + "".join(letters))
    levels = [chance.uniform(100.0, 10_000.0) for _ in letters]
    found = []
    for _ in range(ROUNDS):
        levels = [level + chance.gauss(0.0, 2.0) for level in levels]
        values = [
            int(level) & 0x7FFF if letter != "f" else level if place % 2 else round(level, 2)
            for place, (level, letter) in enumerate(zip(levels, letters, strict=True))
        ]
        found.append(packed.pack(*values))
    return found


class Device(asyncio.Protocol):
    """One connection."""

    rounds: tuple[bytes, ...] = ()
    polls_s: dict[int, list[float]] = {}  # noqa: RUF012 of all devices, by the number of the connection
    requests = 0
    connections: set[asyncio.Transport] = set()  # noqa: RUF012 of all devices, the open ones

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin to record the polls of this connection."""
        assert isinstance(transport, asyncio.Transport)
        self._transport, self._unread, self._round = transport, b"", 0
        self._polls_s = Device.polls_s.setdefault(len(Device.polls_s), [])
        Device.connections.add(transport)

    def connection_lost(self, _error: Exception | None) -> None:
        """The client has hung up."""
        Device.connections.discard(self._transport)

    def data_received(self, data: bytes) -> None:
        """Answer every request in full."""
        data = self._unread + data
        while len(data) >= REQUEST_BYTES:
            request, data = data[:REQUEST_BYTES], data[REQUEST_BYTES:]
            transaction, _, _, unit, function, address, count = struct.unpack(">HHHBBHH", request)
            assert function == READ_HOLDING, "nothing else is asked for"
            Device.requests += 1
            if address == 0 and unit == 1:
                self._polls_s.append(time.monotonic())
                self._round += 1
            held = self.rounds[self._round % ROUNDS][2 * address : 2 * (address + count)]
            self._transport.write(
                struct.pack(">HHHBBB", transaction, 0, 3 + len(held), unit, function, len(held)) + held
            )
        self._unread = data


def host_of(device: int) -> str:
    """The address of a device. Sources with one address would share its line."""
    return f"127.0.0.{1 + device}"


def serve(options: Options) -> None:
    """Serve on `port` so many `devices` with so many `tags`, `words` only or mixed."""
    asyncio.run(_serve(options))


async def _serve(options: Options) -> None:
    Device.rounds = tuple(_rounds(options["tags"], words=options["words"]))
    stopped = asyncio.Event()
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGTERM, stopped.set)
    hosts = [host_of(device) for device in range(options["devices"])]
    server = await loop.create_server(Device, hosts, options["port"])
    async with server:
        emit("READY")
        await stopped.wait()
        # Otherwise answers sent while the loop ends would be missing from the report below.
        for transport in Device.connections:
            transport.abort()
    polls = [moments for moments in Device.polls_s.values() if moments]
    emit(
        "ENDED",
        {
            "requests": Device.requests,
            "cpu_ns": time.process_time_ns(),
            "peak_rss_mib": peak_rss_mib(),
            "polls_s": polls,
        },
    )
