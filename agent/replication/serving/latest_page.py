"""Which latest values a page holds: those requested, in the order of their tags, within limits. A core: values in,
values out.

The node provides the search (`LookUp`). Only tags with a value are returned, because other tags may belong to streams
that the requester may not read.

All pages of one question come from one search. A search opens a batch for each thousand facts in its depth if a single
tag is not found, so a search for each page would cost ten thousand tags of four pages four of them.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import msgspec

from agent.replication.protocol.messages import GetLatest, LatestEntry

KEPT_MS = 10_000
"""A requester asks for the next page within a second or two; `staleness_ms` is wrong by at most this."""
KEPT_OF_ZONE_MAX = 2
"""Searches kept for one zone: a node that begins two pulls asks for the pages of both by turns. Four megabytes each for
ten thousand tags."""

KEPT_TAGS_MAX = 20_000
"""Of a search that is kept; one with more is made again for each page, in the zone's own time."""

TagSortKey = tuple[str, str, str]
"""Zone, subject and predicate of a tag; pages are in this order (`messages.TagKey.order`)."""


@dataclass(frozen=True, slots=True)
class LatestValues:
    """Tags that have a value, in order, and the value of each by its index; the depth of the search, and how many facts
    of the stream are at peers and not yet here."""

    tags: Sequence[TagSortKey]
    entry_at: Callable[[int], LatestEntry]
    depth_facts: int
    queue_depth: int


TagFilter = Callable[[TagSortKey], bool]
LookUp = Callable[[str, TagFilter, int, int], LatestValues]
"""(stream, which tags, fresh_ms, depth_facts) to what is known; touches the disk. Raises the store's errors."""


class LatestQuery(NamedTuple):
    """A question, the same for all its pages."""

    stream: str
    subjects: frozenset[str]
    prefix: str
    fresh_ms: int
    depth_facts: int

    @classmethod
    def of(cls, request: GetLatest) -> LatestQuery:
        """The question of a request."""
        return cls(request.stream, frozenset(request.subjects), request.prefix, request.fresh_ms, request.depth_facts)

    def is_about(self, tag: TagSortKey) -> bool:
        """Whether the question includes a tag."""
        return (not self.subjects or tag[1] in self.subjects) and tag[1].startswith(self.prefix)


class Search(NamedTuple):
    """The result of a search, the end of the stream then, and the time."""

    found: LatestValues
    end_offset: int
    at_ms: int


class SearchCache:
    """The last searches of each zone, for its requests for later pages. No zone displaces those of another, which would
    search again for each page."""

    def __init__(self) -> None:
        self._searches: dict[str, dict[LatestQuery, Search]] = {}

    def get(self, zone: str, question: LatestQuery, now_ms: int) -> Search | None:
        """The search that answered this question of the zone a moment ago."""
        self.forget(now_ms)
        return self._searches.get(zone, {}).get(question)

    def put(self, zone: str, question: LatestQuery, searched: Search) -> None:
        """Keep a search, in place of the zone's oldest."""
        kept = self._searches.setdefault(zone, {})
        kept.pop(question, None)
        if len(searched.found.tags) <= KEPT_TAGS_MAX:
            kept[question] = searched
        while len(kept) > KEPT_OF_ZONE_MAX:
            del kept[next(iter(kept))]

    def forget(self, now_ms: int) -> None:
        """Drop searches that are too old."""
        for zone, kept in list(self._searches.items()):
            young = {asked: searched for asked, searched in kept.items() if now_ms - searched.at_ms < KEPT_MS}
            self._searches[zone] = young
            if not young:
                del self._searches[zone]


def page_of(
    found: LatestValues, after: TagSortKey | None, limit: int, bytes_max: int
) -> tuple[list[LatestEntry], bool]:
    """As many values after a tag as the limits allow, at least one if there is one; and whether more follow."""
    first = 0 if after is None else bisect_right(found.tags, after)
    page, size = list[LatestEntry](), 0
    for place in range(first, min(first + limit, len(found.tags))):
        value = found.entry_at(place)
        size += len(msgspec.json.encode(value)) + 1
        if page and size > bytes_max:
            break
        page.append(value)
    return page, first + len(page) < len(found.tags)
