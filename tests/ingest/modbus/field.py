"""Lines to the device that stands for those of the field, a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
import tty
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

from agent.ingest.modbus.line import Line
from agent.settings.sources import ModbusSourceSettings


@contextmanager
def field_device(mode: str, where: str = "0", *files: Path) -> Iterator[int]:
    """The device as a process; its port."""
    command = [sys.executable, "-m", "tests.ingest.modbus.field_device", mode, where, *map(str, files)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield int(process.stdout.readline().split()[1])
        finally:
            process.kill()


def settings(transport: str, **given: object) -> ModbusSourceSettings:
    """A source over this transport."""
    where = {} if transport == "rtu" else {"host": "127.0.0.1"}
    made = ModbusSourceSettings("meter", Path("t.csv"), 0, transport=transport, **{"timeout_ms": 100, **where, **given})  # type: ignore[arg-type]
    assert list(made.problems()) == []
    return made


@contextmanager
def cable() -> Iterator[tuple[str, str]]:
    """A pair of pseudo terminals: what is written to one is read from the other."""
    ours, theirs = os.openpty(), os.openpty()
    for end in (*ours, *theirs):
        tty.setraw(end)
    command = [sys.executable, "-m", "tests.ingest.modbus.cable", str(ours[0]), str(theirs[0])]
    with subprocess.Popen(command, pass_fds=(ours[0], theirs[0])) as process:
        try:
            yield os.ttyname(ours[1]), os.ttyname(theirs[1])
        finally:
            process.kill()
            for end in (*ours, *theirs):
                os.close(end)


@asynccontextmanager
async def line_to(mode: str, **given: object) -> AsyncIterator[Line]:
    """A line to a device with these faults."""
    kind = mode.partition(",")[0]
    if kind == "serial":
        with cable() as (ours, theirs), field_device(mode, theirs):
            async with Line(settings("rtu", serial_port=ours, parity="none", baud_rate=115_200, **given)) as line:
                yield line
        return
    with field_device(mode) as port:
        async with Line(settings("tcp" if kind == "tcp" else "rtu_over_tcp", port=port, **given)) as line:
            yield line
