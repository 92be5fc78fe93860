"""What each source reads at a start when tag files are wrong: its file, the map that was last in force, or nothing."""

from dataclasses import replace
from pathlib import Path

import pytest

from agent.ingest.errors import TagFileProblem
from agent.ingest.tags.change import plan_sources
from agent.ingest.tags.file import parse_tag_file
from agent.ingest.tags.tag_map import TagMap
from agent.settings.sources import ModbusSourceSettings

SOURCES = {name: ModbusSourceSettings(name, Path(f"{name}.csv"), 0, host="h") for name in ("m1", "m2")}
WRONG = (TagFileProblem("m1.csv", 2, "type", "int17", "did you mean int16?"),)


def tags(source: str, *rows: str, base: int = 0) -> TagMap:
    """The map of these tags, each with a register of its own."""
    lines = ["tag,table,register,type", *(f"{tag},holding,{number + base},int16" for number, tag in enumerate(rows, 1))]
    return parse_tag_file(replace(SOURCES[source], address_base=base), "\n".join(lines).encode())


def of(maps: dict[str, TagMap]) -> dict[str, list[str]]:
    """The tags of each source."""
    return {source: [tag.name for tag in found.tags] for source, found in maps.items()}


@pytest.mark.parametrize(
    "read, last, expected, refused",
    [
        ({"m1": ["a/a"], "m2": ["a/b"]}, {}, {"m1": ["a/a"], "m2": ["a/b"]}, []),
        ({"m1": None, "m2": ["a/b"]}, {}, {"m1": [], "m2": ["a/b"]}, ["m1"]),
        ({"m1": None, "m2": ["a/b"]}, {"m1": ["a/a"]}, {"m1": ["a/a"], "m2": ["a/b"]}, ["m1"]),
        ({"m1": None, "m2": None}, {"m1": ["a/a"], "m2": ["a/b"]}, {"m1": ["a/a"], "m2": ["a/b"]}, ["m1", "m2"]),
        # A tag in two files: the later one is refused, and goes on with its last map if that has no clash.
        ({"m1": ["a/a"], "m2": ["a/a"]}, {}, {"m1": ["a/a"], "m2": []}, ["m2"]),
        ({"m1": ["a/a"], "m2": ["a/a"]}, {"m1": ["a/c"], "m2": ["a/b"]}, {"m1": ["a/a"], "m2": ["a/b"]}, ["m2"]),
        # A tag moved to a file that is right, from one that is wrong: the last map still has it.
        ({"m1": ["a/a", "a/b"], "m2": None}, {"m1": ["a/a"], "m2": ["a/b"]}, {"m1": ["a/a"], "m2": ["a/b"]}, ["m1", "m2"]),
        # Maps that were in force at different times.
        ({"m1": None, "m2": None}, {"m1": ["a/a"], "m2": ["a/a"]}, {"m1": ["a/a"], "m2": []}, ["m1", "m2"]),
        ({"m1": ["a/a"], "m2": ["a/b"]}, {"m3": ["a/a"]}, {"m1": ["a/a"], "m2": ["a/b"]}, []),
    ],
)  # fmt: skip
def test_each_source_reads_its_file_or_its_last_map(
    read: dict[str, list[str] | None], last: dict[str, list[str]], expected: object, refused: list[str]
) -> None:
    """The file if it is right; else the map that was last in force; else nothing, and it waits."""
    found = {name: WRONG if rows is None else tags(name, *rows) for name, rows in read.items()}
    kept = {name: (SOURCES.get(name, SOURCES["m1"]), tags("m1", *rows)) for name, rows in last.items()}
    plan = plan_sources([*SOURCES.values()], found, kept)
    assert of(dict(plan.maps)) == expected
    assert sorted(plan.problems) == refused
    assert list(plan.sources) == [*SOURCES.values()]


def test_a_map_is_never_read_with_another_section() -> None:
    """The section has a new address base and the tag file a typing mistake: base and map of the last time go together.
    With the file right, both are new."""
    new = replace(SOURCES["m1"], address_base=1)
    kept = {"m1": (SOURCES["m1"], tags("m1", "a/a"))}
    plan = plan_sources([new], {"m1": WRONG}, kept)
    assert (plan.sources, plan.maps["m1"].tags[0].point.address) == ((SOURCES["m1"],), 1)
    found = tags("m1", "a/a", base=1)
    assert plan_sources([new], {"m1": found}, kept).sources == (new,)
