"""Types as a server may describe them: odd, unfinished, endless. Vendor structures as a real server describes and sends
them are in test_foreign_values."""

import asyncio
import struct
from typing import Any

from asyncua import ua

from agent.ingest.opcua.values.structures import (
    FIELDS_MAX,
    TYPES_MAX,
    DescribedField,
    EnumType,
    StructureShape,
    StructureType,
    TypeKey,
    Types,
    learn,
)
from agent.ingest.opcua.values.type_reader import described_type, enum_property
from agent.ingest.opcua.values.variant import ValueReader
from agent.message import Json

ENCODING, TYPE = (1, 100), (1, 1)
INT32, STRING = (0, 6), (0, 12)


class Server:
    """A TypePort over two tables."""

    def __init__(
        self, types: dict[TypeKey, StructureType | EnumType], above: dict[TypeKey, TypeKey] | None = None
    ) -> None:
        self.types, self.above = types, above or {}
        self.asked = 0

    async def data_type(self, encoding: TypeKey) -> TypeKey | None:
        return TYPE if encoding == ENCODING else None

    async def definition(self, data_type: TypeKey) -> StructureType | EnumType | None:
        self.asked += 1
        return self.types.get(data_type)

    async def supertype(self, data_type: TypeKey) -> TypeKey | None:
        self.asked += 1
        return self.above.get(data_type)


def read(server: Server, body: bytes) -> Any:
    """What a structure with these bytes becomes, its type learnt from a server."""
    reader = ValueReader(("", "urn:x"), Types())
    data = struct.pack("<BBBHBi", 22, 1, 1, ENCODING[1], 1, len(body)) + body
    reader(data, 0)
    asyncio.run(learn(reader.types, server))
    value, position = reader(data, 0)
    assert position == len(data)
    return value


def raw(body: bytes) -> Json:
    """A structure that keeps its bytes."""
    return Json.of({"TypeId": "nsu=urn:x;i=100", "Body": body.hex()})


def fields(*found: DescribedField, shape: StructureShape = StructureShape.PLAIN) -> Server:
    """A server with one structure of these fields."""
    return Server({TYPE: StructureType(found, shape)})


NUMBER = struct.pack("<i", 7)


def test_a_tree_of_itself_is_read_as_deep_as_values_may_be() -> None:
    """A type may hold itself; bytes that go deeper than a decoder must follow are kept as they are."""
    tree = fields(DescribedField("Name", INT32), DescribedField("Children", TYPE, 1))
    leaf = NUMBER + struct.pack("<i", 0)
    assert read(tree, NUMBER + struct.pack("<i", 1) + leaf) == Json.of(
        {"Name": 7, "Children": [{"Name": 7, "Children": []}]}
    )
    deep = (NUMBER + struct.pack("<i", 1)) * 200 + leaf
    assert read(tree, deep) == raw(deep)


def test_many_elements_without_bytes_are_not_counted_out() -> None:
    """An array of two billion empty structures has no bytes that would end it."""
    server = Server({TYPE: StructureType((DescribedField("Many", (1, 2), 1),)), (1, 2): StructureType(())})
    body = struct.pack("<i", 2**31 - 1)
    assert read(server, body) == raw(body)


def test_a_structure_with_an_unknown_part_stays_unknown() -> None:
    """A nested structure without description, a type without built-in type, a circle of supertypes, names twice, more
    fields than anybody needs: the bytes are kept, and the questions end."""
    for server in (
        Server({TYPE: StructureType((DescribedField("A", (1, 2)),))}, {(1, 2): (0, 22)}),
        Server({TYPE: StructureType((DescribedField("A", (1, 2)),))}),
        Server({TYPE: StructureType((DescribedField("A", (1, 2)),))}, {(1, 2): (1, 3), (1, 3): (1, 2)}),
        fields(DescribedField("A", INT32), DescribedField("A", INT32)),
        fields(*(DescribedField(str(n), INT32) for n in range(FIELDS_MAX + 1))),
    ):
        assert read(server, NUMBER) == raw(NUMBER)
        assert server.asked < 30
    twice = fields(DescribedField("A", INT32), DescribedField("A", INT32))
    assert read(twice, NUMBER * 2) == raw(NUMBER * 2), "both values would have the same name"
    undescribed = Server({TYPE: StructureType((DescribedField("A", (1, 2)),))}, {(1, 2): (0, 22)})
    assert read(undescribed, bytes(3)) == raw(bytes(3)), "it would also be an empty structure with its type"


