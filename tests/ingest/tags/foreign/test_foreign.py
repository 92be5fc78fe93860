"""Tag lists of other products: each row of the sample files becomes the right row of ours, or is refused with its
reason. The samples in tests/vectors/tag_lists are written by the documented syntax of each product."""

import json
from pathlib import Path
from typing import Any

import pytest

from agent.ingest.errors import TagMapError
from agent.ingest.tags.file import dialect_of
from agent.ingest.tags.foreign import ignition, kepware, neuron
from agent.ingest.tags.foreign.translation import Options, Translation, tag_file
from agent.ingest.tags.tag_map import Dialect, TagMap, read_tag_map
from agent.settings.sources import ModbusSourceSettings, OpcuaSourceSettings

LISTS = Path(__file__).parents[3] / "vectors" / "tag_lists"
PRODUCTS = {"kepware": kepware.translate, "neuron": neuron.translate, "ignition": ignition.translate}


def dialect(options: Options) -> Dialect:
    """How a tag file with these options is read."""
    if options.protocol == "opcua":
        return dialect_of(OpcuaSourceSettings("plc", "opc.tcp://plc", Path("t.csv")))
    return dialect_of(ModbusSourceSettings(name="device", host="h", tags_file=Path("t.csv"), address_base=options.base))


def translated(product: str, file: str, data: bytes | None = None, **more: Any) -> tuple[Translation, TagMap]:
    """What becomes of a list, and the tag map that a source reads from it."""
    options = Options(**{"protocol": "modbus", "base": 1 if product == "ignition" else 40_001, **more})
    found = PRODUCTS[product](file, (LISTS / file).read_bytes() if data is None else data, options)
    return found, read_tag_map("t.csv", tag_file(found, dialect(options)), "s", dialect(options))


def opc_tag(path: object, name: str = "A", **more: str) -> dict[str, object]:
    """A tag of Ignition that is this item of a server or driver."""
    return {"name": name, "valueSource": "opc", "opcItemPath": path, **more}


def ignition_list(root: object, protocol: str = "modbus") -> Translation:
    """What becomes of an Ignition list of these tags."""
    return ignition.translate("list.json", json.dumps(root).encode(), Options(protocol, 1))


def points(found: TagMap) -> dict[str, tuple[object, ...]]:
    """Table, address, unit, type, order and scaling of each Modbus tag."""
    return {
        tag.definition.subject.removeprefix("tag:"): (
            *(tag.point.table.value, tag.point.address, tag.point.unit_id, tag.point.kind.name),
            *(tag.point.kind.order_name, round(tag.point.kind.scale, 9), tag.point.kind.offset),
        )
        for tag in found.tags
    }


def refused(found: Translation) -> dict[int, str]:
    """Why each refused row was refused."""
    return {refusal.row: refusal.why for refusal in found.refused}


def test_kepware() -> None:
    """Words, floats, bits, coils, texts, hexadecimal addresses, scaling and negation; arrays, square roots, what is
    only written and what is no register are refused, and so is a value that another row reads."""
    found, tags = translated("kepware", "kepware.csv")
    assert points(tags) == {
        "Boiler.Pressure": ("holding", 0, 1, "uint16", "AB", round(10 / 4095, 9), 0),
        "Boiler.Flow": ("holding", 10, 1, "float32", "ABCD", 1, 0),
        "Boiler.Alarm": ("holding", 19, 1, "bit3", "AB", 1, 0),
        "Boiler.Pump": ("coil", 4, 1, "bool", "AB", 1, 0),
        "Boiler.Level": ("input", 9, 1, "int16", "AB", -0.1, 0),
        "Boiler.Serial": ("holding", 99, 1, "string16", "AB", 1, 0),
        "Boiler.Model": ("holding", 109, 1, "string8", "BA", 1, 0),
        "Boiler.Hex": ("holding", 9, 1, "int32", "ABCD", 1, 0),
    }
    reasons = refused(found)
    for row, why in ((10, "array"), (11, "Square Root"), (12, "only be written"), (13, "date"), (15, "no address")):
        assert why in reasons.pop(row)
    assert "is read the same way in row 3" in reasons.pop(14)
    assert not reasons
    assert (tags.tags[0].definition.unit, tags.tags[0].definition.description) == ("bar", "Steam pressure")
    assert any("not carried over: clamp low 1" in remark.why for remark in found.remarks if remark.row == 3)
    cells = dict(found.rows)
    assert cells[6]["clamp"] == "-10..10"
    assert (cells[3].get("poll_interval_ms"), cells[5].get("poll_interval_ms")) == ("500", None)  # 100 is the default
    assert 'byte_order = "CDAB"' in found.notes[0]


