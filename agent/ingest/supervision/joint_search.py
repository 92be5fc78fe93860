"""Searches that several sources make at the same time, as one."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from agent.ingest.lifecycle import Newest
from agent.ingest.ports import StoredFacts


@dataclass(slots=True)
class _Search:
    """One search in a stream: the tags that are asked for, and what was found."""

    numbers: set[int] = field(default_factory=set)
    found: Mapping[int, Newest] | None = None


class JointSearch:
    """Searches the newest samples of several sources together. All of them begin at the same time when a gateway takes
    over, and each search reads the same end of a stream."""

    def __init__(self, stored: StoredFacts) -> None:
        self._stored = stored
        self._next: dict[str, _Search] = {}  # by stream: that of the sources which wait for the present one
        self._searching = asyncio.Lock()

    async def newest_samples(self, stream: str, numbers: Collection[int]) -> Mapping[int, Newest]:
        """The newest sample of each of these tags that has one."""
        search = self._next.setdefault(stream, _Search())
        search.numbers.update(numbers)
        async with self._searching:
            if self._next.get(stream) is search:
                del self._next[stream]
            if search.found is None:  # or the source that searched has ended
                search.found = await asyncio.to_thread(self._stored.newest_samples, stream, search.numbers)
        return {number: search.found[number] for number in numbers if number in search.found}
