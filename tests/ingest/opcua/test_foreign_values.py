"""Values as node-opcua encodes them (tests/vectors/opcua): what becomes of each shape, and of what only a foreign
encoder writes."""

import asyncio
import contextlib
import json
import re
from pathlib import Path
from typing import Any

import pytest
from asyncua import ua
from asyncua.common.utils import Buffer
from asyncua.ua import ua_binary
from hypothesis import given, settings
from hypothesis import strategies as st

from agent.columns import pack
from agent.ingest.opcua.decode import NOTIFICATIONS_MAX, DataChange, DecodeError, decode_publication
from agent.ingest.opcua.values.structures import EnumType, StructureType, TypeKey, Types, learn
from agent.ingest.opcua.values.type_reader import described_type, type_key
from agent.ingest.opcua.values.variant import ValueReader
from agent.message import Json, canonical_json, json_value

VECTORS = json.loads((Path(__file__).parents[2] / "vectors/opcua/values.json").read_text())
PUBLICATION = bytes.fromhex(VECTORS["publish_response"])
PLANT = "nsu=urn:vendor:plant;"
TIME = "2026-01-02T03:04:05.678Z"
RECIPE = {
    "Name": "R-7",
    "Target": 7.5,
    "Steps": [{"X": 1, "Y": 2.5}, {"X": "-0.0", "Y": "NaN"}],
    "Mode": {"value": 1, "text": "Running"},
    "Modes": [{"value": 0, "text": "Stopped"}, {"value": 7, "text": "Fault"}],
}
EXPECTED: dict[str, Any] = {
    "date": TIME,
    "dates": [TIME, "2026-06-01T00:00:00Z"],
    "doubles": ["-0.0", 0, "NaN", "Infinity", "-Infinity", 1.5],
    "floats": ["-0.0", "NaN", 0.10000000149011612],
    "minus_zero": -0.0,
    "node": PLANT + "s=Line 1;x",
    "nodes": [
        "nsu=urn:vendor:types;i=3003",
        "i=85",
        PLANT + "g=72962b91-fa75-4ae6-8d28-b404dc7daf63",
        PLANT + "b=AP8=",
        "ns=77;i=1",
    ],
    "expanded": "svr=2;nsu=urn:elsewhere;s=Far",
    "expanded_here": PLANT + "i=70000",
    "qualified": PLANT + "Q",
    "null_string": None,
    "empty_string": "",
    "null_bytes": None,
    "empty_bytes": b"",
    "strings": ["a", None, "", "ü"],
    "empty_strings": [],
    "byte_strings": [{"base64": "AQI="}, None, {"base64": ""}],
    "text": "warm",
    "text_de": {"locale": "de", "text": "Öl warm"},
    "text_null": None,
    "texts": [{"locale": "de", "text": "ja"}, "yes"],
    "matrix": [[1, 2, 3], [4, 5, 6]],
    "guids": ["72962b91-fa75-4ae6-8d28-b404dc7daf63"],
    "statuses": [0, 0x800A0000],
    "variants": ["-0.0", "x", [1, 2]],
    "int64s": [5, "9223372036854775807"],
    "booleans": [True, False],
    "point": {"X": 1.5, "Y": "-0.0"},
    "points": [{"X": 1, "Y": 2}, None],
    "recipe": RECIPE,
    "bare_recipe": {"Name": None, "Steps": [], "Mode": {"value": 5}, "Modes": []},
    "choice": {"Text": "sel"},
    "machine": {
        "Id": PLANT + "s=Line1",
        "Made": TIME,
        "Position": {"X": 1, "Y": 2},
        "Recipe": RECIPE,
        "Choices": [{"Number": 1.5}, {"Text": "t"}, {"At": {"X": 3, "Y": 4}}],
        "Labels": ["a", None, ""],
        "Pressure": 1.25,
        "Serial": "9007199254740993",
        "Blob": {"base64": "AP8="},
        "Any": {"X": 5, "Y": 6},
    },
    "null_structure": None,
    "range": {"Low": -1, "High": 2.5},
    "last": 42.5,
}


def _body_at() -> int:
    """Where the parameters of the PublishResponse begin, behind its header."""
    body = Buffer(PUBLICATION)
    ua_binary.struct_from_binary(ua.ResponseHeader, body)
    return body.cur_pos


BODY_AT = _body_at()


