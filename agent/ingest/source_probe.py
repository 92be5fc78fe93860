"""Test a configured source, or read its tags once, over a connection of its own: the same for both protocols.

The adapters are imported when they are needed, as in `supervisor.source_maker`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence

from agent.ingest import quality
from agent.ingest.errors import SourceError
from agent.ingest.probe_result import Outcome, ProbeStep, TagReading, failed, tags_step
from agent.ingest.tags.tag_map import Tag
from agent.message import Value
from agent.settings.sources import ModbusSourceSettings, SourceSettings

TAGS_TESTED = 20  # enough to meet each part of a device, few enough for a slow serial line


def is_read_by_node(settings: SourceSettings) -> bool:
    """Whether a running node that is connected reads for commands: a Modbus device often takes one connection only, and
    a serial line has but one. An OPC UA server takes another session."""
    return isinstance(settings, ModbusSourceSettings)


def some_tags(tags: Sequence[Tag]) -> list[Tag]:
    """The tags by which a source is tested: those of a Modbus source from each unit in turn."""
    by_unit: dict[object, list[Tag]] = {}
    for tag in tags:
        by_unit.setdefault(getattr(tag.point, "unit_id", None), []).append(tag)
    share = max(1, TAGS_TESTED // max(1, len(by_unit)))
    return [tag for part in by_unit.values() for tag in part[:share]]


async def probe_source(settings: SourceSettings, tags: Sequence[Tag], tags_total: int) -> AsyncIterator[ProbeStep]:
    """The steps of a test, as they end; these `tags` are read. A step that fails ends it."""
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
    """Values that the running node has read for a command, given as (value, status, why) by tag, in the order of
    `tags`."""
    absent = (None, quality.BAD_NODE_ID_UNKNOWN, "the running node does not read it; bsfg source list says why")
    return [TagReading.of(tag, *found.get(tag.name, absent)) for tag in tags]


def judge_readings_of_node(
    settings: SourceSettings, tags: Sequence[Tag], readings: Sequence[TagReading], tags_total: int
) -> list[ProbeStep]:
    """The steps that follow from values which the running node has read for us."""
    assert isinstance(settings, ModbusSourceSettings), "others are read over a session of one's own"
    from agent.ingest.modbus.explore.probe import judged

    what = (
        f"the running node is connected to {settings.where} and has read for us: many devices take one connection only"
    )
    return [ProbeStep("connection", Outcome.OK, what), *judged(settings, tags, readings, tags_total)]


async def read_source(settings: SourceSettings, tags: Sequence[Tag]) -> list[TagReading]:
    """The values of tags now, in their order. Raises SourceError."""
    if isinstance(settings, ModbusSourceSettings):
        from agent.ingest.modbus.explore.tag_values import read_tags as read_modbus_tags

        return await read_modbus_tags(settings, tags)
    from agent.ingest.opcua.explore.tag_values import read_tags

    return await read_tags(settings, tags)
