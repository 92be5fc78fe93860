from pathlib import Path

import pytest

from agent.ingest.errors import TagMapError
from agent.ingest.modbus.address import Register, Table
from agent.ingest.opcua.address import Reading, TagPoint
from agent.ingest.opcua.subscriptions.monitoring import Monitoring, Trigger
from agent.ingest.sampling import SamplingRule
from agent.ingest.tags import csv_rows
from agent.ingest.tags.file import load_tag_map, load_tag_maps
from agent.settings.opcua_address import STANDARD_URI, NodeAddress
from agent.settings.sources import OpcuaSourceSettings
from tests.ingest.tags.reading import modbus, opcua

OPCUA_HEADER = "tag,address\n"
MODBUS_HEADER = "tag,table,register,type\n"


def test_a_full_row() -> None:
    """Every common column arrives where it belongs."""
    text = (
        "tag,address,stream,predicate,unit,description,deadband,min_interval_ms,max_interval_ms,enumeration\n"
        'line1/oven,nsu=urn:plc;s=Oven,facts.oven,temperature_sampled,°C,"Oven, left",0.5,100,60000, 7=On | 0 = Off\n'
    )
    (tag,) = opcua(text).tags
    assert (tag.row, tag.stream, tag.point) == (2, "facts.oven", TagPoint.of(NodeAddress("urn:plc", "Oven")))
    assert tag.rule == SamplingRule(0.5, min_interval_ns=100_000_000, max_interval_ns=60_000_000_000)
    definition = tag.definition
    assert definition.subject == "tag:line1/oven"
    assert (definition.predicate, definition.unit, definition.description) == (
        "temperature_sampled",
        "°C",
        "Oven, left",
    )
    assert definition.enumeration == "0=Off|7=On"
    assert (definition.source, definition.address) == ("plc", "nsu=urn:plc;s=Oven")


def test_how_an_item_is_monitored() -> None:
    """The columns for the server; an empty cell leaves it to the source, 0 is a value."""
    header = "tag,address,sampling_interval_ms,queue_size,server_deadband,trigger\n"
    rows = "a/1,i=1,0,20,0.5,\na/2,i=2,,,5%,STATUS\na/3,i=3,,,,status_value_timestamp\n"
    found = [tag.point.monitoring for tag in opcua(header + rows).tags]
    assert found == [
        Monitoring(sampling_interval_ms=0, queue_size=20, deadband=0.5),
        Monitoring(deadband=5, deadband_is_percent=True, trigger=Trigger.STATUS),
        Monitoring(trigger=Trigger.STATUS_VALUE_TIMESTAMP),
    ]
    assert [monitoring.has_filter for monitoring in found] == [True, True, True]
    with pytest.raises(TagMapError) as refused:
        opcua(header + "a/1,i=1,-1,,,\na/2,i=2,,0,,\na/3,i=3,,,101%,\na/4,i=4,,,,values\n")
    assert [problem.column for problem in refused.value.problems] == [
        *("sampling_interval_ms", "queue_size", "server_deadband", "trigger"),
    ]


def test_an_index_range_selects_elements_of_an_array() -> None:
    """Each is a value of its own, and a single one is no array. Brackets in an address belong to the name of the
    node."""
    header, name = "tag,address,index_range\n", "s=a[3]"
    rows = ["", "0", "1:3", "2,0:1", "0:1"]
    found = opcua(header + "".join(f'a/{n},{name},"{text}"\n' for n, text in enumerate(rows))).tags
    assert [tag.point.reading for tag in found] == [Reading(NodeAddress(STANDARD_URI, "a[3]"), text) for text in rows]
    assert [tag.point.reading.is_element for tag in found] == [False, True, False, False, False]
    assert found[2].definition.address == "s=a[3][1:3]"
    with pytest.raises(TagMapError) as refused:
        opcua(header + "a/1,i=1,3:3\na/2,i=2,x\n")
    assert [(problem.column, problem.value) for problem in refused.value.problems] == [
        ("index_range", "3:3"),
        ("index_range", "x"),
    ]


