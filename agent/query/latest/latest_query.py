"""Searches a store for latest values: reads summaries, then batches from the newest time backwards, until every tag is
settled. The marks of the log give the time when a batch was recorded here.

At most `depth` facts are searched from the end of each stream, because a tag without any value would otherwise open the
whole store. Within the depth the answer is exact; a tag that is not found there gives a row without a value.

A caller that searches one stream repeatedly keeps an `AbsentTags`. The definitions of a store name the tags of all its
streams, so most of them are absent from any one stream; the next search looks for those only in newer offsets.
"""

from __future__ import annotations

from bisect import bisect
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import suppress
from functools import cache, partial
from operator import itemgetter
from typing import NamedTuple

from agent.batch import Kind, open_packed
from agent.columns import BatchError
from agent.fact_store import BatchSummary, StoreDamaged
from agent.message import HEALTH_PREFIX, HEALTH_SOURCE, HEALTH_STREAM
from agent.pages import Hole, StoredBatch
from agent.query.latest.latest_search import Arrival, LatestKey, LatestRow, LatestSearch, believed_times
from agent.query.scan import INT64_MAX, OFFSET_MAX, READ_BYTES_MAX, Chain, Scanner, matches_glob

DEPTH_FACTS = 10_000_000  # takes one to two seconds on two shared cores if nothing ends the search earlier
FRESH_MS = 60_000
GROUP_MAX = 64
"""Batches that are read together; as many again may be read in vain when a search ends."""
ZONE_DEFINITIONS_MAX = 60_000
"""The definitions of one zone for which a node searches, besides its newest chain. During a search a tag takes a
kilobyte, and a zone may have defined tags in other chains before."""


class _Place(NamedTuple):
    """A batch in the order of the search: its bound (the latest time that it can prove), its arrival, its summary, its
    definitions."""

    bound_ns: int
    arrival: Arrival
    summary: BatchSummary
    chain: Chain


class AbsentTags:
    """Records which tags have no value in which offsets of a stream, for repeated searches. Used by one thread at a
    time.

    Batches never change, and new ones have higher offsets. Only a damaged batch may be repaired later, so a search that
    found a hole is not recorded.
    """

    def __init__(self) -> None:
        self._searched: dict[str, dict[LatestKey, tuple[int, int]]] = {}

    def until(self, stream: str, first_offset: int, tags: Iterable[LatestKey]) -> dict[LatestKey, int]:
        """Those of the tags that are known to be absent from `first_offset` up to an offset, with that offset."""
        known, found = self._searched.get(stream, {}), dict[LatestKey, int]()
        for tag in tags:
            first, last = known.get(tag, (1, 0))
            if first <= first_offset <= last:
                found[tag] = last
        return found

    def retain_only(self, stream: str, tags: Collection[LatestKey]) -> None:
        """Forget tags that are no longer searched for."""
        if stream in self._searched:
            self._searched[stream] = {tag: span for tag, span in self._searched[stream].items() if tag in tags}

    def note_search(self, stream: str, first_offset: int, last_offset: int, rows: Iterable[LatestRow]) -> None:
        """Record the result of a search; entries of other tags stay."""
        known = self._searched.setdefault(stream, {})
        for row in rows:
            if row.latest is None:
                known[row.tag] = first_offset, last_offset
            else:
                known.pop(row.tag, None)


def find_latest(
    scanner: Scanner,
    now_ns: int,
    is_wanted: Callable[[LatestKey], bool] = lambda _: True,
    *,
    streams: frozenset[str] | None = None,
    zone: str | None = None,
    depth_facts: int = DEPTH_FACTS,
    fresh_ms: int = FRESH_MS,
) -> list[LatestRow]:
    """Each wanted tag with its last known value; those of health only if its stream is searched. `zone`: only the
    definitions of that zone are read. `depth_facts` 0 searches all facts."""
    chains, skipped = _chains(scanner, only=zone)
    search = LatestSearch(chains, is_wanted, with_health=streams is None or HEALTH_STREAM in streams)
    _carry_out(scanner, search, _newest_first(scanner, streams, depth_facts, skipped))
    return search.rows(now_ns, fresh_ms)


