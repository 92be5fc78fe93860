"""The tags of a source read once, by the same decoder as the source's. Nothing is recorded."""

from __future__ import annotations

from collections.abc import Sequence

from agent.ingest import quality
from agent.ingest.modbus.address import Register
from agent.ingest.modbus.decode import DecodeError, decode
from agent.ingest.modbus.explore.device import Device, RegisterAnswer, open_device, read_registers
from agent.ingest.modbus.plan import Limits
from agent.ingest.probe_result import TagReading
from agent.ingest.settings import ModbusSourceSettings
from agent.ingest.tags.tag_map import Tag
from agent.message import Value


async def read_tags(settings: ModbusSourceSettings, tags: Sequence[Tag]) -> list[TagReading]:
    """The tags now, in their order, over a connection of its own. Raises SourceLost."""
    async with open_device(settings) as device:
        return await read_tags_over(device, settings, tags)


async def read_tags_over(device: Device, settings: ModbusSourceSettings, tags: Sequence[Tag]) -> list[TagReading]:
    """The tags now, in their order. Raises SourceLost."""
    limits = Limits(settings.registers_per_read_max, settings.hole_max)
    answers = await read_registers(device, dict.fromkeys(tag.point for tag in tags), limits)
    by_register = {one.register: one for one in answers}
    return [_reading(tag, by_register[tag.point]) for tag in tags]


def value_of(register: Register, words: Sequence[int]) -> Value:
    """The value in the words of a register. Raises DecodeError."""
    return bool(words[0]) if register.table.is_bits else decode(register.kind, words)


def _reading(tag: Tag, answer: RegisterAnswer) -> TagReading:
    value, status, why = None, answer.quality, answer.why
    if answer.words is not None:
        try:
            value = value_of(answer.register, answer.words)
        except DecodeError as error:
            status, why = quality.BAD_DECODING_ERROR, str(error)
    definition = tag.definition
    return TagReading(
        definition.subject.removeprefix("tag:"), definition.address, value, status, unit=definition.unit, why=why
    )
