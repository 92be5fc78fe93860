"""Tests the connection to a Modbus device step by step: host name, connection, units, tags. A step that fails ends the
test.

The steps use the code of a source, so settings that pass the test work for a source.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Sequence

from agent.ingest.dial import look_up
from agent.ingest.errors import SourceError, SourceLost
from agent.ingest.modbus.explore.device import open_device, read_tags_over
from agent.ingest.probe_result import ProbeStep, StepOutcome, TagReading, failed, tags_step
from agent.ingest.quality import BAD_TIMEOUT
from agent.ingest.tags.tag_map import Tag
from agent.settings.sources import ModbusSourceSettings


async def steps(settings: ModbusSourceSettings, tags: Sequence[Tag], tags_total: int) -> AsyncIterator[ProbeStep]:
    """The steps, each when it ends. `tags` are read."""
    if settings.transport != "rtu":
        found = await _name(settings)
        yield found
        if found.is_failed:
            return
    began_s = time.monotonic()
    try:
        async with open_device(settings) as line:
            took_ms = 1000 * (time.monotonic() - began_s)
            yield ProbeStep("connection", StepOutcome.OK, f"to {settings.where} within {took_ms:.0f} ms")
            try:
                readings = await read_tags_over(line, settings, tags)
            except SourceLost as error:
                yield failed("tags", str(error), "does the device close connections that it does not expect?")
                return
            for found in judged(settings, tags, readings, tags_total):
                yield found
    except SourceError as error:
        yield failed("connection", str(error), error.hint)


def judged(
    settings: ModbusSourceSettings, tags: Sequence[Tag], readings: Sequence[TagReading], tags_total: int
) -> list[ProbeStep]:
    """The steps that judge the values of tags: the units and the tag file."""
    units: dict[int, bool] = {}
    for tag, reading in zip(tags, readings, strict=True):
        unit_id = tag.point.unit_id
        units[unit_id] = units.get(unit_id, False) or reading.quality != BAD_TIMEOUT
    silent = sorted(unit_id for unit_id, answers in units.items() if not answers)
    answering = ", ".join(str(unit_id) for unit_id in sorted(units) if unit_id not in silent)
    if silent:
        what = f"no answer from unit {', '.join(map(str, silent))}" + (f"; {answering} answers" if answering else "")
        todo = f"which units are there: bsfg modbus scan {settings.name}; a slow device needs a longer timeout_ms"
        found = [ProbeStep("units", StepOutcome.FAILED, what, todo, is_partial=bool(answering))]
    else:
        found = [ProbeStep("units", StepOutcome.OK, f"{answering} answer{'s' * (len(units) == 1)}")]
    todo = f"find the registers with bsfg modbus probe {settings.name} REGISTER, and correct {settings.tags_file}"
    return [*found, tags_step(readings, tags_total, todo)]


async def _name(settings: ModbusSourceSettings) -> ProbeStep:
    try:
        addresses = await look_up(settings.host, settings.port)
    except OSError as error:
        todo = "correct host, or this machine's name resolution; an address such as 192.0.2.20 works, too"
        return failed("name", f"the host name {settings.host} is unknown here ({error.strerror})", todo)
    return ProbeStep("name", StepOutcome.OK, f"{settings.host} is {', '.join(addresses)}, port {settings.port}")