def test_neuron() -> None:
    """Units, byte orders, bits, texts of both halves and the multiplier; what has no counterpart is refused."""
    found, tags = translated("neuron", "neuron.csv")
    assert points(tags) == {
        "meter/voltage": ("input", 3, 1, "uint16", "AB", 0.1, 0),
        "meter/current": ("input", 9, 1, "float32", "CDAB", 1, 0),
        "meter/energy": ("holding", 19, 1, "uint32", "DCBA", 1, 0),
        "meter/counter": ("holding", 29, 1, "uint64", "ABCDEFGH", 1, 0),
        "meter/running": ("coil", 4, 2, "bool", "AB", 1, 0),
        "meter/alarm": ("holding", 9, 2, "bit4", "AB", 1, 0),
        "meter/serial": ("holding", 99, 1, "string10", "AB", 1, 0),
        "meter/model": ("holding", 109, 1, "string10", "AB", 1, 0),
        "meter/wide": ("holding", 139, 1, "int64", "GHEFCDAB", 1, 0),
    }
    reasons = refused(found)
    for row, why in ((10, "one byte"), (11, "Write"), (12, "Static"), (14, "table 7"), (15, "1!400001")):
        assert why in reasons.pop(row)
    assert not reasons


@pytest.mark.parametrize(
    "address, kind, order",
    [
        ("400001", "INT16", "AB"),
        ("400001#B", "INT16", "BA"),
        ("400001.10", "STRING", "AB"),
        ("400001.10L", "STRING", "BA"),
        ("400001", "INT32", "DCBA"),
        ("400001#B", "INT32", "DCBA"),
        ("400001#LB", "INT32", "BADC"),
        ("4000001", "DOUBLE", "HGFEDCBA"),
        ("400001#L", "DOUBLE", "ABCDEFGH"),
        ("400001#B", "DOUBLE", "HGFEDCBA"),
        ("400001#WS", "UINT64", "CDABGHEF"),
        ("400001#WR", "UINT64", "EFGHABCD"),
    ],
)
def test_byte_orders_of_neuron(address: str, kind: str, order: str) -> None:
    """Only numbers of several registers follow the order of the node, here DCBA; a single letter counts for two and
    eight bytes; texts have the high byte first. A register may have more zeros."""
    data = f"group,name,address,attribute,type,decimal,bias\ng,a,1!{address},Read,{kind},,\n".encode()
    options = Options("modbus", 40_001)
    found = neuron.translate("list.csv", data, options)
    settings = ModbusSourceSettings(name="d", host="h", tags_file=Path("t.csv"), address_base=40_001, byte_order="DCBA")
    (tag,) = read_tag_map("t.csv", tag_file(found, dialect(options)), "s", dialect_of(settings)).tags
    assert tag.point.kind.order_name == order


def test_bias_of_neuron() -> None:
    """The bias is added after the multiplier."""
    data = (
        b"group,name,address,attribute,type,decimal,bias\ng,a,1!400001,Read,INT16,0.1,-40\ng,b,1!400002,Read,INT16,,5\n"
    )
    _, tags = translated("neuron", "list.csv", data)
    assert [(tag.point.kind.scale, tag.point.kind.offset) for tag in tags.tags] == [(0.1, -40), (1, 5)]


