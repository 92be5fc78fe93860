"""The clients of `ingest --source modbus`, each a process of its own: the product with one device or with many, and
pymodbus alone.

The product is a source as a node runs it: plan, decoding, sampling, recorder, and a real store that commits. Only
committed values count. pymodbus reads the same registers in blocks of 125 and keeps none.
"""

from __future__ import annotations

import asyncio
import logging
import os
from pathlib import Path
from typing import Any

from pymodbus.client import AsyncModbusTcpClient

from agent.concurrency import TaskGroup
from agent.settings.sources import ModbusSourceSettings
from bench.common.worker_io import Options, emit
from bench.ingest.measured import measured, measured_ingest
from bench.ingest.modbus_server import host_of, registers_of, tag_file

BLOCK_REGISTERS = 125
INTERVAL_MS_MIN = 10  # the product's shortest: it polls again as soon as it can


def agent(options: Options) -> None:
    """The product and one device, polled as often as it can."""
    asyncio.run(_agent(options, devices=1, interval_ms=INTERVAL_MS_MIN))


def fleet(options: Options) -> None:
    """The product and many devices, polled once a second, on one core."""
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    asyncio.run(_agent(options, devices=options["devices"], interval_ms=1_000))


async def _agent(options: Options, *, devices: int, interval_ms: int) -> None:
    logging.disable(logging.ERROR)
    folder = Path(options["into"])
    sources = tuple(_source(folder, n, options, interval_ms) for n in range(devices))
    emit("READY")
    found, ingest = await measured_ingest(sources, options)
    emit("RESULT", {**found, "polls_missed": sum(source.polls_missed_total for source in ingest.statistics())})


def _source(folder: Path, device: int, options: Options, interval_ms: int) -> ModbusSourceSettings:
    name = f"device-{device}"
    tags = folder / f"{name}.csv"
    tags.write_text(tag_file(name, options["tags"], words=options["words"]))
    given: dict[str, Any] = {"host": host_of(device), "port": options["port"], "poll_interval_ms": interval_ms}
    settings = ModbusSourceSettings(name=name, tags_file=tags, address_base=0, **given)
    assert not list(settings.problems()), list(settings.problems())
    return settings


def bare(options: Options) -> None:
    """pymodbus, one block after the other."""
    logging.disable(logging.ERROR)
    asyncio.run(_bare(options))


async def _bare(options: Options) -> None:
    client = AsyncModbusTcpClient(host_of(0), port=options["port"])
    blocks = [
        (unit, start, min(BLOCK_REGISTERS, count - start))
        for unit, count in enumerate(registers_of(options["tags"], words=options["words"]), 1)
        for start in range(0, count, BLOCK_REGISTERS)
    ]
    values = 0

    async def read() -> None:
        nonlocal values
        while True:
            for unit, start, count in blocks:
                answer = await client.read_holding_registers(start, count=count, device_id=unit)
                assert len(answer.registers) == count, answer
            values += options["tags"]

    emit("READY")
    assert await client.connect(), "no connection"
    async with TaskGroup() as group:
        reading = group.create_task(read(), name="reading")
        emit("RESULT", await measured(lambda: values, options))
        reading.cancel()
    client.close()
