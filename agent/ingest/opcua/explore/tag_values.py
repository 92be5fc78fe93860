"""Reads the tags of a source once, over a new session, with the decoder of the source. Nothing is recorded."""

from __future__ import annotations

from collections.abc import Sequence

from agent.ingest import quality
from agent.ingest.opcua.address import Reading
from agent.ingest.opcua.decode import Change, DecodeError
from agent.ingest.opcua.session import CallTooLarge, Session, open_session, quiet_library
from agent.ingest.probe_result import TagReading
from agent.ingest.tags.tag_map import Tag
from agent.settings.sources import OpcuaSourceSettings


async def read_tags(settings: OpcuaSourceSettings, tags: Sequence[Tag]) -> list[TagReading]:
    """Read tags over a new session. The readings are in the order of `tags`. Raises SourceLost and SourceRefused."""
    quiet_library()
    async with open_session(settings) as session:
        namespaces = await session.namespaces()
        size = min(settings.items_per_call_max, (await session.limits()).nodes_per_read or settings.items_per_call_max)
        found, _ = await read_in_parts(session, [tag.point.reading for tag in tags], namespaces, size)
    times_ns = [change.source_time_ns or change.server_time_ns for change in found]
    return [
        TagReading.of(tag, change.value, change.quality, source_time_ns=time_ns)
        for tag, change, time_ns in zip(tags, found, times_ns, strict=True)
    ]


async def read_in_parts(
    session: Session, readings: Sequence[Reading], namespaces: Sequence[str], size: int
) -> tuple[list[Change], int]:
    """Read in calls of at most `size` nodes, and of fewer where the server refuses so many. Returns the values, and how
    many nodes it takes. A value that no answer can hold, or that cannot be decoded, is bad and costs no other its
    value. Raises SourceLost."""
    found: list[Change] = []
    whole = count = size
    while len(found) < len(readings):
        part = readings[len(found) : len(found) + count]
        try:
            found += await session.read_values(part, namespaces)
            count = size
        except CallTooLarge:
            if len(part) == 1:
                found.append(Change(0, None, quality.BAD_ENCODING_LIMITS_EXCEEDED, 0, 0))
            # A single value that is too large says nothing of the calls.
            size = count = whole if len(part) == 1 else (len(part) + 1) // 2
        except DecodeError:
            if len(part) == 1:
                found.append(Change(0, None, quality.BAD_DECODING_ERROR, 0, 0))
            count = len(part) // 2 or size
    return found, size
