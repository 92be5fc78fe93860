"""Finds tags that were removed from the tag files while the node was down: a store has definitions of them that no tag
file names any more, and their newest sample does not say so yet.

Only definitions of the present epoch that a source gave count. The search is bounded for each stream: a tag that
brought nothing within the last DEPTH_FACTS facts is not found, so that a store of hundreds of millions of facts does
not delay the start, and a tag that was removed long ago is not recorded again and again.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Sequence

from agent.batch import Kind, Origin
from agent.fact_store import StoreError, StoreReader
from agent.ingest import OUT_OF_SERVICE, RemovedTag
from agent.query.scan import Bounds, Scanner

log = logging.getLogger(__name__)

DEPTH_FACTS = 1_000_000  # some 0.3 s of reading; at 1,000 facts a second a quarter of an hour before the stop


def find_removed_tags(
    reader: StoreReader, origin: Origin, subjects: Collection[str], depth_facts: int = DEPTH_FACTS
) -> Sequence[RemovedTag]:
    """The tags of an origin that are not among `subjects` and not out of service, by subject. A store that cannot be
    read has none; the log says so."""
    try:
        scanner = Scanner(reader)
        numbers = {
            number: one.subject
            for number, one in enumerate(scanner.dictionary.all_of(origin), 1)
            if one.source and not one.acquisition and one.subject not in subjects
        }
        newest: dict[str, tuple[RemovedTag, int]] = {}
        for stream in scanner.ends if numbers else ():
            for found, quality in _newest_of_each(scanner, stream, origin, numbers, depth_facts):
                known = newest.setdefault(found.subject, (found, quality))
                if found.newest_ns > known[0].newest_ns:
                    newest[found.subject] = found, quality
    except StoreError as error:
        log.warning("removed_tags_unknown", extra={"why": str(error)})
        return ()
    return [found for _, (found, quality) in sorted(newest.items()) if quality != OUT_OF_SERVICE]


def _newest_of_each(
    scanner: Scanner, stream: str, origin: Origin, subjects: dict[int, str], depth_facts: int
) -> list[tuple[RemovedTag, int]]:
    """The newest sample of each of these tag numbers by the order of recording, and its quality."""
    bounds = Bounds(
        frozenset({stream}),
        zones=frozenset({origin.zone}),
        kinds=frozenset({Kind.SAMPLES.value}),
        offset_min=scanner.ends[stream] - depth_facts + 1,
        numbers=frozenset(subjects),
    )
    found: dict[int, tuple[RemovedTag, int]] = {}
    for facts in scanner.scan(bounds, newest_first=True):
        if facts.batch.header.origin != origin:
            continue
        columns = (facts.column(name) for name in ("tag", "source_time_ns", "quality"))
        for number, time_ns, quality in zip(*columns, strict=True):
            if number not in found:
                found[number] = RemovedTag(stream, number, subjects[number], time_ns), quality
        if len(found) == len(subjects):
            break
    return list(found.values())