def test_ignition_json() -> None:
    """Tags in folders and members of UDT instances with their parameters, also added to; UDTs that the file lacks,
    other devices, unknown types, expressions and disabled tags are refused, items of other servers with what to do."""
    found, tags = translated("ignition", "ignition.json", device="Gateway")
    assert points(tags) == {
        "Hall_1/M1/Power": ("holding", 99, 7, "float32", "ABCD", 1, 0),
        "Hall_1/M1/Energy": ("holding", 101, 7, "uint32", "ABCD", 1, 0),
        "Hall_1/Pressure": ("input", 9, 1, "int16", "AB", 0.025, 0),
        "Hall_1/Running": ("coil", 4, 1, "bool", "AB", 1, 0),
        "Hall_1/Alarm": ("holding", 19, 1, "bit3", "AB", 1, 0),
        "Hall_1/Serial": ("holding", 26, 1, "string40", "AB", 1, 0),
    }
    assert tags.tags[0].definition.description == "main feed"
    assert next(cells for _, cells in found.rows if cells["tag"] == "Hall_1/Pressure")["clamp"] == "0..100"
    assert tags.tags[2].rule.deadband == 0.5
    whys = [("M2", "Elsewhere"), ("Zero", "--zero-based"), ("Other", "--device Press"), ("Odd", "HRX"), ("Sum", "OPC")]
    whys += [("Off", "disabled"), ("Speed", "--protocol opcua"), ("Named", "--protocol opcua")]
    assert len(found.refused) == len(whys)
    for refusal, (name, why) in zip(sorted(found.refused, key=lambda refusal: refusal.row), whys, strict=True):
        assert (refusal.name, why in refusal.why) == (f"Hall 1/{name}", True)


def test_ignition_udts_in_udts() -> None:
    """What an instance says of a member in a member, or of a tag in its folder, is added to what the types and the
    instances around it say, so each level may set one parameter or one setting and keeps the others. A member disabled
    at one level may be enabled at the next. What the file does not determine is refused with the reason."""
    found, tags = translated("ignition", "ignition_nested.json")
    assert points(tags) == {
        "Hall/S1/Feed/Speed": ("holding", 199, 7, "float32", "ABCD", 1, 0),
        "Hall/S1/Feed/Details/Current": ("holding", 201, 7, "int16", "AB", 1, 0),
        "Hall/S1/Axes/0/Speed": ("holding", 50, 7, "float32", "ABCD", 1, 0),
        "Hall/S1/Axes/0/Details/Current": ("holding", 52, 7, "int16", "AB", 1, 0),
        "Hall/S1/Axes/0/Details/Fault": ("coil", 500, 7, "bool", "AB", 1, 0),
        "Hall/S1/Axes/0/Torque": ("holding", 54, 7, "int16", "AB", 1, 0),
        "Hall/S1/Axes/1/Speed": ("holding", 199, 8, "float32", "ABCD", 1, 0),
        "Hall/S1/Axes/1/Details/Current": ("holding", 201, 8, "int16", "AB", 1, 0),
        "Hall/S1/Axes/1/Details/Fault": ("coil", 1990, 8, "bool", "AB", 1, 0),
        "Hall/S1/Axes/1/Torque": ("holding", 203, 8, "int16", "AB", 1, 0),
        "Hall/S2/Feed/Speed": ("holding", 199, 9, "float32", "ABCD", 1, 0),
        "Hall/S2/Feed/Details/Fault": ("coil", 1990, 9, "bool", "AB", 1, 0),
    }
    texts = {tag.definition.subject[9:]: (tag.definition.unit, tag.definition.description) for tag in tags.tags}
    assert texts["S1/Feed/Speed"] == ("rpm", "belt 1")
    assert texts["S1/Feed/Details/Current"] == ("mA", "")
    assert texts["S1/Axes/0/Speed"] == ("1/min", "")
    whys = [("S1/Feed/Details/Fault", "is disabled"), ("S2/Feed/Details/Current", "expression")]
    whys += [
        (f"S2/Axes/0/{name}", "without a value") for name in ("Speed", "Details/Current", "Details/Fault", "Torque")
    ]
    whys += [("S2/Axes/1", "is disabled")]
    assert len(found.refused) == len(whys)
    for refusal, (name, why) in zip(found.refused, whys, strict=True):
        assert (refusal.name, why in refusal.why) == (f"Hall/{name}", True)


def instance(binding: str, **parameters: object) -> bytes:
    """An instance with one tag."""
    path = {"bindType": "parameter", "binding": binding}
    member = opc_tag(path, tagType="AtomicTag")
    kind = {"name": "T", "tagType": "UdtType", "parameters": parameters, "tags": [member]}
    return json.dumps({"tags": [kind, {"name": "I", "tagType": "UdtInstance", "typeId": "T"}]}).encode()


