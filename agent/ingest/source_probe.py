"""Test a configured source, or read its tags once, over a connection of its own: the same for both protocols.

The adapters are imported when they are needed, as in `supervision.source_making`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence

from agent.ingest import quality
from agent.ingest.errors import SourceError
from agent.ingest.probe_result import ProbeStep, StepOutcome, TagReading, failed, tags_step
from agent.ingest.tags.tag_map import Tag
from agent.message import Value
from agent.settings.sources import ModbusSourceSettings, SourceSettings

TAGS_TESTED = 20  # enough to meet each part of a device, few enough for a slow serial line


def is_read_by_node(settings: SourceSettings) -> bool:
    """Whether commands ask the running node to read, if it is connected: a Modbus device often accepts only one
    connection, and a serial line has only one. An OPC UA server accepts another session."""
    return isinstance(settings, ModbusSourceSettings)


def some_tags(tags: Sequence[Tag]) -> list[Tag]:
    """The tags with which a source is tested. Those of a Modbus source come from all units."""
    by_unit: dict[object, list[Tag]] = {}
    for tag in tags:
        by_unit.setdefault(getattr(tag.point, "unit_id", None), []).append(tag)
    share = max(1, TAGS_TESTED // max(1, len(by_unit)))
    return [tag for part in by_unit.values() for tag in part[:share]]


async def probe_source(settings: SourceSettings, tags: Sequence[Tag], tags_total: int) -> AsyncIterator[ProbeStep]:
    """The steps of a test, each when it ends. `tags` are read. A step that fails ends the test."""
    if isinstance(settings, ModbusSourceSettings):
        from agent.ingest.modbus.explore.probe import steps

        async for step in steps(settings, tags, tags_total):
            yield step
        return
    from agent.ingest.opcua.explore.probe import Probe

    probe = Probe(settings, "", is_chosen=True, confirm=lambda _: False)
    async for step in probe.steps():
        yield step
        if step.is_failed:
            return
    try:
        readings = await read_source(settings, tags)
    except SourceError as error:
        yield failed("tags", str(error))
        return
    todo = f"find the nodes with bsfg opcua browse {settings.name}, and correct {settings.tags_file}"
    yield tags_step(readings, tags_total, todo)


def readings_of_node(tags: Sequence[Tag], found: Mapping[str, tuple[Value, int, str]]) -> list[TagReading]:
    """The values that the running node has read for a command (`found`: value, status and reason by tag name), in the
    order of `tags`."""
    absent = (None, quality.BAD_NODE_ID_UNKNOWN, "the running node does not read it; bsfg source list says why")
    return [TagReading.of(tag, *found.get(tag.name, absent)) for tag in tags]


def judge_readings_of_node(
    settings: SourceSettings, tags: Sequence[Tag], readings: Sequence[TagReading], tags_total: int
) -> list[ProbeStep]:
    """The steps of a test for which the running node has read the values."""
    assert isinstance(settings, ModbusSourceSettings), "only Modbus devices are read by the node"
    from agent.ingest.modbus.explore.probe import judged

    what = f"the running node is connected to {settings.where} and has read the values: many devices accept only one connection"
    return [ProbeStep("connection", StepOutcome.OK, what), *judged(settings, tags, readings, tags_total)]


async def read_source(settings: SourceSettings, tags: Sequence[Tag]) -> list[TagReading]:
    """Read tags once. The values are in the order of `tags`. Raises SourceError."""
    if isinstance(settings, ModbusSourceSettings):
        from agent.ingest.modbus.explore.device import read_tags as read_modbus_tags

        return await read_modbus_tags(settings, tags)
    from agent.ingest.opcua.explore.services import read_tags

    return await read_tags(settings, tags)
