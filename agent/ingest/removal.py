"""Records tags that were removed from the tag files while no process ran: one sample with the status out of service for
each, as for a tag that is removed while its source runs. Otherwise the last value would look current forever.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Collection, Sequence

from agent.columns import SampleColumns
from agent.ingest import quality
from agent.ingest.gap import TAGS_NAMED_MAX
from agent.ingest.ports import RemovedTag
from agent.ingest.recorder import Recorder
from agent.message import Sample

log = logging.getLogger(__name__)

FindRemoved = Callable[[Collection[str]], Sequence[RemovedTag]]
"""Finds the tags of this node in the store whose subjects are not among these and that are not out of service. It may
be called in any thread and may take a second."""


async def record_removed(find: FindRemoved, subjects: Collection[str], recorder: Recorder) -> None:
    """Record as out of service each tag whose subject is not in `subjects`. Waits while the store refuses."""
    found = await asyncio.to_thread(find, subjects)
    if not found:
        return
    now_ns = time.time_ns()
    for stream in dict.fromkeys(tag.stream for tag in found):
        # A fact is never older than the previous one of its tag, which may have come from a clock that is ahead.
        rows = [
            Sample(tag.number, max(now_ns, tag.newest_ns + 1), None, quality.TAG_REMOVED)
            for tag in found
            if tag.stream == stream
        ]
        await recorder.record(stream, SampleColumns.of(rows))
    await recorder.drain()
    named = [tag.subject.removeprefix("tag:") for tag in found[:TAGS_NAMED_MAX]]
    extra = {"action": "tags_removed_while_stopped", "count": len(found), "tags": named}
    log.info("tags were removed from the tag files while the node was down", extra=extra)
