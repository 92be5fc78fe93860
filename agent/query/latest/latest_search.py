"""Finds the latest value of every tag in batches given from the newest source time down. Core: no IO.

A tag is a subject and predicate of a zone, whatever numbers it has had: a new unit, epoch or source gives it a new
number. Its latest value has the newest source time, and among equal ones the highest offset. Facts do not arrive in the
order of their source times, since a gap is filled from history behind live values. So batches are taken in descending
order of the latest time they hold, and a tag is *settled* once its value is newer than anything the remaining batches
can hold.

Each value has a staleness. A tag that reports by exception may be silent for hours, so staleness belongs to the source:
`as_of` is the newest source time of any tag of the same zone and source, and `staleness_ms` is the age of that. `mode`
is `degraded` instead of `fresh` when the age exceeds the caller's limit.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from agent.batch import Origin, Unpacked
from agent.message import TagDefinition, Value


class Tag(NamedTuple):
    """What has a last value."""

    zone: str
    subject: str
    predicate: str


@dataclass(frozen=True, slots=True)
class LatestValue:
    """The last known value of a tag, with the unit of the definition under which it was recorded."""

    source_time_ns: int
    offset: int
    stream: str
    value: Value
    quality: int
    unit: str


@dataclass(frozen=True, slots=True)
class LatestRow:
    """A tag, its last value if one was found, and how stale what we know of its source is."""

    tag: Tag
    source: str
    latest: LatestValue | None
    as_of_ns: int | None
    staleness_ms: int | None
    mode: Literal["fresh", "degraded"]


class LatestSearch:
    """Tags whose last values are sought. Give it batches in the order of their latest times, descending."""

    def __init__(
        self,
        definitions: Mapping[Origin, Sequence[TagDefinition]],
        is_wanted: Callable[[Tag], bool],
        absent: Callable[[Tag], bool] = lambda _: False,
    ) -> None:
        """`absent` tags are known not to be in most batches: they are found where they are, and nobody searches on for
        them."""
        self._definitions = definitions
        self._sources: dict[Tag, str] = {}
        self._numbers: dict[Tag, list[tuple[Origin, int]]] = {}
        for origin, number, one in _numbered(definitions):
            tag = Tag(origin.zone, one.subject, one.predicate)
            self._sources[tag] = one.source
            self._numbers.setdefault(tag, []).append((origin, number))
        self.wanted = frozenset(filter(is_wanted, self._sources))
        # Other tags of the same sources count for as_of, but the search does not continue for their sake.
        sources = {(tag.zone, self._sources[tag]) for tag in self.wanted}
        self._open: dict[Origin, dict[int, Tag]] = {}
        for tag, numbers in self._numbers.items():
            if (tag.zone, self._sources[tag]) in sources:
                for origin, number in numbers:
                    self._open.setdefault(origin, {})[number] = tag
        self._unsettled = {tag for tag in self.wanted if not absent(tag)}
        self._found: dict[Tag, LatestValue] = {}
        self._times: list[tuple[int, Tag]] = []  # heap, newest first; what has been bettered stays in it

    def settle(self, time_max_ns: int) -> bool:
        """Everything that remains ends at this time; False when nothing that is wanted can be in it."""
        while self._times and -self._times[0][0] > time_max_ns:
            time_ns, tag = heapq.heappop(self._times)
            if self._found[tag].source_time_ns == -time_ns and tag in self._numbers:
                for origin, number in self._numbers.pop(tag):
                    self._open[origin].pop(number, None)
                self._unsettled.discard(tag)
        return bool(self._unsettled)

    def may_be_in(self, origin: Origin) -> bool:
        """Whether a batch of this origin can matter."""
        return bool(self._open.get(origin))

    def look(self, stream: str, first_offset: int, origin: Origin, samples: Unpacked) -> None:
        """Look for the tags in a batch."""
        sought, tags = self._open.get(origin, {}), samples.all_tags()
        if sought.keys().isdisjoint(tags):
            return
        places = [place for place, number in enumerate(tags) if number in sought]
        best: dict[Tag, tuple[int, int]] = {}
        for place, time_ns in zip(places, samples.times_ns_at(places), strict=True):
            tag = sought[tags[place]]
            if tag not in best or (time_ns, place) > best[tag]:
                best[tag] = time_ns, place
        better = {
            tag: place for tag, (time_ns, place) in best.items() if self._betters(tag, time_ns, first_offset + place)
        }
        chosen = list(better.values())
        details = zip(samples.values_at(chosen), samples.qualities_at(chosen), strict=True)
        for (tag, place), (value, quality) in zip(better.items(), details, strict=True):
            time_ns = best[tag][0]
            unit = self._definitions[origin][tags[place] - 1].unit
            self._found[tag] = LatestValue(time_ns, first_offset + place, stream, value, quality, unit)
            heapq.heappush(self._times, (-time_ns, tag))

    def rows(self, now_ns: int, fresh_ms: int) -> list[LatestRow]:
        """Every wanted tag, by zone and subject."""
        newest: dict[tuple[str, str], int] = {}
        for tag, known in self._found.items():
            source = tag.zone, self._sources[tag]
            newest[source] = max(known.source_time_ns, newest.get(source, known.source_time_ns))
        rows = []
        for tag in sorted(self.wanted):
            source_name = self._sources[tag]
            as_of_ns = newest.get((tag.zone, source_name))
            staleness_ms = None if as_of_ns is None else max(0, (now_ns - as_of_ns) // 1_000_000)
            is_fresh = staleness_ms is not None and staleness_ms <= fresh_ms
            mode: Literal["fresh", "degraded"] = "fresh" if is_fresh else "degraded"
            rows.append(LatestRow(tag, source_name, self._found.get(tag), as_of_ns, staleness_ms, mode))
        return rows

    def _betters(self, tag: Tag, time_ns: int, offset: int) -> bool:
        known = self._found.get(tag)
        return known is None or (time_ns, offset) > (known.source_time_ns, known.offset)


def _numbered(definitions: Mapping[Origin, Iterable[TagDefinition]]) -> Iterator[tuple[Origin, int, TagDefinition]]:
    """Every definition with its origin and number; a tag's last number comes last."""
    for origin, ones in definitions.items():
        for number, one in enumerate(ones, 1):
            yield origin, number, one