@pytest.mark.parametrize(
    "reference, number",
    [
        ("{Base}", 12),
        ("{Base+3}", 15),
        ("{Base - 3}", 9),
        ("{Base+Step*2}", 20),
        ("{(Base+Step)*2|0000}", 32),
        ("{Base%5}", 2),
        ("{Base/Step}", 3),
        ("{Base|##0}", 12),
        ("{Base//Step}", None),
        ("{Base/5}", None),
        ("{Base/0}", None),
        ("{Base^2}", None),
        ("{Base+}", None),
        ("{(Base}", None),
        ("{Base|0.0}", None),
        ("{Other}", None),
        ("{Base+Other}", None),
        ("{Text+1}", None),
        ("{Text*2}", None),
        ("{3Base}", None),
        ("{Sum}", None),
        ("{" + "(" * 40 + "Base" + ")" * 40 + "}", None),
        ("{Base+{Step}}", None),
    ],
)
def test_references_to_parameters(reference: str, number: int | None) -> None:
    """Terms are computed as the product does; what is no whole number or not known refuses the tag, because a guess
    would read another register."""
    integer = {"dataType": "Integer"}
    data = instance(
        f"[D]HR{reference}",
        Base={**integer, "value": 12},
        Step={**integer, "value": 4.0},
        Text={"dataType": "String", "value": "2+3"},
        Sum={**integer, "value": {"bindType": "parameter", "binding": "{Base}+1"}},
    )
    found = ignition.translate("list.json", data, Options("modbus", 1))
    assert [int(cells["register"]) for _, cells in found.rows] == ([] if number is None else [number]), found.refused
    assert len(found.refused) == (number is None)


def test_names_of_instances_as_parameters() -> None:
    """A nested instance sees its own name, that of its parent and that of the outermost instance; a node id with braces
    is no reference."""
    path = {"bindType": "parameter", "binding": "ns=2;s={RootInstanceName}.{ParentInstanceName}.{InstanceName}.{From}"}
    member = opc_tag(path, opcServer="PLC")
    bound = {"value": {"bindType": "parameter", "binding": "{ParentInstanceName}"}}
    inner = {"name": "Inner", "tagType": "UdtType", "parameters": {"From": {"value": "x"}}, "tags": [member]}
    nested = {"name": "N", "tagType": "UdtInstance", "typeId": "Inner", "parameters": {"From": bound}}
    middle = {"name": "Middle", "tagType": "UdtType", "tags": [nested]}
    outer = {
        "name": "Outer",
        "tagType": "UdtType",
        "tags": [{"name": "M", "tagType": "UdtInstance", "typeId": "Middle"}],
    }
    guid = opc_tag("ns=2;s={3f2504e0-4f89-11d3-9a0c}", "G", opcServer="PLC")
    root = {"tags": [inner, middle, outer, {"name": "O", "tagType": "UdtInstance", "typeId": "Outer"}, guid]}
    found, tags = translated(
        "ignition", "list.json", json.dumps(root).encode(), protocol="opcua", namespaces={2: "urn:x"}
    )
    assert [tag.definition.address for tag in tags.tags] == [
        *("nsu=urn:x;s=O.M.N.M", "nsu=urn:x;s={3f2504e0-4f89-11d3-9a0c}"),
    ], found.refused


def test_an_export_of_an_instance_alone() -> None:
    """Lacks its type, which is said; a type that inherits from itself is refused."""
    alone = {"name": "I", "tagType": "UdtInstance", "typeId": "T", "tags": []}
    found = ignition_list(alone)
    assert [(refusal.name, "is not in this file" in refusal.why) for refusal in found.refused] == [("I", True)]
    root = {"tags": [{"name": "T", "tagType": "UdtType", "typeId": "T"}, alone]}
    found = ignition_list(root)
    assert "from itself" in found.refused[0].why