def test_structures_of_endless_types_are_not_asked_for() -> None:
    """A server that sends each value with another type costs a bounded amount of memory and of requests."""
    types = Types()
    for number in range(2 * TYPES_MAX):
        assert types.structure((1, number)) is None
    assert len(types.missing) < TYPES_MAX
    types.give_up()
    assert types.structure((1, 3 * TYPES_MAX)) is None
    assert not types.missing


def test_a_server_that_describes_types_without_end_is_left() -> None:
    """Each type holds the next: after two thousand the structure is given up."""

    class Endless(Server):
        async def definition(self, data_type: TypeKey) -> StructureType:
            self.asked += 1
            assert isinstance(data_type[1], int)
            return StructureType((DescribedField("Next", (1, data_type[1] + 1)),))

    server = Endless({})
    assert read(server, NUMBER) == raw(NUMBER)
    assert 1_000 < server.asked < 3_000


def test_names_of_bits_stay_a_number() -> None:
    """An option set is described like an enumeration, and is as wide as its base type: a Byte here."""
    server = Server(
        {TYPE: StructureType((DescribedField("Bits", (1, 2)),)), (1, 2): EnumType({0: "Open"})}, {(1, 2): (0, 3)}
    )
    assert read(server, b"\x05") == Json.of({"Bits": 5})


def test_fields_of_any_subtype_carry_their_type() -> None:
    """Structures with subtyped values: what may be any number is a Variant, what may be any structure an
    ExtensionObject; unions say by number which field they have."""
    server = Server(
        {
            TYPE: StructureType(
                (
                    DescribedField("A", (0, 26), is_optional=True),
                    DescribedField("B", (1, 2), is_optional=True),
                    DescribedField("C", INT32),
                ),
                StructureShape.SUBTYPED,
            )
        },
        {(1, 2): (0, 22)},
    )
    nothing = bytes(3)  # the null structure
    assert read(server, b"\x06" + NUMBER + nothing + NUMBER) == Json.of({"A": 7, "B": None, "C": 7})
    union = fields(DescribedField("A", INT32), DescribedField("B", STRING), shape=StructureShape.UNION)
    assert read(union, struct.pack("<I", 0)) == Json.of({})
    assert read(union, struct.pack("<I", 1) + NUMBER) == Json.of({"A": 7})
    beyond = struct.pack("<I", 3) + NUMBER
    assert read(union, beyond) == raw(beyond)


def test_a_field_of_two_dimensions_is_a_list_of_lists() -> None:
    """In a structure the sizes stand before the values, not behind them as in a Variant."""
    body = struct.pack("<iii", 2, 2, 1) + NUMBER * 2
    assert read(fields(DescribedField("M", INT32, 2)), body) == Json.of({"M": [[7], [7]]})
    huge = struct.pack("<i32i", 32, *[2**31 - 1] * 32)
    assert read(fields(DescribedField("M", INT32, 2)), huge) == raw(huge)


def test_enumerations_of_older_servers_are_named_by_a_property() -> None:
    """EnumStrings counts from zero, EnumValues gives each its number; a definition without names falls back to the
    display name."""
    assert enum_property([ua.LocalizedText("Off"), ua.LocalizedText("On")]) == EnumType({0: "Off", 1: "On"})
    assert enum_property([ua.EnumValueType(Value=7, DisplayName=ua.LocalizedText("Fault"))]) == EnumType({7: "Fault"})
    assert enum_property("nonsense") is None
    shown = ua.EnumDefinition(Fields=[ua.EnumField(Value=3, DisplayName=ua.LocalizedText("Three"))])
    assert described_type(shown) == EnumType({3: "Three"})
    assert enum_property([ua.LocalizedText("L\udcfcftung")]) == EnumType({0: "L\ufffdftung"}), "no UTF-8"
    latin1 = ua.StructureDefinition(Fields=[ua.StructureField(Name="L\udcfcfter", IsOptional=False)])
    assert described_type(latin1) == StructureType((DescribedField("L\ufffdfter", (0, 0)),))
    assert described_type(None) is None
