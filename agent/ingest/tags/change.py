"""Compares tag maps: which tags a new map adds, removes, changes and keeps, and whether two sources have the same tag.

Core. A tag is identified by its subject: a row with another address, unit, rule or stream and the same subject is a
change of that tag. A row that only moved in the file is no change.

A tag comes from one source. While several files are edited, a new map may have a tag of another source. `admit` accepts
as many new maps as are compatible with those in force, so that a tag can be moved between files in any order, and
refuses the others.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from agent.ingest.errors import Problem, place
from agent.ingest.tags.tag_map import Tag, TagMap


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


@dataclass(frozen=True, slots=True)
class Admission:
    """The new maps that are accepted, and the problems of the others, by source name."""

    maps: Mapping[str, TagMap]
    problems: Mapping[str, tuple[Problem, ...]]


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


def clashes(maps: Mapping[str, TagMap]) -> Iterator[tuple[str, str, Problem]]:
    """Tags that come from two sources: (first source, second source, the problem of the second)."""
    owners: dict[str, tuple[str, Tag]] = {}
    for source, found in maps.items():
        for tag in found.tags:
            owner, owned = owners.setdefault(tag.definition.subject, (source, tag))
            if owner != source:
                why = f"is also in {maps[owner].place(owned)}, of source {owner}; a tag comes from one source"
                yield owner, source, Problem(found.file, tag.row, "tag", tag.name, why, tag.template_row)


def admit(in_force: Mapping[str, TagMap], candidates: Mapping[str, TagMap]) -> Admission:
    """The candidates that can replace the maps in force.

    A candidate with a clash is refused, the later one if both are new. The map in force of that source may then clash
    with another candidate, so the check is repeated. It ends, because the maps in force do not clash.
    """
    admitted = dict(candidates)
    problems: dict[str, tuple[Problem, ...]] = {}
    while True:
        refused: dict[str, list[Problem]] = {}
        for first, second, problem in clashes({**in_force, **admitted}):
            if second in admitted:
                refused.setdefault(second, []).append(problem)
            else:
                name = problem.value
                where = place(problem.file, problem.row, problem.template_row)
                why = f"is also in {where}, of source {second}; a tag comes from one source"
                own = next(tag for tag in admitted[first].tags if tag.name == name)
                refused.setdefault(first, []).append(
                    Problem(admitted[first].file, own.row, "tag", name, why, own.template_row)
                )
        if not refused:
            return Admission(admitted, problems)
        for source, found in refused.items():
            del admitted[source]
            problems[source] = tuple(found)


def _same(one: Tag, other: Tag) -> bool:
    """Whether two rows have the same content, wherever they are in their files."""
    return (one.stream, one.definition, one.rule, one.point) == (
        other.stream,
        other.definition,
        other.rule,
        other.point,
    )
