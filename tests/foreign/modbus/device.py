"""Foreign Modbus devices as processes that a test controls, sources that poll them, and what stands between both: a
serial line, a converter.

A device listens on loopback, on a port found free at its first start and kept for later ones. Every read that it
answered, refused or spoiled is in its own log. Registers that `count` hold how often they were read, so what is stored
of them shows by itself what was lost or doubled.
"""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from agent.demo.processes import free_port
from agent.settings.sources import ModbusSourceSettings
from tests.foreign.process import INSTALLED, SERVERS, ServerProcess, Stack
from tests.waiting import wait_until

LIBMODBUS = Stack("libmodbus", (str(INSTALLED / "libmodbus" / "server"),))
MODBUS_SERIAL = Stack(
    "modbus_serial",
    ("node", str(SERVERS / "modbus_serial" / "server.js")),
    "NODE_PATH",
    INSTALLED / "modbus_serial" / "node_modules",
)
SOCAT = Stack("socat", ("socat",))

IMPATIENT: dict[str, Any] = {"timeout_ms": 300}  # for devices that do not answer
WORDS_PER_LINE = 4_000
BAUD_RATE = 115_200
HOST = "127.0.0.1"
ALL = (0, 65_535)

# Quick where the product is patient. A device that answers has two seconds for it, on a machine that may do much else.
QUICK: dict[str, Any] = {
    "poll_interval_ms": 100,
    "timeout_ms": 2_000,
    "unit_retry_ms": 100,
    "unit_retry_max_ms": 400,
    "reconnect_delay_ms": 50,
    "reconnect_delay_max_ms": 200,
}


class Asked(NamedTuple):
    """One read, as the device saw it. `outcome` is "good", or the kind of fault that it met."""

    time_ns: int
    unit: int
    table: str
    address: int
    count: int
    outcome: str


class ModbusDevice(ServerProcess):
    """One device with some units, on TCP; or one unit on a serial line."""

    def __init__(
        self, folder: Path, stack: Stack = LIBMODBUS, units: Sequence[int] = (1,), serial_port: Path | None = None
    ) -> None:
        super().__init__(folder, stack)
        self._units, self._serial_port = units, serial_port
        self.port = 0

    def start(self) -> None:
        """Start, or start again after `kill`; what was set before is forgotten."""
        if self._serial_port is not None:
            (unit,) = self._units
            self._begin(["rtu", str(self._serial_port), str(unit), str(BAUD_RATE)])
        else:
            self.port = self._begin(["tcp", str(self.port), *map(str, self._units)])["port"]

    def set(self, unit: int, table: str, address: int, *values: int) -> None:
        """Put these words or bits there."""
        for start in range(0, len(values), WORDS_PER_LINE):
            part = values[start : start + WORDS_PER_LINE]
            self._do("set", unit, table, address + start, *map(int, part))

    def count(self, unit: int, table: str, first: int, last: int) -> None:
        """Let each of these registers hold how often it was read, from its value now on."""
        self._do("count", unit, table, first, last)

    def fault(
        self,
        kind: str,
        argument: int = 0,
        *,
        unit: int = -1,
        table: str = "any",
        at: tuple[int, int] = ALL,
        times: int = -1,
    ) -> None:
        """Let reads that touch these addresses meet a fault (server.c), for ever or so many times. Unit -1 is any."""
        self._do("fault", unit, table, *at, kind, argument, times)

    def clear(self) -> None:
        """No more faults."""
        self._do("clear")

    def take_connections(self, most: int, *, hangs_up: bool = True) -> None:
        """Serve this many connections. Close one beyond, or leave it open and read nothing from it."""
        self._do("connections_max", most, int(hangs_up))

    def cut(self) -> None:
        """Close every connection."""
        self._do("cut")

    def status(self) -> dict[str, int]:
        """Requests, connections ever accepted, connections now."""
        return dict(self._do("status"))

    def asked(self, since: int = 0) -> list[Asked]:
        """All reads from this number on."""
        return [Asked(*entry) for entry in self._do("log", since)]

    def _do(self, *words: object) -> Any:
        return self._exchange(" ".join(map(str, words)), str(words[0]))


@contextmanager
def modbus_device(folder: Path, stack: Stack = LIBMODBUS, **options: Any) -> Iterator[ModbusDevice]:
    """A device for the length of a block."""
    device = ModbusDevice(folder, stack, **options)
    device.start()
    try:
        yield device
    finally:
        device.close()


# --- between a device and its source ----------------------------------------------------------------------------------


@contextmanager
def socat(*arguments: str, until: Callable[[], object]) -> Iterator[None]:
    """socat between these two addresses for the length of a block, which begins when `until` holds. When one side hangs
    up it ends at once (-t 0): half a second later it would take the answers of the next connection from the line."""
    process = subprocess.Popen(["socat", "-t", "0", *arguments])
    try:
        wait_until(lambda: until() or process.poll() is not None, f"socat {arguments}")
        assert process.poll() is None, f"socat {arguments} ended"
        yield
    finally:
        process.kill()
        process.wait()


@contextmanager
def serial_line(folder: Path) -> Iterator[tuple[Path, Path]]:
    """Both ends of a serial line."""
    ends = (folder / "tty-device", folder / "tty-source")
    pseudo = [f"pty,raw,echo=0,link={end}" for end in ends]
    with socat(*pseudo, until=lambda: all(end.exists() for end in ends)):
        yield ends


@contextmanager
def listening_socat(kind: str, to: str) -> Iterator[int]:
    """socat that takes connections on a free port and passes them on, whoever is behind it; the port."""
    port = free_port(HOST)
    listening = f":{port:04X} 00000000:0000 0A"  # /proc/net/tcp, so that nobody connects just to look
    with socat(
        kind.format(port=port),
        to,
        until=lambda: listening in Path("/proc/net/tcp").read_text("ascii"),
    ):
        yield port


# --- sources and tag maps ---------------------------------------------------------------------------------------------


def source(
    port: int, folder: Path, tags: str, *, name: str = "meter", address_base: int = 0, **settings: Any
) -> ModbusSourceSettings:
    """A quick source with this tag map, in `folder`/<name>.csv."""
    file = folder / f"{name}.csv"
    file.write_text(tags)
    given = {"host": HOST, "port": port, **QUICK, **settings}
    return ModbusSourceSettings(name=name, tags_file=file, address_base=address_base, **given)


def settings_of(settings: ModbusSourceSettings) -> dict[str, object]:
    """What node.toml says of a quick source."""
    where = {"host": HOST, "port": settings.port, "tags_file": str(settings.tags_file)}
    return {"name": settings.name, **where, "address_base": settings.address_base, **QUICK}


def tag_map(rows: Iterable[Sequence[object]]) -> str:
    """A tag map of rows: tag, unit, table, register, type, and maybe a byte order."""
    lines = [",".join(map(str, (*row, "")[:6])) for row in rows]
    return "\n".join(["tag,unit_id,table,register,type,byte_order", *lines, ""])


def words_map(first: int, count: int, *, unit: int = 1, table: str = "holding", scope: str = "f") -> str:
    """A tag map of neighbouring words: tag `<scope>/<address>`."""
    return tag_map((f"{scope}/{address}", unit, table, address, "uint16") for address in range(first, first + count))
