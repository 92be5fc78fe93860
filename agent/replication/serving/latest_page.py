"""Selects the latest values of a page: the requested ones, in the order of their tags, within limits. A core: values
in, values out.

The node provides the search (`LookUp`). Only tags with a value are returned, because other tags may belong to streams
that the requester may not read.

All pages of one query come from one search. If a single tag is not found, a search opens a batch for each thousand
facts down to its depth. With a search for each page, the four pages of ten thousand tags would cost four of them.
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
"""Searches kept for one zone: a node that begins two pulls requests the pages of both in turn. Each takes four
megabytes for ten thousand tags."""

KEPT_TAGS_MAX = 20_000
"""A search with more tags is not kept but made again for each page, on the zone's own account."""

TagSortKey = tuple[str, str, str]
"""Zone, subject and predicate of a tag; pages are in this order (`messages.TagKey.order`)."""


@dataclass(frozen=True, slots=True)
class LatestValues:
    """The result of a search: tags that have a value, in order, and the value of each by its index. `queue_depth`:
    facts of the stream that are known to be at peers and not yet here."""

    tags: Sequence[TagSortKey]
    entry_at: Callable[[int], LatestEntry]
    depth_facts: int
    queue_depth: int


TagFilter = Callable[[TagSortKey], bool]
LookUp = Callable[[str, TagFilter, int, int], LatestValues]
"""(stream, filter, fresh_ms, depth_facts) to the latest values; reads the disk. Raises the store's errors."""


class LatestQuery(NamedTuple):
    """A query, the same for all its pages."""

    stream: str
    subjects: frozenset[str]
    prefix: str
    fresh_ms: int
    depth_facts: int

    @classmethod
    def of(cls, request: GetLatest) -> LatestQuery:
        """The query of a request."""
        return cls(request.stream, frozenset(request.subjects), request.prefix, request.fresh_ms, request.depth_facts)

    def is_about(self, tag: TagSortKey) -> bool:
        """Whether the query includes a tag."""
        return (not self.subjects or tag[1] in self.subjects) and tag[1].startswith(self.prefix)


class CachedSearch(NamedTuple):
    """The result of a search, the end of the stream at that time, and the time."""

    found: LatestValues
    end_offset: int
    at_ms: int


class SearchCache:
    """The last searches of each zone, for its requests for later pages. No zone displaces the searches of another,
    which would have to search again for each page."""

    def __init__(self) -> None:
        self._searches: dict[str, dict[LatestQuery, CachedSearch]] = {}

    def get(self, zone: str, query: LatestQuery, now_ms: int) -> CachedSearch | None:
        """The search for this query of the zone, if it is still kept."""
        self.forget(now_ms)
        return self._searches.get(zone, {}).get(query)

    def put(self, zone: str, query: LatestQuery, searched: CachedSearch) -> None:
        """Keep a search; beyond the limit it replaces the zone's oldest."""
        kept = self._searches.setdefault(zone, {})
        kept.pop(query, None)
        if len(searched.found.tags) <= KEPT_TAGS_MAX:
            kept[query] = searched
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
    """As many values after a tag as the limits allow, but at least one if there is one; and whether more follow."""
    first = 0 if after is None else bisect_right(found.tags, after)
    page, size = list[LatestEntry](), 0
    for place in range(first, min(first + limit, len(found.tags))):
        value = found.entry_at(place)
        size += len(msgspec.json.encode(value)) + 1
        if page and size > bytes_max:
            break
        page.append(value)
    return page, first + len(page) < len(found.tags)