@pytest.mark.parametrize(
    "data, note",
    [
        ("tag,address,unit\na/b,nsu=urn:x;s=y,°C\n".encode("utf-8-sig"), ""),
        ('tag;address;unit\r\na/b;"nsu=urn:x;s=y";°C\r\n'.encode(), ""),
        ('"tag";"address";"unit"\r\n"a/b";"nsu=urn:x;s=y";"°C"\r\n'.encode(), ""),
        ('sep=;\r\ntag;address;unit\r\na/b;"nsu=urn:x;s=y";°C\r\n'.encode(), ""),
        ("tag\taddress\tunit\na/b\tnsu=urn:x;s=y\t°C\n".encode("utf-16"), "UTF-16"),
        ("Tag,Address,Unit,,\r\n\r\na/b,nsu=urn:x;s=y,°C,,\r\n,,,,\r\n".encode(), ""),
        ("unit,address,tag\n°C,nsu=urn:x;s=y,a/b\n".encode(), ""),
    ],
    ids=["bom", "semicolon-crlf", "quoted", "sep", "utf16-tab", "empty-rows-and-columns", "any-order"],
)
def test_what_spreadsheets_save(data: bytes, note: str) -> None:
    """All the shapes in which Excel and its like write a sheet give the same tag; UTF-16 is told."""
    found = opcua(data)
    (tag,) = found.tags
    assert (tag.definition.subject, tag.definition.unit) == ("tag:a/b", "°C")
    assert tag.point == TagPoint.of(NodeAddress("urn:x", "y"))
    assert bool(found.notes) == bool(note)
    assert all(note in line for line in found.notes)


@pytest.mark.parametrize("page", ["cp1252", "cp1250", "cp1251", "gbk", "shift_jis"])
def test_a_file_in_a_code_page_is_refused(page: str) -> None:
    """Whatever spreadsheet wrote it: the first line that depends on the page is named."""
    text = "# a comment\ntag,address,unit,description\na/0,i=1,°C,\na/1,i=2,°C,\n"
    with pytest.raises(TagMapError, match=r"is not UTF-8 \(line 3\), .* save it as CSV UTF-8"):
        opcua(text.encode(page, "replace"))


@pytest.mark.parametrize(
    "first, second, readings",
    [
        ("0,5", "1.000", ("1000", "1")),
        ("0.5", "-1,000", ("-1000", "-1")),
        ("0,5", "1.0001", None),
        ("0,5", "0.500", None),
        ("0,5", "1,000", None),
        ("0.5", "1.000", None),
    ],
)
def test_numbers_with_two_readings(first: str, second: str, readings: tuple[str, str] | None) -> None:
    """A point and three digits beside decimal commas, or the other way round, may be a thousand or one."""
    data = f"tag;table;register;type;scale\na/b;holding;1;int16;{first}\na/c;holding;2;int16;{second}\n"
    if readings is None:
        first_scale, second_scale = (tag.point.kind.scale for tag in modbus(data).tags)
        assert (first_scale, second_scale) == (0.5, float(second.replace(",", ".")))
        return
    with pytest.raises(TagMapError) as refused:
        modbus(data)
    (problem,) = refused.value.problems
    assert (problem.row, problem.column) == (3, "scale")
    assert f"is {readings[0]} or {readings[1]}:" in problem.why


def test_a_decimal_comma_with_semicolons() -> None:
    """A German sheet writes 0,5 and 2,5%."""
    text = 'tag;address;deadband\na/b;"nsu=urn:x;s=1";0,5\na/c;"nsu=urn:x;s=2";2,5%\n'
    first, second = opcua(text).tags
    assert first.rule == SamplingRule(0.5)
    assert second.rule == SamplingRule(2.5, deadband_is_percent=True)


@pytest.mark.parametrize(
    "row, column, why",
    [
        (",nsu=urn:x;s=y,,,,,", "tag", "is empty"),
        ("a b,nsu=urn:x;s=y,,,,,", "tag", "scope/id"),
        ("a/é,nsu=urn:x;s=y,,,,,", "tag", "printable ASCII"),
        ("a/b,,,,,,", "address", "is empty"),
        ("a/b,ns=2;s=y,,,,,", "address", "by number"),
        ("a/b,nsu=urn:x;s=y,Facts,,,,", "stream", "a-z"),
        ("a/b,nsu=urn:x;s=y,health,,,,", "stream", "health of nodes"),
        ("a/b,nsu=urn:x;s=y,,ValueSampled,,,", "predicate", "lower_snake_case"),
        ("a/b,nsu=urn:x;s=y,,,abc,,", "deadband", "is not a number"),
        ("a/b,nsu=urn:x;s=y,,,,,,0=Off|On", "enumeration", "numbers with names"),
        ("a/b,nsu=urn:x;s=y,,,,,,0=Off|00=On", "enumeration", "each once"),
        ("a/b,nsu=urn:x;s=y,,,-1,,", "deadband", "0 or more"),
        ("a/b,nsu=urn:x;s=y,,,101%,,", "deadband", "0% to 100%"),
        ("a/b,nsu=urn:x;s=y,,,nan,,", "deadband", "finite"),
        ("a/b,nsu=urn:x;s=y,,,9007199254740993,,", "deadband", "would be rounded"),
        ("a/b,nsu=urn:x;s=y,,,9007199254740993.0,,", "deadband", "would be rounded"),
        ("a/b,nsu=urn:x;s=y,,,,1.5,", "min_interval_ms", "whole number"),
        ("a/b,nsu=urn:x;s=y,,,,-1,", "min_interval_ms", "outside"),
        ("a/b,nsu=urn:x;s=y,,,,²,", "min_interval_ms", "whole number"),
        ("a/b,nsu=urn:x;s=y,,,,--5,", "min_interval_ms", "whole number"),
        (f"a/b,nsu=urn:x;s=y,,,,{'5' * 5_000},", "min_interval_ms", "whole number"),
        ("a/b,nsu=urn:x;s=y,,,,200,100", "max_interval_ms", "less than"),
    ],
)
def test_a_bad_cell_is_named(row: str, column: str, why: str) -> None:
    """Each mistake is told with file, row, column, what stands there, and what to write."""
    header = "tag,address,stream,predicate,deadband,min_interval_ms,max_interval_ms,enumeration\nok/ok,nsu=urn:x;s=ok,,,,,,\n"
    with pytest.raises(TagMapError) as caught:
        opcua(header + row + "\n")
    (problem,) = caught.value.problems
    assert (problem.file, problem.row, problem.column) == ("plc.csv", 3, column)
    assert why in problem.why
    assert f"plc.csv row 3 column {column}" in str(caught.value)