@pytest.mark.parametrize(
    "protocol, names",
    [("modbus", "Gateway (6), Press (1)"), ("opcua", "Kepware (1), PLC (1)")],
)
def test_ignition_lists_of_several_devices(protocol: str, names: str) -> None:
    """Are refused with their names unless one is chosen: a tag file is read from one device, and another one has other
    values at the same address."""
    with pytest.raises(TagMapError, match=r"give one: --device") as caught:
        translated("ignition", "ignition.json", protocol=protocol, namespaces={2: "Kep"})
    assert names in str(caught.value)


def test_ignition_tags_of_other_drivers() -> None:
    """Are read from Ignition's own OPC UA server, whose namespace 1 the person names; without it, the reason says
    so, and names Modbus as the other way."""
    root = [opc_tag("[Logix]Program:Main.Speed"), opc_tag("ns=1;s=[Logix]Axis[0].Pos", "B")]
    data = json.dumps(root).encode()
    found, _ = translated("ignition", "list.json", data, protocol="opcua", namespaces={1: "urn:gateway"})
    assert [cells["address"] for _, cells in found.rows] == [
        "nsu=urn:gateway;s=[Logix]Program:Main.Speed",
        "nsu=urn:gateway;s=[Logix]Axis[0].Pos",
    ]
    whys = refused(ignition_list(root, "opcua")).values()
    assert all("--namespace 1=URI" in why and "--protocol modbus" in why for why in whys)
    assert all("--protocol opcua" in why for why in refused(ignition_list(root)).values())


def test_ignition_types_in_a_file_of_their_own() -> None:
    """The designer exports UDT definitions and tags separately, a folder with its name, which is part of the name of a
    type and of a tag. The definitions alone are no list of tags, which is said."""
    member = opc_tag({"bindType": "parameter", "binding": "[D]HR{N}"}, "P")
    motor = {"name": "Motor", "tagType": "UdtType", "parameters": {"N": {"value": 7}}, "tags": [member]}
    types = json.dumps({"name": "Drives", "tagType": "Folder", "tags": [motor]}).encode()
    instance = {"name": "M1", "tagType": "UdtInstance", "typeId": "Drives/Motor"}
    hall = json.dumps({"name": "Hall", "tagType": "Folder", "tags": [instance]}).encode()
    found, tags = translated("ignition", "hall.json", hall, types=types)
    assert [(tag.name, tag.point.address) for tag in tags.tags] == [("Hall/M1/P", 6)], found.refused
    assert "--types" in ignition.translate("hall.json", hall, Options("modbus", 1)).refused[0].why
    with pytest.raises(TagMapError, match=r"holds only UDT definitions.*--types"):
        ignition.translate("types.json", types, Options("modbus", 1))


@pytest.mark.parametrize(
    "item, kind, address",
    [
        ("HR1", "int16", 0),
        ("IRUS7", "uint16", 6),
        ("HRI_641", "int64", 0),
        ("HRUI_6430001", "uint64", 30_000),
        ("HRBCD_3210", "bcd32", 9),
        ("HRBCD10", "bcd16", 9),
        ("HRD100", "float64", 99),
        ("DI3", "bool", 2),
        ("HRUS4.15", "bit15", 3),
    ],
)
def test_kinds_of_ignitions_registers(item: str, kind: str, address: int) -> None:
    """Digits that belong to the kind are not taken for the register."""
    data = json.dumps([opc_tag(f"[D]{item}")]).encode()
    found, tags = translated("ignition", "list.json", data)
    assert [(tag.point.kind.name, tag.point.address) for tag in tags.tags] == [(kind, address)], found.refused


def test_bits_of_several_registers() -> None:
    """Are refused: which register holds the bit depends on the word order."""
    assert "several registers" in refused(ignition_list([opc_tag("[D]HRI4.3")]))[1]


def test_ignition_csv() -> None:
    """The export of 7.x says the same in numbers. A setting of the scaling that it lacks has the product's default,
    which is said."""
    found, tags = translated("ignition", "ignition79.csv")
    assert points(tags) == {
        "Boiler/Pressure": ("holding", 0, 1, "int16", "AB", 0.025, 0),
        "Boiler/Level": ("holding", 4, 1, "int16", "AB", 0.05, 5),
        "Boiler/Flow": ("holding", 10, 2, "float32", "ABCD", 1, 0),
    }
    assert (tags.tags[0].rule.deadband, tags.tags[0].rule.deadband_is_percent) == (0.5, False)  # 1 % of 0 to 50
    assert tags.tags[1].rule.deadband == 1  # of 0 to 100, the default
    assert tags.tags[2].rule.deadband is None  # the negligible default of the product
    reasons = refused(found)
    assert set(reasons) == {7, 8, 9}
    assert "UDT instance" in reasons[9]
    assert any("rawHigh 100, scaledHigh 10" in note for note in found.notes)


