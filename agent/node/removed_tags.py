"""Finds tags that were removed from the tag files while the node was down: the store defines them, no tag file names
them, and their newest sample does not yet mark them as out of service.

What any life of the zone has recorded counts, of tags that this node has defined. The search is bounded for each
stream: a tag that brought nothing within the last NEWEST_DEPTH_FACTS facts is not found, so that a store of hundreds of
millions of facts does not delay the start, and a tag that was removed long ago is not recorded again and again.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Hashable, Sequence

from agent.errors import StoreError
from agent.fact_store import StoreReader
from agent.ingest import TAG_REMOVED, RemovedTag
from agent.message import HEALTH_SOURCE, TagDefinition
from agent.node.stored_samples import NEWEST_DEPTH_FACTS
from agent.node.zone_samples import NewestSearch, ZoneSamples

log = logging.getLogger(__name__)


def find_removed_tags(
    reader: StoreReader, subjects: Collection[str], depth_facts: int = NEWEST_DEPTH_FACTS
) -> Sequence[RemovedTag]:
    """The tags of the zone that are not among `subjects` and not out of service, by subject; empty if the store cannot
    be read, which is logged."""
    try:
        samples = ZoneSamples(reader)
        removed = {
            number: tag
            for number, tag in enumerate(samples.own_tags(), 1)
            if tag.source not in {"", HEALTH_SOURCE} and not tag.acquisition and tag.subject not in subjects
        }
        # First of all, because sources that are still read go on.
        complete = {source: reader.completeness(source) for source in {tag.source for tag in removed.values()}}
        numbers = {number: tag.subject for number, tag in removed.items()}
        asked = samples.asked(numbers, _live_subject)
        newest: dict[str, tuple[RemovedTag, int]] = {}
        for stream in reader.bounds() if numbers else ():
            found = NewestSearch(numbers, is_good_needed=False)
            samples.find_newest(stream, asked, found, depth_facts)
            for number, (sample, _) in found.by_tag().items():
                source = removed[number].source
                complete_ns, _ = complete[source].get("", (None, None))
                tag = RemovedTag(stream, number, numbers[number], sample.source_time_ns, source, complete_ns)
                known = newest.setdefault(tag.subject, (tag, sample.quality))
                if tag.newest_ns > known[0].newest_ns:
                    newest[tag.subject] = tag, sample.quality
    except StoreError as error:
        log.warning("removed_tags_unknown", extra={"why": str(error)})
        return ()
    return [found for _, (found, quality) in sorted(newest.items()) if quality != TAG_REMOVED]


def _live_subject(tag: TagDefinition) -> Hashable:
    return None if tag.acquisition else tag.subject
