"""Reads the tags of a source once, with the decoder of the source. Nothing is recorded."""

from __future__ import annotations

from collections.abc import Sequence

from agent.ingest.modbus.explore.device import open_device, read_registers
from agent.ingest.modbus.line import Line
from agent.ingest.probe_result import TagReading
from agent.ingest.tags.tag_map import Tag
from agent.settings.sources import ModbusSourceSettings


async def read_tags(settings: ModbusSourceSettings, tags: Sequence[Tag]) -> list[TagReading]:
    """Read tags over a new connection. The readings are in the order of `tags`. Raises SourceLost."""
    async with open_device(settings) as line:
        return await read_tags_over(line, settings, tags)


async def read_tags_over(line: Line, settings: ModbusSourceSettings, tags: Sequence[Tag]) -> list[TagReading]:
    """Read tags over an open connection. The readings are in the order of `tags`. Raises SourceLost."""
    answers = await read_registers(line, settings, dict.fromkeys(tag.point for tag in tags))
    found = {answer.register: (answer.value, answer.quality, answer.why) for answer in answers}
    return [TagReading.of(tag, *found[tag.point]) for tag in tags]