def test_opcua_namespaces_are_named() -> None:
    """A namespace number is translated by the URI that the person gives, and refused without one; Kepware's tags of any
    driver are read from its own server, whose namespace depends on the edition."""
    found, tags = translated("neuron", "neuron_opcua.csv", protocol="opcua", namespaces={2: "urn:x"})
    assert [tag.definition.address for tag in tags.tags] == ["i=2258", "nsu=urn:x;s=Device1.Speed"]
    assert "--namespace 3=URI" in refused(found)[4]
    found, tags = translated("ignition", "ignition.json", protocol="opcua", namespaces={2: "Kep"}, device="Kepware")
    assert [tag.definition.address for tag in tags.tags] == ["nsu=Kep;s=Channel1.Device1.Speed"]
    assert "--device PLC" in refused(found)[14]
    found, tags = translated("kepware", "kepware.csv", protocol="opcua", device="C1.D1")
    assert tags.tags[0].definition.address == "nsu=KEPServerEX;s=C1.D1.Boiler.Pressure"
    assert (len(tags.tags), set(refused(found))) == (13, {12})
    assert "--namespace 2=URI" in found.notes[0]
    edition = {2: "ThingWorx Kepware Server"}
    _, tags = translated("kepware", "kepware.csv", protocol="opcua", device="C1.D1", namespaces=edition)
    assert tags.tags[0].definition.address == "nsu=ThingWorx Kepware Server;s=C1.D1.Boiler.Pressure"


@pytest.mark.parametrize(
    "product, base, zero_based, text, address",
    [
        ("kepware", 0, False, "40011", 10),
        ("kepware", 1, False, "410011", 10_010),
        ("kepware", 40_001, True, "40010", 10),
        ("kepware", 40_001, False, "465536", 65_535),
    ],
)
def test_ways_to_count(product: str, base: int, zero_based: bool, text: str, address: int) -> None:
    """The same register, however it is written, and however ours is."""
    data = f"Tag Name,Address,Data Type\nA,{text},Word\n".encode()
    _, tags = translated(product, "list.csv", data, base=base, zero_based=zero_based, prefix="line1/")
    (tag,) = tags.tags
    assert (tag.definition.subject, tag.point.table.value, tag.point.address) == ("tag:line1/A", "holding", address)


def udt(depth: int, width: int) -> bytes:
    """UDTs in UDTs that would be width to the power of depth tags."""
    member = [{"name": f"m{n}", "tagType": "UdtInstance"} for n in range(width)]
    types = [
        {"name": f"T{d}", "tagType": "UdtType", "tags": [{**inner, "typeId": f"T{d + 1}"} for inner in member]}
        for d in range(depth)
    ]
    types.append({"name": f"T{depth}", "tagType": "UdtType", "tags": []})
    root = [{"name": "_types_", "tagType": "Folder", "tags": types}]
    return json.dumps({"tags": [*root, {"name": "x", "tagType": "UdtInstance", "typeId": "T0"}]}).encode()


@pytest.mark.parametrize(
    "product, data, why",
    [
        ("kepware", b"", "no column 'Tag Name'"),
        ("kepware", b"a,b\n1,2\n", "is no export of Kepware"),
        ("neuron", b"PK\x03\x04", "save the sheet as CSV"),
        ("ignition", b"<Tags>", "is XML"),
        ("ignition", b"{}", "holds no tags"),
        ("ignition", b"[1, null]", "holds no tags"),
        ("ignition", b'{"tags": ' + b"[" * 100_000, "is not JSON"),
        ("ignition", udt(15, 10), "with all UDTs"),
    ],
)
def test_what_is_no_list(product: str, data: bytes, why: str) -> None:
    """Is refused as a whole with what to do, however hostile."""
    with pytest.raises(TagMapError) as caught:
        translated(product, "list", data)
    assert why in str(caught.value)


