"""What a source hands its samples to: sampling decisions, then the door to the store, stream by stream.

Lives as long as the source is configured, across all its connections: what was recorded last must be known when the source
returns. Takes raw samples by tag number, passes on what the rules let through. Will not keep what it passed on.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from agent.ingest.gap import TAGS_NAMED_MAX, Gap
from agent.ingest.recorder import Recorder
from agent.ingest.sampling import Sampler
from agent.ingest.tag_map import Tag
from agent.message import Sample


class Delivery:
    """The way of one source's samples into the store."""

    def __init__(self, source: str, tags: Sequence[Tag], numbers: Sequence[int], recorder: Recorder) -> None:
        assert len(tags) == len(set(numbers)) == len(numbers), "the store numbers each definition, and each differently"
        self.source = source
        self.recorder = recorder
        self.points: dict[int, Any] = {n: tag.point for n, tag in zip(numbers, tags, strict=True)}
        self.sampler = Sampler([(n, tag.rule) for n, tag in zip(numbers, tags, strict=True)])
        self._streams = {n: tag.stream for n, tag in zip(numbers, tags, strict=True)}
        self._subjects = {n: tag.definition.subject for n, tag in zip(numbers, tags, strict=True)}
        self.turns_total = 0
        self._one_stream = tags[0].stream if len({tag.stream for tag in tags}) == 1 else None

    async def deliver(self, samples: Iterable[Sample], now_ns: int, returned_ns: int | None = None) -> None:
        """Record those of the samples that the rules let through (see `Sampler.select`); held while the store refuses."""
        await self._record(self.sampler.select(samples, now_ns, returned_ns))

    async def deliver_due(self, now_ns: int) -> None:
        """Record what time alone makes due, and the gaps that are."""
        self.turns_total += 1
        await self._record(self.sampler.due(now_ns))
        await self.recorder.flush_gaps()

    async def lose(
        self, quality: int, now_ns: int, tags: Iterable[int] | None = None, *, corrects: bool = False
    ) -> None:
        """Record once that tags (all, or these) have no value now."""
        await self._record(self.sampler.lose(quality, now_ns, tags, corrects=corrects))

    def add_gap(
        self, reason: str, first_ns: int, last_ns: int, count: int, tags: Iterable[int], *, exact: bool
    ) -> None:
        """Note values that were lost; they become a fact."""
        named = tuple(self._subjects[tag] for tag, _ in zip(tags, range(TAGS_NAMED_MAX), strict=False))
        self.recorder.add_gap(Gap(self.source, reason, first_ns, max(first_ns, last_ns), count, exact, named))

    async def _record(self, rows: list[Sample]) -> None:
        if not rows:
            return
        if self._one_stream is not None:
            await self.recorder.record(self._one_stream, rows)
            return
        by_stream: dict[str, list[Sample]] = {}
        for row in rows:
            by_stream.setdefault(self._streams[row.tag], []).append(row)
        for stream, part in by_stream.items():
            await self.recorder.record(stream, part)
