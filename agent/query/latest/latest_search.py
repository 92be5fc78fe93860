"""Finds the latest value of every tag in batches given from the newest time backwards. Core: no IO.

A tag is a subject and predicate of a zone, whatever numbers it has had: a new unit, epoch or source gives it a new
number. The value with the newest source time is the latest, so history that arrives after live values does not replace
them; of equal times the higher life counts (`SampleRank`). A source time ahead of this store's clock at recording does
not count: such a fact replaces all facts that arrived before it, and the first fact after it that is not history
replaces it (decision 0042).

Batches are taken in descending order of the time that they can prove, their *bound*. A tag is *settled* once its value
is newer than the bounds of the remaining batches.

A tag that reports by exception may be silent for hours, so staleness belongs to the source: `as_of` is the newest time
of any tag of the same zone and source, `staleness_ms` its age, and `mode` is `degraded` instead of `fresh` when the age
exceeds the caller's limit.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Literal, NamedTuple

from agent.columns import Unpacked
from agent.message import HEALTH_SOURCE, SampleRank, Value
from agent.query.scan import Chain

MARK_NS = 60_000_000_000  # a store marks its clock once a minute
CLOCKS_DIFFER_NS = 60_000_000_000  # tolerated difference between a source's clock and the store's
SET_NS_MIN = 5 * MARK_NS  # marks of a clock that goes on are closer, except over a pause of the node


class LatestKey(NamedTuple):
    """The key of a latest value."""

    zone: str
    subject: str
    predicate: str


class Arrival(NamedTuple):
    """A position in the order in which facts arrived in this store. `recorded_ns` is the last mark of the store's clock
    before the recording, at most a minute older."""

    recorded_ns: int
    stream: str
    offset: int

    @property
    def limit_ns(self) -> int:
        """A source time after this is ahead of the store's clock."""
        return self.recorded_ns + MARK_NS + CLOCKS_DIFFER_NS


@dataclass(frozen=True, slots=True)
class LatestValue:
    """The last known value of a tag, with the unit of the definition under which it was recorded."""

    source_time_ns: int
    life: bytes
    arrival: Arrival
    value: Value
    quality: int
    unit: str

    @property
    def rank(self) -> SampleRank:
        """The greater rank is the newer value. An ahead fact has the time from which a later one is not history."""
        time_ns = self.arrival.recorded_ns - CLOCKS_DIFFER_NS if self.ahead_ms else self.source_time_ns
        return SampleRank(time_ns, self.life, self.arrival.offset)

    @property
    def ahead_ms(self) -> int:
        """By at least how much the source time was ahead of the store's clock at recording; 0 if it was not."""
        if self.source_time_ns <= self.arrival.limit_ns:
            return 0
        return (self.source_time_ns - self.arrival.recorded_ns - MARK_NS) // 1_000_000


@dataclass(frozen=True, slots=True)
class LatestRow:
    """A tag, its last value if one was found, and the staleness of its source."""

    tag: LatestKey
    source: str
    latest: LatestValue | None
    as_of_ns: int | None
    staleness_ms: int | None
    mode: Literal["fresh", "degraded"]