def test_names_in_other_scripts() -> None:
    """Stay distinct as tags, and the description keeps them where the list has none. An accent is left out."""
    data = (
        "Tag Name,Address,Data Type,Description\n温度,40001,Word,\n压力,40002,Word,p\nKühler °C,40003,Word,\n".encode()
    )
    _, tags = translated("kepware", "list.csv", data)
    assert [(tag.name, tag.definition.description) for tag in tags.tags] == [
        *(("u6e29u5ea6", "温度"), ("u538bu529b", "p"), ("Kuhler__C", "Kühler °C")),
    ]


def test_code_pages_of_lists() -> None:
    """A list is read in the named code page, and says so; without a name it is refused."""
    data = "Tag Name,Address,Data Type,Eng Units,Description\nA,40001,Word,°C,Kühler\n".encode("cp1250")
    with pytest.raises(TagMapError, match=r"is not UTF-8 \(line 2\)"):
        translated("kepware", "list.csv", data)
    found, tags = translated("kepware", "list.csv", data, code_page="windows-1250")
    assert (tags.tags[0].definition.unit, tags.tags[0].definition.description) == ("°C", "Kühler")
    assert any("read as WINDOWS-1250" in note for note in found.notes)
    with pytest.raises(TagMapError, match="is not text in shift_jis"):
        translated("kepware", "list.csv", b"\xfd" + data, code_page="shift_jis")
    umlaut = [opc_tag("[D]HR1", engUnit="Ø")]
    content = json.dumps(umlaut, ensure_ascii=False).encode("cp1252")
    _, tags = translated("ignition", "list.json", content, code_page="cp1252")
    assert tags.tags[0].definition.unit == "Ø"


def test_decimal_marks_of_lists() -> None:
    """Lists of a spreadsheet with semicolons and Excel's first line have decimal commas; 1.000 beside them is refused
    with both readings."""
    head = "sep=;\nTag Name;Address;Data Type;Scaling;Raw Low;Raw High;Scaled Low;Scaled High\n"
    _, tags = translated("kepware", "list.csv", f"{head}A;40001;Word;Linear;0;100;0;2,5\n".encode())
    assert tags.tags[0].point.kind.scale == 0.025
    rows = "A;40001;Word;Linear;0;100;0;2,5\nB;40002;Word;Linear;0;1.000;0;10\n"
    with pytest.raises(TagMapError, match=r"row 3 column raw high: '1.000' is 1000 or 1:") as caught:
        translated("kepware", "list.csv", (head + rows).encode())
    assert len(caught.value.problems) == 1


def test_cells_that_are_no_numbers() -> None:
    """A giant exponent costs nothing, and a scaling without slope is refused."""
    head = "Tag Name,Address,Data Type,Scaling,Raw Low,Raw High,Scaled Low,Scaled High\n"
    rows = "A,40001,Word,Linear,0,1e999999999,0,1\nB,40002,Word,Linear,5,5,0,1\nC,40003,Word,Linear,0,,0,1\n"
    rows += "D,40004,Word,Linear,0,1,5,5\n"
    options = Options("modbus", 40_001)
    found = kepware.translate("list.csv", (head + rows).encode(), options)
    assert [refusal.row for refusal in found.refused] == [2, 3, 4, 5]
    assert "tag" in tag_file(found, dialect(options)).decode()


def test_a_list_with_many_wrong_rows() -> None:
    """Each row that is wrong in a tag file is refused with its reason, however many there are."""
    options = Options("modbus", 40_001)
    found = Translation([(row, {"tag": f"a/{row}", "register": "40001", "type": "word"}) for row in range(2, 32)])
    tag_file(found, dialect(options))
    assert refused(found).keys() == set(range(2, 32))


def test_rows_in_reasons_are_those_of_the_list() -> None:
    """Also if rows before are refused."""
    rows = "A,SYSTEM,Word\nB,SYSTEM,Word\nC,40001,Word\nD,40001,Word\n"
    found, _ = translated("kepware", "list.csv", f"Tag Name,Address,Data Type\n{rows}".encode())
    assert "is read the same way in row 4" in refused(found)[5]
