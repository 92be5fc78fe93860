"""How a command reads a source: over its own connection with the source's settings, or through the running node.

While the node is connected to a Modbus device, the node reads it for the command, because many devices refuse a second
connection or drop the first one. For OPC UA the command opens a session of its own.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import click

from agent import local_socket
from agent.cli.local_node import load_settings
from agent.ingest import (
    ProbeStep,
    Tag,
    TagReading,
    is_read_by_node,
    judge_readings_of_node,
    probe_source,
    read_source,
    readings_of_node,
)
from agent.settings.node import NodeSettings
from agent.settings.sources import SourceSettings

_SourceT = TypeVar("_SourceT", bound=SourceSettings)

TAGS_PER_REQUEST = 200  # some hundred reads of a slow device, and an answer far below the socket's limit
READ_MS_MAX = 120_000


def source_of(config_file: Path, name: str) -> tuple[NodeSettings, SourceSettings]:
    """The settings of a node and of one of its sources. Raises ConfigError and UsageError."""
    settings = load_settings(config_file)
    return settings, named_source(settings.sources, name, config_file)


def named_source(sources: Iterable[_SourceT], name: str, config_file: Path, kind: str = "source") -> _SourceT:
    """The source of this name, among those of node.toml. Raises UsageError."""
    by_name = {source.name: source for source in sources}
    if name not in by_name:
        raise click.UsageError(f"{config_file} has no valid {kind} {name!r}; it has {', '.join(by_name) or 'none'}")
    return by_name[name]


async def read_tags(node: NodeSettings, source: SourceSettings, tags: Sequence[Tag]) -> list[TagReading]:
    """The present values of tags, not recorded. Raises SourceError, LocalError."""
    through_node = await _through_node(node, source, tags)
    return await read_source(source, tags) if through_node is None else through_node


async def steps(
    node: NodeSettings, source: SourceSettings, tags: Sequence[Tag], tags_total: int
) -> AsyncIterator[ProbeStep]:
    """The steps of a test, as they end. Raises LocalError."""
    readings = await _through_node(node, source, tags)
    if readings is None:
        async for step in probe_source(source, tags, tags_total):
            yield step
        return
    for step in judge_readings_of_node(source, tags, readings, tags_total):
        yield step


async def _through_node(node: NodeSettings, source: SourceSettings, tags: Sequence[Tag]) -> list[TagReading] | None:
    """The values as the running node reads them. None if the command must connect itself: to an OPC UA server, or if no
    node is connected."""
    if not is_read_by_node(source):
        return None
    found: dict[str, tuple[Any, int, str]] = {}
    names = [tag.name for tag in tags]
    for first in range(0, len(names), TAGS_PER_REQUEST):
        request = local_socket.ReadSource(source.name, names[first : first + TAGS_PER_REQUEST])
        try:
            answer = (await local_socket.ask(node.node.state_dir, request, READ_MS_MAX)).answer
        except (FileNotFoundError, ConnectionRefusedError):
            return None
        if not isinstance(answer, local_socket.SourceRead):
            return None  # the node is not connected to the device either, so the command may connect
        found |= {reading.tag: (reading.value, reading.quality, reading.why) for reading in answer.values}
    return readings_of_node(tags, found)
