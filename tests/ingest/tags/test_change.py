import dataclasses

import pytest

from agent.ingest.errors import TagFileProblem
from agent.ingest.sampling import SamplingRule
from agent.ingest.tags.change import admit, difference
from agent.ingest.tags.tag_map import Tag, TagMap
from agent.message import TagDefinition

STREAM = "facts.telemetry"


def tag(name: str, row: int = 2, address: str = "i=1", stream: str = STREAM, deadband: float | None = None) -> Tag:
    """A row of a tag file."""
    definition = TagDefinition(f"tag:{name}", address=address)
    return Tag(row, stream, definition, SamplingRule(deadband), address)


def tags(file: str, *rows: Tag | str) -> TagMap:
    """A map of these rows, or of plain tags with these names."""
    found = [tag(row) if isinstance(row, str) else row for row in rows]
    return TagMap(file, tuple(dataclasses.replace(row, row=n) for n, row in enumerate(found, 2)))


def names(found: object) -> list[str]:
    """What a part of a change names."""
    rows = [row[1] if isinstance(row, tuple) and not isinstance(row, Tag) else row for row in found]  # type: ignore[attr-defined]
    return [row.definition.subject.removeprefix("tag:") for row in rows]


A, B = tags("a.csv", "x", "y"), tags("b.csv", "z")


@pytest.mark.parametrize(
    "candidates, admitted, refused",
    [
        ({}, [], []),
        ({"a": tags("a.csv", "x", "new")}, ["a"], []),
        ({"b": tags("b.csv", "z", "x")}, [], ["b"]),  # still in a
        ({"a": tags("a.csv", "y", "z")}, [], ["a"]),  # still in b
        ({"a": tags("a.csv", "y"), "b": tags("b.csv", "z", "x")}, ["a", "b"], []),  # moved
        ({"a": tags("a.csv", "z"), "b": tags("b.csv", "x", "y")}, ["a", "b"], []),  # exchanged
        ({"a": tags("a.csv", "new"), "b": tags("b.csv", "new")}, ["a"], ["b"]),  # both new: the later one
        ({"a": tags("a.csv", "x", "q"), "b": tags("b.csv", "q", "y")}, ["a"], ["b"]),
        ({"a": tags("a.csv", "z"), "b": tags("b.csv", "x", "z")}, [], ["a", "b"]),  # b put back brings z back
        ({"a": tags("a.csv", "x", "z"), "b": tags("b.csv", "z", "new")}, ["b"], ["a"]),  # b has it, and keeps it
    ],
)
def test_maps_that_go_together(candidates: dict[str, TagMap], admitted: list[str], refused: list[str]) -> None:
    """As many new maps as stand together with the rest are taken, whatever the order of the edits; the others are
    refused."""
    found = admit({"a": A, "b": B}, candidates)
    assert (sorted(found.maps), sorted(found.problems)) == (admitted, refused)
    assert all(found.maps[name] is candidates[name] for name in admitted)
    assert all(found.problems[name] for name in refused)


def test_a_refusal_names_row_and_owner() -> None:
    """The operator is told which row of which file stands in the way, from whichever side the edit came."""
    why = "is also in {}, of source {}; a tag comes from one source: name it otherwise, as {}"
    found = admit({"a": A, "b": B}, {"b": tags("b.csv", "z", "y")})
    assert found.problems == {"b": (TagFileProblem("b.csv", 3, "tag", "y", why.format("a.csv row 3", "a", "b/y")),)}
    found = admit({"a": A, "b": B}, {"b": tags("b.csv", "z", "y", "x")})
    more = why.format("a.csv row 3", "a (and 1 more of its tags)", "b/y")
    assert found.problems == {"b": (TagFileProblem("b.csv", 3, "tag", "y", more),)}
    found = admit({"a": A, "b": B}, {"a": tags("a.csv", "x", "y", "z")})
    assert found.problems == {"a": (TagFileProblem("a.csv", 4, "tag", "z", why.format("b.csv row 2", "b", "a/z")),)}


@pytest.mark.parametrize("after", [tag("x", address="i=2"), tag("x", stream="facts.alarms"), tag("x", deadband=1.0)])
def test_a_row_that_differs_in_any_part_is_a_change(after: Tag) -> None:
    """One that only moved in the file is none, and one of another name is another tag."""
    found = difference(tags("a.csv", "old", "x", "y"), tags("a.csv", "y", "new", after))
    parts = (found.added, found.removed, found.changed, found.kept)
    assert [names(part) for part in parts] == [["new"], ["old"], ["x"], ["y"]]
