"""Whatever bytes a tag file or a foreign list holds, it is read or refused with a reason; nothing else is raised."""

from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from agent.ingest.errors import PROBLEMS_MAX, TagFileProblem, TagMapError
from agent.ingest.tags.file import dialect_of, parse_tag_file
from agent.ingest.tags.foreign import ignition, kepware, neuron
from agent.ingest.tags.foreign.translation import Options, tag_file
from agent.ingest.tags.sheet import unknown_names
from agent.settings.sources import ModbusSourceSettings, OpcuaSourceSettings

LISTS = Path(__file__).parents[2] / "vectors" / "tag_lists"
MODBUS = ModbusSourceSettings(name="m", host="h", tags_file=Path("t.csv"), address_base=40_001)
COLUMNS = ["template", "use", "tag", "address", "register", "table", "type", "unit_id", "scale", "deadband", "unit"]
cell = st.sampled_from(
    [
        "",
        "a/b",
        "m",
        "{tag}/x",
        "{register}+2",
        "{register}+",
        "40001",
        "99999999999",
        "float32",
        "i=1",
        "{",
        "1e999",
        "é",
    ]
)
row = st.dictionaries(st.sampled_from(COLUMNS), cell, min_size=1)


def csv_of(rows: list[dict[str, str]]) -> bytes:
    """The rows as CSV."""
    lines = [",".join(COLUMNS), *(",".join(row.get(name, "") for name in COLUMNS) for row in rows)]
    return "\n".join(lines).encode()


def toml_of(rows: list[dict[str, str]]) -> bytes:
    """The rows as TOML."""
    return "\n".join(
        "[[tag]]\n" + "\n".join(f"{name} = '{text}'" for name, text in row.items()) for row in rows
    ).encode()


@given(
    st.one_of(st.binary(max_size=200), st.lists(row, max_size=6).map(csv_of), st.lists(row, max_size=6).map(toml_of))
)
@example(b"[[tag]]\n'tag' = 1")
@example(b'tag\n"')
def test_a_tag_file_is_read_or_refused(data: bytes) -> None:
    """As CSV and as TOML, for both protocols; a problem always has a text."""
    for name in ("t.csv", "t.toml"):
        for settings in (
            OpcuaSourceSettings("plc", "opc.tcp://plc", Path(name)),
            ModbusSourceSettings(name="m", host="h", tags_file=Path(name), address_base=40_001),
        ):
            tags: Sequence[object] = ()
            problems: Sequence[TagFileProblem] = ()
            try:
                tags = parse_tag_file(settings, data).tags
            except TagMapError as error:
                problems = error.problems
            assert bool(tags) != bool(problems)
            assert all(str(problem) for problem in problems)


def test_a_thousand_mistakes_are_twenty_and_a_count() -> None:
    """A file whose header is not a header lists the first mistakes, and says how many more there are, and hides none
    of the other files of a node. Names like the others are looked for as long as they are listed."""
    header = ",".join(f"column{number}" for number in range(1_000))
    with pytest.raises(TagMapError) as caught:
        parse_tag_file(OpcuaSourceSettings("plc", "opc.tcp://plc", Path("t.csv")), f"{header}\n".encode())
    assert "column0" in str(caught.value.problems[0])
    for error in (caught.value, TagMapError(caught.value.problems), TagMapError([*caught.value.problems] * 2)):
        assert len(error.problems) == PROBLEMS_MAX + 1
        assert len(str(error)) < 10_000
    assert str(caught.value.problems[-1]) == "t.csv: and 982 more"
    assert str(TagMapError([*caught.value.problems] * 2).problems[-1]) == "t.csv: and 1,984 more"
    second = TagFileProblem("u.csv", 2, "type", "x", "is unknown")
    assert TagMapError([*caught.value.problems, second]).problems == (*caught.value.problems, second)
    known = ["register"]
    (first, *_, last) = [why for _, why in unknown_names([f"registe{number}" for number in range(21)], known, "column")]
    assert (first, last) == ("is not a column; did you mean register?", "is not a column")


def changed(data: bytes) -> st.SearchStrategy[bytes]:
    """A sample with a piece replaced."""
    places = st.integers(0, len(data))
    return st.builds(
        lambda at, size, new: data[:at] + new + data[at + size :], places, st.integers(0, 20), st.binary(max_size=8)
    )


@given(
    st.sampled_from(
        [(kepware, "kepware.csv"), (neuron, "neuron.csv"), (ignition, "ignition79.csv"), (ignition, "ignition.json")]
    ),
    st.data(),
)
def test_a_foreign_list_is_translated_or_refused(product: tuple[object, str], draw: st.DataObject) -> None:
    """With any piece of it replaced; the rows that come out are always a good tag file."""
    module, file = product
    data = draw.draw(changed((LISTS / file).read_bytes()))
    try:
        found = module.translate(file, data, Options("modbus", 40_001))  # type: ignore[attr-defined]
    except TagMapError:
        return
    written = tag_file(found, dialect_of(MODBUS))
    if found.rows:
        assert len(parse_tag_file(MODBUS, written).tags) == len(found.rows)