class RecordedServer:
    """A TypePort that answers what node-opcua answered, and counts the questions."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.types = {_key(name): found for name, found in VECTORS["data_types"].items()}

    async def data_type(self, encoding: TypeKey) -> TypeKey | None:
        self.asked.append(f"data type {encoding}")
        return next((key for key, t in self.types.items() if t["encoding"] and _key(t["encoding"]) == encoding), None)

    async def supertype(self, data_type: TypeKey) -> TypeKey | None:
        return _key(self.types[data_type]["supertype"])

    async def definition(self, data_type: TypeKey) -> StructureType | EnumType | None:
        self.asked.append(f"definition {data_type}")
        answer = bytes.fromhex(self.types[data_type]["definition"])
        found = ua_binary.from_binary(ua.DataValue, Buffer(answer))
        return described_type(None if found.Value is None else found.Value.Value)


def _key(text: str) -> TypeKey:
    return type_key(ua.NodeId.from_string(text))


def _changes(reader: ValueReader) -> dict[str, DataChange]:
    """What a reader makes of the foreign publication, by the names of its values."""
    publication = decode_publication(PUBLICATION[BODY_AT:], reader)
    assert publication.values_lost == 0
    return dict(zip(VECTORS["names"], publication.changes, strict=True))


@pytest.fixture(scope="module")
def known() -> ValueReader:
    """A reader that knows the namespaces, and the types that it had to ask for."""
    reader = ValueReader(VECTORS["namespaces"], Types())
    _changes(reader)
    asyncio.run(learn(reader.types, RecordedServer()))
    return reader


@pytest.mark.parametrize("name", VECTORS["names"])
def test_a_foreign_value_is_kept_exactly(name: str, known: ValueReader) -> None:
    """Signs of zeros, nulls, locales, namespace URIs, vendor structures and what is nested in them."""
    expected = EXPECTED[name]
    change = _changes(known)[name]
    assert change.value == (Json.of(expected) if isinstance(expected, list | dict) else expected)
    assert str(change.value) == str(Json.of(expected) if isinstance(expected, list | dict) else expected)  # -0.0 == 0.0
    assert (change.quality, change.source_time_ns) == (0, 1_767_323_045_678_000_000)


def test_an_unknown_structure_keeps_type_and_bytes() -> None:
    """Before its type is known, or where a server does not describe it; the id has its namespace URI."""
    reader = ValueReader(VECTORS["namespaces"])
    found = _changes(reader)
    body = "000000000000f83f00000080"
    assert found["point"].value == Json.of({"TypeId": "nsu=urn:vendor:types;i=5003", "Body": body})
    assert found["range"].value == Json.of(EXPECTED["range"])  # a standard type needs no question
    assert reader.types.missing == {(2, 5003), (2, 5004), (2, 5005), (2, 5006)}


def test_a_type_is_asked_for_once() -> None:
    """Four encodings met in one publication: each data type is read once, nested ones included, and never again."""
    reader, server = ValueReader(VECTORS["namespaces"]), RecordedServer()
    for _ in range(3):
        _changes(reader)
        asyncio.run(learn(reader.types, server))
    assert sorted(server.asked) == sorted(
        [f"data type {(2, number)}" for number in (5003, 5004, 5005, 5006)]
        + [f"definition {(2, number)}" for number in (3001, 3003, 3004, 3005, 3006, 3007)]
        + [f"definition {(0, 294)}"]  # UtcTime
    )


def test_every_example_of_the_page_is_one_of_these_values(known: ValueReader) -> None:
    """What docs/reference/opcua-values.md shows is what a foreign server's value becomes."""
    page = (Path(__file__).parents[3] / "docs/reference/opcua-values.md").read_text(encoding="utf-8")
    examples = re.findall(r"\| `(.+)` \|$", page, re.MULTILINE)
    unknown = _changes(ValueReader(VECTORS["namespaces"]))
    shown = {
        part for found in (*_changes(known).values(), *unknown.values()) for part in _parts(json_value(found.value))
    }
    assert len(examples) > 15
    for example in examples:
        assert canonical_json(json.loads(example)) in shown, example


def _parts(value: Any) -> set[bytes]:
    """A value and everything in it, as canonical JSON."""
    inside = value if isinstance(value, list) else list(value.values()) if isinstance(value, dict) else []
    return {canonical_json(value)}.union(*map(_parts, inside))


@settings(max_examples=400)
@given(
    st.lists(st.tuples(st.integers(0, len(PUBLICATION) - BODY_AT - 1), st.integers(0, 255)), max_size=6), st.booleans()
)
def test_a_damaged_foreign_publication_is_read_or_refused(
    known: ValueReader, changes: list[tuple[int, int]], cut: bool
) -> None:
    """Any bytes changed among values of every shape, structures with known types included: each change is a value that
    a fact can hold, or the message is refused with the one error."""
    raw = bytearray(PUBLICATION[BODY_AT:])
    for place, byte in changes:
        raw[place] = byte
    with contextlib.suppress(DecodeError):
        publication = decode_publication(bytes(raw[: changes[0][0]] if cut and changes else raw), known)
        for change in publication.changes:
            pack(([1], [0], [change.value], [0]), 1)
        assert 0 <= publication.values_lost <= NOTIFICATIONS_MAX