@pytest.mark.parametrize(
    "base, row, why, column",
    [
        (0, "a/b,holding,70000,int16", "outside 0 to 65535", "register"),
        (1, "a/b,holding,0,int16", "outside 1 to 65536", "register"),
        (0, "a/b,,5,int16", "write coil", "table"),
        (0, "a/b,holdings,5,int16", "is unknown; did you mean holding", "table"),
        (0, "a/b,holding,5,", "is empty", "type"),
        (0, "a/b,holding,5,flaot32", "is not a type", "type"),
        (0, "a/b,coil,5,int16", "must be bool", "type"),
        (0, "a/b,holding,65535,float32", "beyond the last address", "register"),
        (40001, "a/b,,20001,int16", "beginning with 0, 1, 3 or 4", "register"),
        (40001, "a/b,,40000,int16", "no register 0", "register"),
        (40001, "a/b,input,40001,int16", "contradicts", "table"),
    ],
)
def test_bad_registers(base: int, row: str, why: str, column: str) -> None:
    """Addresses that do not exist, in each way of counting, and types that do not fit their table."""
    with pytest.raises(TagMapError) as caught:
        modbus(f"{MODBUS_HEADER}{row}\n", base)
    (problem,) = caught.value.problems
    assert (problem.row, problem.column) == (2, column)
    assert why in problem.why


@pytest.mark.parametrize(
    "base, table, register, expected",
    [
        (0, "holding", "0", (Table.HOLDING, 0)),
        (1, "holding", "1", (Table.HOLDING, 0)),
        (1, "input", "65536", (Table.INPUT, 65535)),
        (40001, "", "40001", (Table.HOLDING, 0)),
        (40001, "holding", "400001", (Table.HOLDING, 0)),
        (40001, "", "465536", (Table.HOLDING, 65535)),
        (40001, "", "30010", (Table.INPUT, 9)),
        (40001, "", "10001", (Table.DISCRETE, 0)),
        (40001, "", "1", (Table.COIL, 0)),
    ],
)
def test_ways_to_count_registers(base: int, table: str, register: str, expected: tuple[Table, int]) -> None:
    """The same register in the three ways vendors write it; one off would look right and be wrong."""
    kind = "" if expected[0].is_bits else "uint16"
    (tag,) = modbus(f"{MODBUS_HEADER}a/b,{table},{register},{kind}\n", base).tags
    assert isinstance(tag.point, Register)
    assert (tag.point.table, tag.point.address) == expected


def test_everything_wrong_is_reported_at_once() -> None:
    """One reading of the file is enough to mend it."""
    rows = ["a/b,nsu=urn:x;s=1", "a/b,nsu=urn:x;s=2", "a/c,nsu=urn:x;s=1", "a/d,oops", "a/e,nsu=urn:x;s=3,extra"]
    rows += ["\u00d6fen,oops"]
    with pytest.raises(TagMapError) as caught:
        opcua(OPCUA_HEADER + "\n".join(rows))
    found = [(problem.row, problem.column, problem.value) for problem in caught.value.problems]
    assert found == [
        (3, "tag", "a/b"),
        (4, "address", "nsu=urn:x;s=1"),
        (5, "address", "oops"),
        (6, "", "extra"),
        (7, "address", "oops"),
        (7, "tag", "\u00d6fen"),
    ]
    assert "6 problems" in str(caught.value)


