"""Finds tags that were removed from the tag files while the node was down: the store defines them, no tag file names
them, and their newest sample does not yet mark them as out of service.

Only what this store has recorded counts. The search is bounded for each stream: a tag that
brought nothing within the last NEWEST_DEPTH_FACTS facts is not found, so that a store of hundreds of millions of facts
does not delay the start, and a tag that was removed long ago is not recorded again and again.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable, Sequence

from agent.batch import Kind, Origin
from agent.fact_store import StoreError, StoreReader
from agent.ingest import TAG_REMOVED, Newest, RemovedTag
from agent.message import HEALTH_SOURCE
from agent.node.stored_samples import NEWEST_DEPTH_FACTS, find_newest, own_origins
from agent.query.scan import Bounds, Scanner

log = logging.getLogger(__name__)


def find_removed_tags(
    reader: StoreReader, lives: Iterable[bytes], subjects: Collection[str], depth_facts: int = NEWEST_DEPTH_FACTS
) -> Sequence[RemovedTag]:
    """The tags recorded here that are not among `subjects` and not out of service, by subject; empty if the store
    cannot be read, which is logged."""
    try:
        scanner, own = Scanner(reader), own_origins(reader.zone, lives)
        numbers = {
            number: tag.subject
            for number, tag in enumerate(scanner.dictionary.own().tags, 1)
            if tag.source not in {"", HEALTH_SOURCE} and not tag.acquisition and tag.subject not in subjects
        }
        newest: dict[str, tuple[RemovedTag, int]] = {}
        for stream in scanner.ends if numbers else ():
            for found, quality in _newest_of_each(scanner, stream, own, numbers, depth_facts):
                known = newest.setdefault(found.subject, (found, quality))
                if found.newest_ns > known[0].newest_ns:
                    newest[found.subject] = found, quality
    except StoreError as error:
        log.warning("removed_tags_unknown", extra={"why": str(error)})
        return ()
    return [found for _, (found, quality) in sorted(newest.items()) if quality != TAG_REMOVED]


def _newest_of_each(
    scanner: Scanner, stream: str, own: Collection[Origin], subjects: dict[int, str], depth_facts: int
) -> list[tuple[RemovedTag, int]]:
    """The newest sample of each of these tag numbers by the order of recording, and its quality."""
    bounds = Bounds(
        frozenset({stream}),
        zones=frozenset(origin.zone for origin in own),
        kinds=frozenset({Kind.SAMPLES.value}),
        offset_min=scanner.ends[stream] - depth_facts + 1,
        numbers=frozenset(subjects),
    )
    recorded = (facts for facts in scanner.scan(bounds, newest_first=True) if facts.batch.header.origin in own)
    found = dict[int, Newest]()
    find_newest(recorded, subjects, found, is_good_needed=False)
    return [
        (RemovedTag(stream, number, subjects[number], newest.sample.source_time_ns), newest.sample.quality)
        for number, newest in found.items()
    ]
