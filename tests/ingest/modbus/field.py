"""Lines to the device that stands for those of the field, a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
import tty
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

from agent.ingest.modbus.line import Line
from agent.settings.sources import ModbusSourceSettings


@contextmanager
def field_device(mode: str, where: str = "0", *files: Path, ends: Sequence[int] = ()) -> Iterator[int]:
    """The device as a process; its port. It is given these open files."""
    command = [sys.executable, "-m", "tests.ingest.modbus.field_device", mode, where, *map(str, files)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, pass_fds=ends) as process:
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


@asynccontextmanager
async def line_to(mode: str, **given: object) -> AsyncIterator[Line]:
    """A line to a device with these faults."""
    kind = mode.partition(",")[0]
    if kind == "serial":
        theirs, ours = os.openpty()
        tty.setraw(ours)
        made = settings("rtu", serial_port=os.ttyname(ours), parity="none", baud_rate=115_200, **given)
        try:
            with field_device(mode, str(theirs), ends=[theirs]):
                async with Line(made) as line:
                    yield line
        finally:
            for end in (theirs, ours):
                os.close(end)
        return
    with field_device(mode) as port:
        async with Line(settings("tcp" if kind == "tcp" else "rtu_over_tcp", port=port, **given)) as line:
            yield line
