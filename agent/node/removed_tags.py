"""Finds tags that are in service in the store: their newest sample does not mark them as out of service. Those that no
tag file names were removed while the node was down.

What any life of the zone has recorded counts, of tags that this node has defined. The search is bounded for each
stream: a tag that brought nothing within the last NEWEST_DEPTH_FACTS facts is not found, so that a store of hundreds of
millions of facts does not delay the start, and a tag that was removed long ago is not recorded again and again.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Hashable, Mapping, Sequence

from agent.errors import StoreError
from agent.fact_store import StoreReader
from agent.ingest import BELIEVED_PART, TAG_REMOVED, RemovedTag
from agent.message import HEALTH_SOURCE, TagDefinition
from agent.node.zone_samples import NewestSearch, ZoneSamples

log = logging.getLogger(__name__)

NEWEST_DEPTH_FACTS = 1_000_000  # some 0.3 s of reading; at 1,000 facts a second a quarter of an hour
BEHIND_NS = 2_000_000_000  # sources that stop together are complete up to about the same time


def find_removed_tags(
    reader: StoreReader, readers: Mapping[str, Collection[str]], depth_facts: int = NEWEST_DEPTH_FACTS
) -> Sequence[RemovedTag]:
    """The tags of the zone that are not out of service and whose source is not among the `readers` of their subject, by
    subject; empty if the store cannot be read, which is logged."""
    try:
        samples = ZoneSamples(reader)
        own = samples.own_tags()
        left = {tag.subject for tag in own if tag.source not in readers.get(tag.subject, ())}
        found = _in_service(
            reader, samples, {n: tag for n, tag in enumerate(own, 1) if tag.subject in left}, depth_facts
        )
        ended = [tag for tag in found if tag.source not in readers.get(tag.subject, ())]
        return [tag._replace(is_behind=_is_behind(reader, tag, readers.get(tag.subject, ()))) for tag in ended]
    except StoreError as error:
        log.warning("removed_tags_unknown", extra={"why": str(error)})
        return ()


def _is_behind(reader: StoreReader, tag: RemovedTag, readers: Collection[str]) -> bool:
    """Whether one of the readers continues from a later time than the source of the tag."""

    def here_ns(complete_ns: int, source: str) -> int:
        return complete_ns - (reader.completeness(source)[""][1] or 0)

    if tag.complete_ns is None:
        return False
    ends = [here_ns(known[""][0], name) for name in readers if "" in (known := reader.completeness(name))]
    return any(end_ns > here_ns(tag.complete_ns, tag.source) + BEHIND_NS for end_ns in ends)


def find_tags_of_others(reader: StoreReader, source: str, subjects: Collection[str]) -> Sequence[RemovedTag]:
    """The tags of these subjects that other sources recorded last, and that are not out of service. Raises
    StoreError."""
    samples = ZoneSamples(reader)
    own = enumerate(samples.own_tags(), 1)
    tags = {number: tag for number, tag in own if tag.subject in subjects and tag.source != source}
    return _in_service(reader, samples, tags, NEWEST_DEPTH_FACTS)


def _in_service(
    reader: StoreReader, samples: ZoneSamples, defined: Mapping[int, TagDefinition], depth_facts: int
) -> list[RemovedTag]:
    """Of these definitions, the tags of sources that are not out of service, by subject."""
    tags = {n: tag for n, tag in defined.items() if tag.source not in {"", HEALTH_SOURCE} and not tag.acquisition}
    # First of all, because sources that are still read go on.
    complete = {source: reader.completeness(source) for source in {tag.source for tag in tags.values()}}
    asked = samples.asked(tags, _live_subject)
    newest: dict[str, tuple[RemovedTag, int]] = {}
    for stream in reader.bounds() if tags else ():
        found = NewestSearch(tags, is_good_needed=False)
        samples.find_newest(stream, asked, found, depth_facts)
        for number, (sample, _) in found.by_tag().items():
            subject, source = tags[number].subject, tags[number].source
            complete_part = complete[source].get(BELIEVED_PART) or complete[source].get("")
            complete_ns = None if complete_part is None else complete_part[0]
            tag = RemovedTag(stream, number, subject, sample.source_time_ns, source, complete_ns)
            known = newest.setdefault(subject, (tag, sample.quality))
            if tag.newest_ns > known[0].newest_ns:
                newest[subject] = tag, sample.quality
    return [found for _, (found, quality) in sorted(newest.items()) if quality != TAG_REMOVED]


def _live_subject(tag: TagDefinition) -> Hashable:
    return None if tag.acquisition else tag.subject
