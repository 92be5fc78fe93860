"""Looks up stored samples for ingest when it fills gaps: the newest ones, their times, and open outages. It connects
`ingest` and `query`, which do not import each other.

What any life of the zone has recorded counts (zone_samples.py). The searches at the start of a source end at a fixed
depth of their stream, so that a store of hundreds of millions of facts does not delay it; older facts are ignored. If
the store cannot be read, the source starts as a new one.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Collection, Hashable, Iterator, Mapping, Sequence
from dataclasses import replace
from operator import itemgetter
from typing import NamedTuple

from agent.batch import Kind
from agent.errors import StoreError
from agent.fact_store import StoreReader
from agent.ingest import (
    BELIEVED_PART,
    EVENTS_PART,
    FILL_PREDICATE,
    GAP_PREDICATE,
    OUTAGE_REASONS,
    Newest,
    Stored,
    StoredUnreadable,
)
from agent.message import OPERATIONAL_STREAM, TagDefinition
from agent.node.removed_tags import NEWEST_DEPTH_FACTS, find_tags_of_others
from agent.node.zone_samples import NewestSearch, ZoneSamples, is_forward
from agent.query.scan import Bounds, parse_time_ns

log = logging.getLogger(__name__)

OUTAGE_DEPTH_FACTS = 200_000  # operational facts are few: months of them


class StoredSamples:
    """The samples of the zone in a store."""

    def __init__(self, reader: StoreReader) -> None:
        self._reader, self._samples = reader, ZoneSamples(reader)

    def newest_samples(self, stream: str, numbers: Collection[int]) -> Mapping[int, Newest]:
        """The newest sample of each tag by the order of recording, the last one first."""
        found = NewestSearch(numbers)
        try:
            asked = self._samples.asked(numbers, _meaning)
            self._samples.find_newest(stream, asked, found, NEWEST_DEPTH_FACTS)
        except StoreError as error:
            _log_unreadable(stream, error)
        return found.by_tag()

    def completeness(self, source: str) -> Mapping[str, Stored]:
        """Up to when the parts of a source are complete, as this node has recorded it."""
        try:
            return {part: Stored(*known) for part, known in self._reader.completeness(source).items()}
        except StoreError as error:
            _log_unreadable(source, error)
            return {}

    def completeness_of_others(self, source: str, subjects: Collection[str]) -> Mapping[str, Stored]:
        """Up to when these tags are complete at the sources that recorded them last, other than this one; of each part
        the earliest."""
        found = dict[str, Stored]()
        try:
            others = find_tags_of_others(self._reader, source, subjects)
        except StoreError as error:
            _log_unreadable(source, error)
            return found
        for other in sorted({tag.source for tag in others}):
            for part, known in self.completeness(other).items():
                if part in subjects or part in {"", BELIEVED_PART, EVENTS_PART}:
                    found[part] = min(known, found.get(part, known), key=itemgetter(0))
        return found

    def sample_times(
        self, stream: str, numbers: Collection[int], first_ns: int, last_ns: int, times_max: int
    ) -> Mapping[int, Collection[int]] | None:
        """The times of all samples of these tags in a range; None if there are more than `times_max`. An edit of a tag
        begins a new number, so those of all its numbers count."""
        found = dict[int, set[int]]()
        try:
            asked = self._samples.asked(numbers, _subject, with_others=True)
            of_stream = replace(asked.bounds, streams=frozenset({stream}), time_min_ns=first_ns, time_max_ns=last_ns)
            for facts in self._samples.facts(of_stream, Kind.SAMPLES, asked.dictionary):
                for tag, time_ns in zip(asked.tags_of(facts), facts.column("source_time_ns"), strict=True):
                    if tag is not None:
                        found.setdefault(tag, set()).add(time_ns)
                if sum(map(len, found.values())) > times_max:
                    return None
        except StoreError as error:
            raise StoredUnreadable(f"the store cannot say what it holds of stream {stream}: {error}") from error
        return found

    def open_outages(self, source: str) -> Sequence[tuple[int, int]]:
        """First and last times of outages of a source that no later fact declares filled, newest first."""
        filled, found = set[str](), dict[str, tuple[int, int]]()
        for gap in self._gap_facts(source, GAP_PREDICATE, FILL_PREDICATE):
            filled.update(gap.outages)  # also of outages whose own fact came from the other node since
            first_ns, last_ns = parse_time_ns(gap.first), parse_time_ns(gap.last)
            if gap.reason in OUTAGE_REASONS and first_ns is not None and last_ns is not None:
                _, known_ns = found.get(gap.first, (first_ns, last_ns))
                found[gap.first] = first_ns, max(last_ns, known_ns)
        return [outage for first, outage in found.items() if first not in filled]

    def _gap_facts(self, source: str, *predicates: str) -> Iterator[_GapTexts]:
        """The contents of the facts of these predicates about a source, newest first; none if the store cannot be
        read."""
        bounds = Bounds(
            frozenset({OPERATIONAL_STREAM}),
            subject_tests=(f"source:{source}".__eq__,),
            predicates=frozenset(predicates),
        )
        try:
            for facts in self._samples.facts(bounds, Kind.MESSAGES, depth_facts=OUTAGE_DEPTH_FACTS):
                bodies = facts.column("object_json")
                yield from map(_gap_texts, bodies[::-1] if is_forward(facts) else bodies)
        except StoreError as error:
            _log_unreadable(OPERATIONAL_STREAM, error)


def _subject(tag: TagDefinition) -> Hashable:
    return tag.subject


def _meaning(tag: TagDefinition) -> Hashable:
    """What two samples must agree on for one to follow the other."""
    return tag.subject, tag.unit, tag.acquisition


class _GapTexts(NamedTuple):
    """The fields of a fact about a gap; empty where one is missing or of another type."""

    first: str = ""
    last: str = ""
    reason: str = ""
    outages: Sequence[str] = ()


def _gap_texts(body: bytes) -> _GapTexts:
    """Applications may append facts of these predicates too, with any content."""
    content = json.loads(body)
    if not isinstance(content, dict):
        return _GapTexts()
    texts = (content.get(name) for name in ("first_time", "last_time", "reason"))
    first, last, reason = (text if isinstance(text, str) else "" for text in texts)
    outages = content.get("outages")
    return _GapTexts(
        first,
        last,
        reason,
        [outage for outage in outages if isinstance(outage, str)] if isinstance(outages, list) else [],
    )


def _log_unreadable(stream: str, error: StoreError) -> None:
    log.error("stored_samples_unreadable", extra={"stream": stream, "why": str(error)})