def test_each_wrong_cell_of_a_row_is_reported() -> None:
    """Also the second one of those that are read together; what was not wrong is not reported for it."""
    header = "tag,address,deadband,min_interval_ms,max_interval_ms,predicate,enumeration,unit\n"
    with pytest.raises(TagMapError) as caught:
        opcua(header + "a/b,nsu=urn:x;s=1,no,9000,never,Bad One,1=,C\na/c,nsu=urn:x;s=2,-1,9000,100,,,C\n")
    found = [(problem.row, problem.column) for problem in caught.value.problems]
    wrong = ["deadband", "max_interval_ms", "predicate", "enumeration"]
    assert found == [*((2, column) for column in wrong), (3, "deadband"), (3, "max_interval_ms")]


@pytest.mark.parametrize(
    "data, why",
    [
        (b"", "is empty"),
        (b"tag,address\n", "holds no tags"),
        (b"tag,adress\na/b,i=1\n", "did you mean address?"),
        (b"tag,address,xyz\na/b,i=1,2\n", "known are"),
        (b"tag,address,unit,unit\na/b,i=1,2,3\n", "twice"),
        (b"address\ni=1\n", "add this column"),
        (b'tag,address\na/b,"i=1\n', "check the quotes"),
        (b"PK\x03\x04rest", "workbook"),
        (b"tag,addr\x00ess\n", "not text"),
    ],
)
def test_files_that_are_no_tag_file(data: bytes, why: str) -> None:
    """An empty file, a wrong header, a workbook: each says what to do, none raises anything else."""
    with pytest.raises(TagMapError, match=r"plc\.csv") as caught:
        opcua(data)
    assert why in str(caught.value)


def test_a_file_may_hold_as_many_tags_as_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """A file with exactly as many tags is read; with one more it is refused as a whole, at the row beyond the limit."""
    monkeypatch.setattr(csv_rows, "ROWS_MAX", 2)
    data = "tag,address\na/1,i=1\na/2,i=2\n"
    assert len(opcua(data).tags) == 2
    with pytest.raises(TagMapError, match=r"plc\.csv row 4.*more than 2 tags"):
        opcua(data + "a/3,i=3\n")


def test_a_missing_file(tmp_path: Path) -> None:
    """The message names the file and the source that wants it."""
    with pytest.raises(TagMapError, match=r"tags\.csv: does not exist; it should hold the tags of source plc"):
        load_tag_map(OpcuaSourceSettings("plc", "opc.tcp://plc:4840", tmp_path / "tags.csv"))


def test_one_tag_comes_from_one_source(tmp_path: Path) -> None:
    """Two sources with the same tag are a mistake, told with both rows; problems of all files come together."""
    sources = []
    for name, row in (("plc", "a/b,nsu=urn:x;s=1"), ("plc2", "a/b,nsu=urn:x;s=1"), ("plc3", "a/c,oops")):
        file = tmp_path / f"{name}.csv"
        file.write_text(f"{OPCUA_HEADER}{row}\n")
        sources.append(OpcuaSourceSettings(name, "opc.tcp://plc:4840", file))
    with pytest.raises(TagMapError) as caught:
        load_tag_maps(tuple(sources))
    first, second = sorted(caught.value.problems, key=lambda problem: problem.file)
    assert str(first).startswith("plc2.csv row 2 column tag: 'a/b' is also in plc.csv row 2, of source plc;")
    assert second.file == "plc3.csv"


def test_values_longer_than_a_read_are_refused_beforehand() -> None:
    """The plan never meets a value that it cannot read."""
    with pytest.raises(TagMapError, match="needs 20 registers, but registers_per_read_max of source meter is 10"):
        modbus(f"{MODBUS_HEADER}a/b,holding,0,string40\n", registers_per_read_max=10)


@pytest.mark.parametrize(
    "deadband, least, most, expected",
    [
        ("", "", "", 1_000),
        ("0.5", "", "", 0),
        ("0.5", "", "60000", 60_000),
        ("", "5000", "", 5_000),
        ("", "", "500", 500),
    ],
)
def test_how_often_a_tag_comes_at_the_longest(deadband: str, least: str, most: str, expected: int) -> None:
    """A polled value without deadband at each poll, one with max_interval_ms after that; an OPC UA value without
    max_interval_ms on change."""
    header = "tag,table,register,type,deadband,min_interval_ms,max_interval_ms\n"
    (tag,) = modbus(f"{header}a/b,holding,1,int16,{deadband},{least},{most}\n").tags
    assert tag.longest_interval_ms == expected
    (tag,) = opcua(f"tag,address,max_interval_ms\na/b,i=1,{most}\n").tags
    assert tag.longest_interval_ms == int(most or 0)