def find_latest_in_stream(
    scanner: Scanner,
    now_ns: int,
    stream: str,
    absent: AbsentTags,
    is_wanted: Callable[[LatestKey], bool] = lambda _: True,
    *,
    depth_facts: int = DEPTH_FACTS,
    fresh_ms: int = FRESH_MS,
) -> list[LatestRow]:
    """As `find_latest` for one stream, for a caller that searches repeatedly; returns only tags that have a value."""
    first_offset, end_offset = _first(scanner, stream, depth_facts), scanner.ends.get(stream, 0)
    chains, skipped = _chains(scanner, ZONE_DEFINITIONS_MAX)
    with_health = stream == HEALTH_STREAM
    tags = {
        LatestKey(chain.zone, definition.subject, definition.predicate)
        for chain in chains
        for definition in chain.tags
        if with_health or definition.source != HEALTH_SOURCE
    }
    absent.retain_only(stream, tags)
    known = absent.until(stream, first_offset, filter(is_wanted, tags))
    places = _newest_first(scanner, frozenset([stream]), depth_facts, skipped)
    while True:
        search = LatestSearch(chains, is_wanted, known.__contains__, with_health=with_health)
        _carry_out(scanner, search, places, min(known.values(), default=end_offset))
        rows = search.rows(now_ns, fresh_ms)
        appeared = [row.tag for row in rows if row.latest is not None and row.tag in known]
        if not appeared:
            break
        for tag in appeared:  # search again: the skipped batches may hold the `as_of` of its source
            del known[tag]
    if not scanner.counters.holes_total:
        absent.note_search(stream, first_offset, end_offset, rows)
    return [row for row in rows if row.latest is not None]


def streams_with(scanner: Scanner, tag_glob: str, stream: str | None) -> frozenset[str]:
    """The streams in which tags of a pattern are searched: this one, or all. Nothing but health is in that of the
    health of nodes. Raises StoreError for an unknown stream."""
    if stream is not None:
        return scanner.check_streams([stream])
    return frozenset(scanner.ends) - (frozenset() if _names_health(tag_glob) else {HEALTH_STREAM})


def tags_matching(tag_glob: str, zone: str | None) -> Callable[[LatestKey], bool]:
    """A test for tags of a zone whose subject, with or without its `tag:`, matches a pattern of * ? and [...]. The
    health of nodes only matches a pattern that begins with its name."""
    names_health = _names_health(tag_glob)

    def matches(tag: LatestKey) -> bool:
        return (
            zone in {None, tag.zone}
            and (names_health or not tag.subject.startswith(HEALTH_PREFIX))
            and matches_glob(tag.subject, [tag_glob])
        )

    return matches


def _names_health(tag_glob: str) -> bool:
    return tag_glob.removeprefix("tag:").startswith(HEALTH_PREFIX.removeprefix("tag:"))


def _carry_out(
    scanner: Scanner, search: LatestSearch, places: Iterable[_Place], until_offset: int = OFFSET_MAX
) -> None:
    """Search batches while a tag is unsettled, and every batch after `until_offset`, because tags that are absent up to
    there may appear later."""
    for found in _groups(places):
        batches = _read(scanner, (place for place in found if search.may_be_in(place.chain)))
        for bound_ns, arrival, summary, chain in found:
            is_sought = search.settle(bound_ns)
            if not is_sought and until_offset == OFFSET_MAX:
                return
            if (is_sought or summary.last_offset > until_offset) and search.may_be_in(chain):
                _look(scanner, search, arrival, chain, batches.get(arrival[1:]))


def _groups(places: Iterable[_Place]) -> Iterator[list[_Place]]:
    """Batches to be read at once: small groups first, for a search that soon ends, and none of more than
    READ_BYTES_MAX."""
    group, size, most = list[_Place](), 0, 1
    for place in places:
        if group and (len(group) >= most or size + place.summary.body_bytes > READ_BYTES_MAX):
            yield group
            group, size, most = [], 0, min(2 * most, GROUP_MAX)
        group.append(place)
        size += place.summary.body_bytes
    if group:
        yield group


