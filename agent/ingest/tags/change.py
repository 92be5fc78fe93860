"""Compares tag maps: which tags a new map adds, removes, changes and keeps, and whether two sources have the same tag.

Core. A tag is identified by its subject: a row with another address, unit, rule or stream and the same subject is a
change of that tag. A row that only moved in the file is no change.

A tag comes from one source. While several files are edited, a new map may have a tag of another source. `admit` accepts
as many new maps as are compatible with those in force, so that a tag can be moved between files in any order, and
refuses the others.

At a start, a source whose file is wrong keeps the section and the map that were last in force, together: a register
list read with another address base gives wrong values that look right.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from agent.ingest.errors import TagFileProblem
from agent.ingest.tags.tag_map import Tag, TagMap
from agent.settings.sources import SourceSettings


@dataclass(frozen=True, slots=True)
class TagChange:
    """The difference between two maps of a source. `changed` holds (before, after)."""

    added: tuple[Tag, ...]
    removed: tuple[Tag, ...]
    changed: tuple[tuple[Tag, Tag], ...]
    kept: tuple[Tag, ...]

    @property
    def is_empty(self) -> bool:
        """Whether both maps read the same values in the same way."""
        return not (self.added or self.removed or self.changed)

    def renamed(self) -> tuple[tuple[Tag, Tag], ...]:
        """Removed and added tags that are the same value of the source, as (before, after): probably a new name. A
        place that several of them have is left out."""
        by_place: dict[str, list[Tag]] = {}
        for tag in (*self.removed, *self.added):
            by_place.setdefault(tag.definition.address, []).append(tag)
        pairs = [tags for tags in by_place.values() if len(tags) == 2]
        return tuple((before, after) for before, after in pairs if before in self.removed and after in self.added)


@dataclass(frozen=True, slots=True)
class Admission:
    """The new maps that are accepted, and the problems of the others, by source name."""

    maps: Mapping[str, TagMap]
    problems: Mapping[str, tuple[TagFileProblem, ...]]


@dataclass(frozen=True, slots=True)
class SourcePlan:
    """The sources to start with, with their maps, and the problems of the tag files that are not in force. The map of
    a source that was never in force is empty; it waits for its file."""

    sources: tuple[SourceSettings, ...]
    maps: Mapping[str, TagMap]
    problems: Mapping[str, tuple[TagFileProblem, ...]] = field(default_factory=dict)


def difference(old: TagMap, new: TagMap) -> TagChange:
    """The difference between two maps, in the order of the new file; removed tags in the order of the old one."""
    before = {tag.definition.subject: tag for tag in old.tags}
    after = {tag.definition.subject for tag in new.tags}
    pairs = [(before.get(tag.definition.subject), tag) for tag in new.tags]
    return TagChange(
        added=tuple(tag for known, tag in pairs if known is None),
        removed=tuple(tag for subject, tag in before.items() if subject not in after),
        changed=tuple((known, tag) for known, tag in pairs if known is not None and not _same(known, tag)),
        kept=tuple(tag for known, tag in pairs if known is not None and _same(known, tag)),
    )


def clashes(maps: Mapping[str, TagMap]) -> Iterator[tuple[str, str, TagFileProblem]]:
    """Sources with the same tags: (first source, second source, the problem of the second). Equal devices have all
    their tags in common, so the problem names the first one and counts the others."""
    for (first, second), pairs in _common_tags(maps).items():
        yield first, second, _clash(maps, second, first, [(tag, owned) for owned, tag in pairs])


def admit(in_force: Mapping[str, TagMap], candidates: Mapping[str, TagMap]) -> Admission:
    """The candidates that can replace the maps in force.

    A candidate with a clash is refused; of two, the one that does not have the tag in force, or the later one. The map
    in force of that source may then clash with another candidate, so the check is repeated. It ends, because the maps
    in force do not clash.
    """
    admitted = dict(candidates)
    problems: dict[str, tuple[TagFileProblem, ...]] = {}
    while True:
        refused: dict[str, list[TagFileProblem]] = {}
        maps = {**in_force, **admitted}
        for (first, second), pairs in _common_tags(maps).items():
            is_new_in_first = first in admitted and not _has_any(in_force.get(first), pairs)
            if second in admitted and not (is_new_in_first and _has_any(in_force.get(second), pairs)):
                refused.setdefault(second, []).append(
                    _clash(maps, second, first, [(tag, owned) for owned, tag in pairs])
                )
            else:
                refused.setdefault(first, []).append(_clash(maps, first, second, pairs))
        if not refused:
            return Admission(admitted, problems)
        for source, found in refused.items():
            del admitted[source]
            problems[source] = tuple(found)


def _has_any(found: TagMap | None, pairs: Sequence[tuple[Tag, Tag]]) -> bool:
    """Whether a map has one of these tags."""
    subjects = {tag.definition.subject for tag, _ in pairs}
    return found is not None and any(tag.definition.subject in subjects for tag in found.tags)


def _common_tags(maps: Mapping[str, TagMap]) -> dict[tuple[str, str], list[tuple[Tag, Tag]]]:
    """By first and second source: the tags that both have, as (of the first, of the second)."""
    owners: dict[str, tuple[str, Tag]] = {}
    common: dict[tuple[str, str], list[tuple[Tag, Tag]]] = {}
    for source, found in maps.items():
        for tag in found.tags:
            owner, owned = owners.setdefault(tag.definition.subject, (source, tag))
            if owner != source:
                common.setdefault((owner, source), []).append((owned, tag))
    return common


def _clash(maps: Mapping[str, TagMap], source: str, owner: str, pairs: Sequence[tuple[Tag, Tag]]) -> TagFileProblem:
    """The problem of a source that has tags of another. `pairs`: (tag of the source, tag of its owner)."""
    (tag, owned), *others = pairs
    where = f"{maps[owner].place(owned)}, of source {owner}"
    more = f" (and {len(others):,} more of its tags)" if others else ""
    why = f"is also in {where}{more}; a tag comes from one source: name it otherwise, as {source}/{tag.name}"
    return TagFileProblem(maps[source].file, tag.row, "tag", tag.name, why, tag.template_row)


def plan_sources(
    present: Sequence[SourceSettings],
    read: Mapping[str, TagMap | tuple[TagFileProblem, ...]],
    before: Mapping[str, tuple[SourceSettings, TagMap]],
) -> SourcePlan:
    """Choose the tag map of each source. `read` holds what its tag file gives, `before` the section and the map that
    were last in force."""
    nothing = {source.name: TagMap(source.tags_file.name, ()) for source in present}
    kept = {name: tags for name, (_, tags) in before.items() if name in nothing}
    for _, second, _ in list(clashes(kept)):  # kept at different times
        kept.pop(second, None)
    good = {name: found for name, found in read.items() if isinstance(found, TagMap)}
    admission = admit({**nothing, **kept}, good)
    problems = {name: found for name, found in read.items() if not isinstance(found, TagMap)}
    problems |= admission.problems
    sources = [
        before[source.name][0] if source.name in problems and source.name in kept else source for source in present
    ]
    maps = {**nothing, **kept, **admission.maps}
    return SourcePlan(tuple(sources), maps, problems)


def _same(before: Tag, after: Tag) -> bool:
    """Whether two rows have the same content, wherever they are in their files."""
    return (before.stream, before.definition, before.rule, before.point) == (
        after.stream,
        after.definition,
        after.rule,
        after.point,
    )