class LatestSearch:
    """Searches the last values of tags. Batches must be given in descending order of bound and arrival.

    In this order, a batch with facts ahead of the clock comes before every batch that arrived earlier. So the first
    such fact of a tag is the last one to arrive.
    """

    def __init__(
        self,
        chains: Iterable[Chain],
        is_wanted: Callable[[LatestKey], bool],
        absent: Callable[[LatestKey], bool] = lambda _: False,
        *,
        with_health: bool = True,
    ) -> None:
        """The tags of `chains`, where a tag's last definition comes last; `absent` tags are known to be missing in most
        batches, so the search does not continue for them. `with_health`: also those of the health of nodes."""
        self._sources: dict[LatestKey, str] = {}
        self._numbers: dict[LatestKey, list[tuple[Chain, int]]] = {}
        for chain in chains:
            for number, definition in enumerate(chain.tags, 1):
                if definition.source == HEALTH_SOURCE and not with_health:
                    continue  # above a thousand nodes, these are most of all tags
                tag = LatestKey(chain.zone, definition.subject, definition.predicate)
                self._sources[tag] = definition.source
                self._numbers.setdefault(tag, []).append((chain, number))
        self.wanted = frozenset(filter(is_wanted, self._sources))
        # Other tags of the same sources count for `as_of`, but the search does not continue for them.
        sources = {(tag.zone, self._sources[tag]) for tag in self.wanted}
        self._open: dict[Chain, dict[int, LatestKey]] = {}
        for tag, numbers in self._numbers.items():
            if (tag.zone, self._sources[tag]) in sources:
                for chain, number in numbers:
                    self._open.setdefault(chain, {})[number] = tag
        self._unsettled = {tag for tag in self.wanted if not absent(tag)}
        self._found: dict[LatestKey, LatestValue] = {}
        self._times: list[tuple[int, LatestKey]] = []  # heap, newest first; values that were replaced stay in it
        self._ahead: dict[LatestKey, Arrival] = {}  # the last fact of the tag that was ahead of the clock
        self._alive_ns: dict[tuple[str, str], int] = {}  # when each source of a zone was last alive

    def settle(self, bound_ns: int) -> bool:
        """Settle the tags whose value is newer than `bound_ns`, the greatest bound of the remaining batches. False if
        the remaining batches cannot change any wanted tag."""
        while self._times and -self._times[0][0] > bound_ns:
            time_ns, tag = heapq.heappop(self._times)
            if self._found[tag].rank.source_time_ns == -time_ns and tag in self._numbers:
                for chain, number in self._numbers.pop(tag):
                    self._open[chain].pop(number, None)
                self._unsettled.discard(tag)
        return bool(self._unsettled)

    def may_be_in(self, chain: Chain) -> bool:
        """Whether a batch with these definitions can hold a tag that is still searched for."""
        return bool(self._open.get(chain))

    def look_into(self, batch: Arrival, life: bytes, chain: Chain, samples: Unpacked) -> None:
        """Look for the tags in a batch of a life; `batch` is the arrival of its first fact."""
        sought, tags = self._open.get(chain, {}), samples.all_tags()
        if sought.keys().isdisjoint(tags):
            return
        places = [place for place, number in enumerate(tags) if number in sought]
        best: dict[LatestKey, tuple[int, int, int]] = {}  # time that ranks it, place, source time
        limit_ns = batch.limit_ns
        for place, time_ns in zip(places, samples.times_ns_at(places), strict=True):
            tag = sought[tags[place]]
            if tag not in best and tag in self._ahead and batch < self._ahead[tag]:
                continue  # replaced by a fact of a later batch, whatever its time
            if time_ns > limit_ns:
                self._ahead[tag] = batch._replace(offset=batch.offset + place)
                best[tag] = batch.recorded_ns - CLOCKS_DIFFER_NS, place, time_ns
                self._note_alive(tag, batch.recorded_ns + MARK_NS)
            elif tag not in best or (time_ns, place) > best[tag]:
                best[tag] = time_ns, place, time_ns
        better = {
            tag: place
            for tag, (rank_ns, place, _) in best.items()
            if tag not in self._found or (rank_ns, life, batch.offset + place) > self._found[tag].rank
        }
        chosen = list(better.values())
        details = zip(samples.values_at(chosen), samples.qualities_at(chosen), strict=True)
        for (tag, place), (value, quality) in zip(better.items(), details, strict=True):
            rank_ns, _, time_ns = best[tag]
            unit = chain.tags[tags[place] - 1].unit
            arrival = batch._replace(offset=batch.offset + place)
            self._found[tag] = LatestValue(time_ns, life, arrival, value, quality, unit)
            self._note_alive(tag, rank_ns)
            heapq.heappush(self._times, (-rank_ns, tag))

    def rows(self, now_ns: int, fresh_ms: int) -> list[LatestRow]:
        """Every wanted tag, by zone and subject."""
        rows = []
        for tag in sorted(self.wanted):
            source_name = self._sources[tag]
            alive_ns = self._alive_ns.get((tag.zone, source_name))
            as_of_ns = None if alive_ns is None else min(alive_ns, now_ns)
            staleness_ms = None if as_of_ns is None else (now_ns - as_of_ns) // 1_000_000
            # After the clock was set back, how long a source has been silent is not known until it gives a value.
            is_later = alive_ns is not None and alive_ns > now_ns + MARK_NS + CLOCKS_DIFFER_NS
            is_fresh = staleness_ms is not None and staleness_ms <= fresh_ms and not is_later
            mode: Literal["fresh", "degraded"] = "fresh" if is_fresh else "degraded"
            rows.append(LatestRow(tag, source_name, self._found.get(tag), as_of_ns, staleness_ms, mode))
        return rows

    def _note_alive(self, tag: LatestKey, time_ns: int) -> None:
        """Note that the source of a tag was alive at this time."""
        source = tag.zone, self._sources[tag]
        self._alive_ns[source] = max(time_ns, self._alive_ns.get(source, time_ns))


def believed_times(marks_ns: Sequence[int]) -> list[int]:
    """When the facts from each mark on were recorded, in the order of arrival: never decreasing.

    A later mark of a lower clock shows that the clock was set back. If it stayed so, the times before it were ahead of
    the present clock, as far as they are later. If the clock came back in one step, as on a gateway that began in 1970,
    its low times were wrong.
    """
    times_ns = list(marks_ns)
    for place in range(1, len(times_ns)):
        high_ns = max(times_ns[:place]) if times_ns[place] < times_ns[place - 1] else times_ns[place]
        if times_ns[place] < high_ns - CLOCKS_DIFFER_NS and not _comes_back(marks_ns, place, high_ns):
            times_ns[:place] = [min(before_ns, times_ns[place]) for before_ns in times_ns[:place]]
    return list(accumulate(times_ns, max))


def _comes_back(marks_ns: Sequence[int], place: int, high_ns: int) -> bool:
    """Whether a clock that was set back at a mark was set to at least `high_ns` later, instead of reaching it."""
    for before_ns, after_ns in pairwise(marks_ns[place:]):
        if after_ns >= high_ns:
            return after_ns - before_ns > SET_NS_MIN
    return False