def _read(scanner: Scanner, places: Iterable[_Place]) -> dict[tuple[str, int], StoredBatch]:
    """Batches by stream and first offset."""
    ranges = ((p.arrival.stream, p.summary.first_offset, p.summary.last_offset) for p in places)
    return {(stream, stored.first_offset): stored for stream, stored in scanner.read_ranges(ranges)}


def _chains(scanner: Scanner, zone_max: int | None = None, only: str | None = None) -> tuple[list[Chain], set[str]]:
    """The chains of definitions, in the order in which they were stored, without those that the disk has damaged; with
    a limit, of each zone the newest, and earlier ones as the limit allows; or those of one zone. Second: the zones of
    which some are skipped."""
    dictionary, found, left, skipped = scanner.dictionary, list[Chain](), dict[str, int](), set[str]()
    for zone, end in reversed(scanner.reader.definition_ends()):
        if only not in {None, zone}:
            skipped.add(zone)
            continue
        if zone_max is not None and zone in left and end.count > left[zone]:
            dictionary.forget_chain(zone, end)
            skipped.add(zone)
            continue
        left[zone] = (zone_max or 0) if zone not in left else left[zone] - end.count
        with suppress(StoreDamaged, BatchError):
            found.append(dictionary.of(zone, end))
    return found[::-1], skipped


def _first(scanner: Scanner, stream: str, depth_facts: int) -> int:
    """The first offset within the depth."""
    first_offset = scanner.firsts.get(stream, 1)
    return max(first_offset, scanner.ends.get(stream, 0) - depth_facts + 1) if depth_facts else first_offset


def _newest_first(
    scanner: Scanner, streams: frozenset[str] | None, depth_facts: int, skipped: Collection[str]
) -> list[_Place]:
    """The batches of samples within the depth, in descending order of bound and arrival. Those whose definitions are
    damaged are recorded as holes, because it is unknown which tags they hold; those of chains that are not searched
    are left out."""
    found: list[_Place] = []
    chain_of = cache(partial(_chain_of, scanner))
    for stream, end_offset in scanner.ends.items():
        if streams is None or stream in streams:
            marks = scanner.reader.clock_marks(stream)
            offsets = [offset for offset, _ in marks]
            times_ns = believed_times([unix_ms * 1_000_000 for _, unix_ms in marks]) or [INT64_MAX]
            for page in scanner.summaries(stream, _first(scanner, stream, depth_facts), end_offset):
                for summary in page:
                    if summary.kind != Kind.SAMPLES:
                        continue
                    if (chain := chain_of(summary.definition)) is None:
                        if summary.origin.zone not in skipped:
                            hole = Hole(summary.first_offset, summary.last_offset, "damaged")
                            scanner.counters.add_hole(stream, hole)
                    else:
                        recorded_ns = times_ns[max(bisect(offsets, summary.first_offset) - 1, 0)]
                        arrival = Arrival(recorded_ns, stream, summary.first_offset)
                        found.append(_Place(min(summary.time_max_ns, arrival.limit_ns), arrival, summary, chain))
    found.sort(key=itemgetter(0, 1), reverse=True)
    return found


def _chain_of(scanner: Scanner, definition: int | None) -> Chain | None:
    """The chain of a batch's definitions, if it was read."""
    try:
        return scanner.dictionary.known(*scanner.reader.definitions_named(definition or 0))
    except StoreDamaged:
        return None


def _look(scanner: Scanner, search: LatestSearch, arrival: Arrival, chain: Chain, stored: StoredBatch | None) -> None:
    if stored is None:
        return  # a hole
    try:
        samples = open_packed(stored.batch)
    except BatchError:
        scanner.counters.add_hole(arrival.stream, Hole(stored.first_offset, stored.last_offset, "damaged"))
        return
    scanner.counters.batches_opened += 1
    search.look_into(arrival, stored.origin.life, chain, samples)
