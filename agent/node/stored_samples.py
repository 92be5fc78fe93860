"""Answers what ingest asks of the store when it fills gaps: what was recorded last, at which times, and which outages
are open. `ingest` and `query` do not import each other; here they meet.

Only facts of this zone's present epoch count: an earlier epoch numbered its tags differently. Searches are bounded, so
that a source is not held up by a store of hundreds of millions of facts; what lies deeper is as if it were not there.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping, Sequence

from agent.batch import Kind, Origin
from agent.fact_store import StoreReader
from agent.ingest import FILL_PREDICATE, GAP_PREDICATE, OUTAGE_REASONS, Newest
from agent.message import Sample
from agent.query.scan import Bounds, Dictionary, Facts, Scanner, parse_moment_ns

NEWEST_DEPTH_FACTS = 1_000_000  # some 0.3 s of reading; at 1,000 facts a second a quarter of an hour
OUTAGE_DEPTH_FACTS = 200_000  # operational facts are few: months of them


class StoredSamples:
    """The samples of one origin in a store: those that this node has recorded in its present epoch."""

    def __init__(self, reader: StoreReader, origin: Origin, operational_stream: str = "facts.operational") -> None:
        self._reader, self._origin = reader, origin
        self._operational_stream = operational_stream
        self._dictionary = Dictionary(reader)

    def newest_samples(self, stream: str, numbers: Collection[int]) -> Mapping[int, Newest]:
        """The newest sample of each tag by the order of recording, and the time of its newest good one."""
        wanted, found = set(numbers), dict[int, Newest]()
        seen = 0
        for facts in self._samples(Bounds(frozenset({stream}), numbers=frozenset(numbers)), newest_first=True):
            for sample in reversed(_rows(facts)):
                known = found.get(sample.tag)
                good_ns = 0 if sample.quality & 0x8000_0000 else sample.source_time_ns
                if known is None:
                    found[sample.tag] = Newest(sample, good_ns)
                elif not known.good_ns and good_ns:
                    found[sample.tag] = known._replace(good_ns=good_ns)
                if found[sample.tag].good_ns:
                    wanted.discard(sample.tag)
            seen += facts.batch.header.count
            if not wanted or seen > NEWEST_DEPTH_FACTS:
                break
        return found

    def sample_times(
        self, stream: str, numbers: Collection[int], first_ns: int, last_ns: int, times_max: int
    ) -> Mapping[int, Collection[int]] | None:
        """The times of all samples of these tags in a range; None if there are more than `times_max`."""
        bounds = Bounds(frozenset({stream}), numbers=frozenset(numbers), time_min_ns=first_ns, time_max_ns=last_ns)
        found, count = dict[int, set[int]](), 0
        for facts in self._samples(bounds):
            for tag, time_ns in zip(facts.column("tag"), facts.column("source_time_ns"), strict=True):
                found.setdefault(tag, set()).add(time_ns)
            count += len(facts.places)
            if count > times_max:
                return None
        return found

    def open_outages(self, source: str) -> Sequence[int]:
        """First times of outages of a source that no later fact calls filled, newest first."""
        filled, found, seen = set[str](), dict[str, int](), 0
        bounds = Bounds(
            frozenset({self._operational_stream}),
            kinds=frozenset({Kind.MESSAGES.value}),
            subject_tests=(f"source:{source}".__eq__,),
            predicates=frozenset({GAP_PREDICATE, FILL_PREDICATE}),
        )
        for facts in self._own(bounds, newest_first=True):
            for predicate, body in reversed(
                list(zip(facts.column("predicate"), facts.column("object_json"), strict=True))
            ):
                content = json.loads(body)
                if predicate == FILL_PREDICATE:
                    filled.update(content["outages"])
                elif content["reason"] in OUTAGE_REASONS and (first := content["first_time"]) not in filled:
                    found.setdefault(first, parse_moment_ns(first, 0))
            seen += facts.batch.header.count
            if seen > OUTAGE_DEPTH_FACTS:
                break
        return list(found.values())

    def _samples(self, bounds: Bounds, *, newest_first: bool = False) -> Iterator[Facts]:
        return (one for one in self._own(bounds, newest_first=newest_first) if one.samples is not None)

    def _own(self, bounds: Bounds, *, newest_first: bool) -> Iterator[Facts]:
        scanner = Scanner(self._reader, self._dictionary)
        if bounds.streams is not None and not bounds.streams <= scanner.ends.keys():
            return  # nothing was ever recorded in it
        for facts in scanner.scan(bounds, newest_first=newest_first):
            if facts.batch.header.origin == self._origin:
                yield facts


def _rows(facts: Facts) -> list[Sample]:
    """The samples of some facts in the order of recording."""
    tags, times_ns, qualities = (facts.column(name) for name in ("tag", "source_time_ns", "quality"))
    rows = [Sample(*row) for row in zip(tags, times_ns, facts.values(), qualities, strict=True)]
    is_backwards = len(facts.places) > 1 and facts.places[0] > facts.places[-1]
    return rows[::-1] if is_backwards else rows
