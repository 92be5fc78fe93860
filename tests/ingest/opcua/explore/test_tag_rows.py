"""Rows of a tag file from what a server shows: names are unique and plain, addresses come back as they were, and
whatever the server's texts are, the file is one that `bsfg check` accepts."""

from itertools import cycle
from pathlib import Path
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.ingest.opcua.explore import tag_rows
from agent.ingest.opcua.explore.tag_rows import TagRow, TooManyRows, address_text, clean_text, tag_file, tag_names
from agent.ingest.tags.file import parse_tag_file
from agent.settings.opcua_address import STANDARD_URI, NodeAddress, parse_node_address
from agent.settings.sources import OpcuaSourceSettings

SOURCE = OpcuaSourceSettings("plc", "opc.tcp://plc", Path("t.csv"))


@pytest.mark.parametrize(
    "node, text",
    [
        (NodeAddress(STANDARD_URI, 2258), "i=2258"),
        (NodeAddress("urn:x", "DB1.T[3];x"), "nsu=urn:x;s=DB1.T[3];x"),
        (NodeAddress("urn:x", UUID(int=5)), "nsu=urn:x;g=00000000-0000-0000-0000-000000000005"),
        (NodeAddress("urn:x", b"\0\1\xff"), "nsu=urn:x;b=AAH/"),
    ],
)
def test_addresses_are_those_a_tag_file_reads(node: NodeAddress, text: str) -> None:
    """All four kinds of identifier, with the namespace by URI."""
    assert address_text(node) == text
    assert parse_node_address(text) == node


@pytest.mark.parametrize(
    "node",
    [
        NodeAddress("urn:a;b", "x"),
        NodeAddress("urn:x", "a\nb"),
        NodeAddress("urn:x", "x" * 2000),
        NodeAddress("urn:x", "a "),
    ],
)
def test_an_address_that_no_tag_file_can_hold_is_refused(node: NodeAddress) -> None:
    """It would be another node when it is read back."""
    with pytest.raises(ValueError, match="tag file cannot hold"):
        address_text(node)


def test_names_come_from_paths() -> None:
    """The first folder before the slash; accents fall off; a variable without a folder gets the scope."""
    paths = [("Line 1", "Oven 2", "Temperatur °C"), ("Größe",), ("A", "b/c")]
    assert tag_names(paths, ["1", "2", "3"], "plc 7") == ["Line_1/Oven_2.Temperatur_C", "plc_7/Grosse", "A/b_c"]
    assert tag_names([("A", "b"), ("c",)], ["1", "2"], "plc", "press-2/x") == ["press-2/x.A.b", "press-2/x.c"]


def test_equal_names_are_distinguished_and_stay_so() -> None:
    """By a piece of the address, not by a count that moves when a node is added; also names that differ in case."""
    first, second, third = tag_names([("A", "Öl"), ("A", "Ol"), ("A", "OL")], ["1", "2", "3"], "p")
    assert first == "A/Ol"
    assert second.startswith("A/Ol_")
    assert third.startswith("A/OL_")
    assert len({first, second.lower(), third.lower()}) == 3
    assert tag_names([("A", "Öl"), ("A", "OL")], ["1", "3"], "p") == [first, third]


texts = st.text(max_size=40)
identifiers = st.one_of(st.integers(0, 2**32 - 1), texts, st.uuids(), st.binary(max_size=20))


@given(st.lists(st.tuples(st.lists(texts, min_size=1, max_size=4), identifiers, texts, texts), min_size=1, max_size=20))
def test_any_server_gives_a_file_that_is_read_back(
    found: list[tuple[list[str], int | str | UUID | bytes, str, str]],
) -> None:
    """Whatever a server calls its nodes, each variable whose address a file can hold is one tag, with that address."""
    kept: dict[str, tuple[tuple[str, ...], str, str]] = {}
    for path, identifier, unit, description in found:
        try:
            address = address_text(NodeAddress("urn:x", identifier))
        except ValueError:
            continue
        kept.setdefault(address, (tuple(clean_text(part) for part in path), unit, description))
    if not kept:
        return
    names = tag_names([path for path, _, _ in kept.values()], list(kept), "plc")
    rows = [
        TagRow(name, address, "Double", clean_text(unit), clean_text(description), "", sampling_ms)
        for name, (address, (_, unit, description)), sampling_ms in zip(
            names, kept.items(), cycle([250, 0]), strict=False
        )
    ]
    tags = parse_tag_file(SOURCE, tag_file(rows)).tags
    assert [tag.definition.address for tag in tags] == list(kept)
    assert [tag.definition.data_type for tag in tags] == ["Double"] * len(kept)
    assert [tag.definition.unit for tag in tags] == [row.unit for row in rows]
    intervals = [tag.point.monitoring.sampling_interval_ms for tag in tags]
    assert intervals == [row.sampling_interval_ms or None for row in rows]


def test_no_cell_is_a_formula() -> None:
    """A spreadsheet does not calculate what a server calls its nodes, and the text is read back as it was."""
    data = tag_file([TagRow("a/b", "i=1", "", "-", "=HYPERLINK(1)")]).decode("utf-8-sig")
    assert "'=HYPERLINK" in data
    assert ",=" not in data
    (tag,) = parse_tag_file(SOURCE, data.encode()).tags
    assert (tag.definition.unit, tag.definition.description) == ("-", "=HYPERLINK(1)")


def test_more_than_a_tag_file_holds_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before it is written, with what to do."""
    monkeypatch.setattr(tag_rows, "ROWS_MAX", 2)
    with pytest.raises(TooManyRows, match="by --filter or --glob"):
        tag_file([TagRow(f"a/{number}", f"i={number}") for number in range(3)])
