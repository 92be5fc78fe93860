"""Looks up stored samples for ingest when it fills gaps: the newest ones, their times, and open outages. It connects
`ingest` and `query`, which do not import each other.

Only facts that this store has recorded count: another store of the zone may have numbered its tags differently. The
searches at the start of a source end at a fixed depth of their stream, so that a store of hundreds of millions of facts
does not delay it; older facts are ignored. If the store cannot be read, the source starts as a new one.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from agent.batch import Kind, Origin
from agent.fact_store import StoreError, StoreReader
from agent.ingest import FILL_PREDICATE, GAP_PREDICATE, OUTAGE_REASONS, Newest, Stored, StoredUnreadable
from agent.message import Sample
from agent.query.scan import Bounds, Dictionary, Facts, NumbersOnly, Scanner, parse_time_ns

log = logging.getLogger(__name__)

OPERATIONAL_STREAM = "facts.operational"
NEWEST_DEPTH_FACTS = 1_000_000  # some 0.3 s of reading; at 1,000 facts a second a quarter of an hour
OUTAGE_DEPTH_FACTS = 200_000  # operational facts are few: months of them


def own_origins(zone: str, lives: Iterable[bytes]) -> frozenset[Origin]:
    """The origins of what a store has recorded."""
    return frozenset(Origin(zone, life) for life in lives)


class StoredSamples:
    """The samples in a store that were recorded there."""

    def __init__(self, reader: StoreReader, lives: Callable[[], Collection[bytes]]) -> None:
        """`lives`: those of the store; another one may begin while the node runs."""
        self._reader, self._lives = reader, lives

    def newest_samples(self, stream: str, numbers: Collection[int]) -> Mapping[int, Newest]:
        """The newest sample of each tag by the order of recording, the last one first."""
        found = dict[int, Newest]()
        bounds = Bounds(frozenset({stream}), numbers=frozenset(numbers))
        try:
            find_newest(self._samples(bounds, depth_facts=NEWEST_DEPTH_FACTS), numbers, found)
        except StoreError as error:
            _log_unreadable(stream, error)
        return found

    def completeness(self, source: str) -> Mapping[str, Stored]:
        """Up to when the parts of a source are complete."""
        try:
            return {part: Stored(*known) for part, known in self._reader.completeness(source).items()}
        except StoreError as error:
            _log_unreadable(source, error)
            return {}

    def sample_times(
        self, stream: str, numbers: Collection[int], first_ns: int, last_ns: int, times_max: int
    ) -> Mapping[int, Collection[int]] | None:
        """The times of all samples of these tags in a range; None if there are more than `times_max`."""
        found, count = dict[int, set[int]](), 0
        try:
            asked = self._with_other_numbers(numbers)
            bounds = Bounds(frozenset({stream}), numbers=frozenset(asked), time_min_ns=first_ns, time_max_ns=last_ns)
            for facts in self._samples(bounds):
                for tag, time_ns in zip(facts.column("tag"), facts.column("source_time_ns"), strict=True):
                    found.setdefault(asked[tag], set()).add(time_ns)
                count += len(facts.places)
                if count > times_max:
                    return None
        except StoreError as error:
            raise StoredUnreadable(f"the store cannot say what it holds of stream {stream}: {error}") from error
        return found

    def _with_other_numbers(self, numbers: Collection[int]) -> dict[int, int]:
        """All numbers of these tags, with the number that was asked for: an edit of a tag begins a new one."""
        # Not kept: those of ten thousand tags take 4 MB.
        definitions = Dictionary(self._reader).own().tags
        known = {definitions[number - 1].subject: number for number in numbers if number <= len(definitions)}
        others = {
            n: known[definition.subject] for n, definition in enumerate(definitions, 1) if definition.subject in known
        }
        return others | {number: number for number in numbers}

    def open_outages(self, source: str) -> Sequence[int]:
        """First times of outages of a source that no later fact declares filled, newest first."""
        filled, found = set[str](), dict[str, int]()
        for gap in self._gap_facts(source, GAP_PREDICATE, FILL_PREDICATE):
            filled.update(gap.outages)
            first_ns = parse_time_ns(gap.first) if gap.reason in OUTAGE_REASONS and gap.first not in filled else None
            if first_ns is not None:
                found.setdefault(gap.first, first_ns)
        return list(found.values())

    def _gap_facts(self, source: str, *predicates: str) -> Iterator[_GapTexts]:
        """The contents of the facts of these predicates about a source, newest first; none if the store cannot be
        read."""
        bounds = Bounds(
            frozenset({OPERATIONAL_STREAM}),
            kinds=frozenset({Kind.MESSAGES.value}),
            subject_tests=(f"source:{source}".__eq__,),
            predicates=frozenset(predicates),
        )
        try:
            for facts in self._own(bounds, depth_facts=OUTAGE_DEPTH_FACTS):
                bodies = facts.column("object_json")
                yield from map(_gap_texts, bodies[::-1] if _is_forward(facts) else bodies)
        except StoreError as error:
            _log_unreadable(OPERATIONAL_STREAM, error)

    def _samples(self, bounds: Bounds, depth_facts: int | None = None) -> Iterator[Facts]:
        return (facts for facts in self._own(bounds, depth_facts) if facts.samples is not None)

    def _own(self, bounds: Bounds, depth_facts: int | None) -> Iterator[Facts]:
        """Facts recorded here in the one stream of the bounds; with a depth, only the last ones, newest first."""
        assert bounds.streams is not None, "a depth is of one stream"
        (stream,) = bounds.streams
        scanner, own = Scanner(self._reader, NumbersOnly(self._reader)), own_origins(self._reader.zone, self._lives())
        if stream not in scanner.ends:
            return  # nothing was ever recorded in it
        if depth_facts is not None:
            bounds = replace(bounds, offset_min=max(1, scanner.ends[stream] - depth_facts + 1))
        for facts in scanner.scan(bounds, newest_first=depth_facts is not None):
            if facts.batch.header.origin in own:
                yield facts


def find_newest(
    pages: Iterable[Facts],
    numbers: Collection[int],
    found: dict[int, Newest],
    *,
    is_good_needed: bool = True,
) -> None:
    """Put the newest sample of each tag by the order of recording into `found`, from samples of one stream that come
    newest first; ends as soon as each tag has one, a good one if `is_good_needed`. Raises StoreError."""
    wanted = set(numbers)
    for facts in pages:
        for sample in reversed(_rows(facts)):
            known = found.get(sample.tag)
            good_ns = 0 if sample.quality & 0x8000_0000 else sample.source_time_ns
            if known is None:
                found[sample.tag] = Newest(sample, good_ns)
            elif not known.good_ns and good_ns:
                found[sample.tag] = known._replace(good_ns=good_ns)
            if found[sample.tag].good_ns or not is_good_needed:
                wanted.discard(sample.tag)
        if not wanted:
            break


def _rows(facts: Facts) -> list[Sample]:
    """The samples of some facts in the order of recording."""
    tags, times_ns, qualities = (facts.column(name) for name in ("tag", "source_time_ns", "quality"))
    samples = [Sample(*row) for row in zip(tags, times_ns, facts.values(), qualities, strict=True)]
    return samples if _is_forward(facts) else samples[::-1]


def _is_forward(facts: Facts) -> bool:
    return facts.places[0] <= facts.places[-1]


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
