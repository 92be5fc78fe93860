"""`bsfg tags`: files to begin with, checks without a node, comparisons, and lists of other products."""

import json
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest

from agent.cli.tags.commands import temporary_source
from agent.ingest.tags.example import json_schema
from agent.ingest.tags.file import dialect_of, load_tag_map
from agent.ingest.tags.tag_map import read_tag_map
from tests.cli.conftest import Bsfg

LISTS = Path(__file__).parents[1] / "vectors" / "tag_lists"
NODE = '[node]\nzone = "a"\n[[modbus]]\nname = "m1"\nhost = "h"\ntags_file = "m1.csv"\naddress_base = 0\n'
OTHER = '[[modbus]]\nname = "m2"\nhost = "h"\ntags_file = "m2.csv"\naddress_base = 0\n'
HEADER = "tag,table,register,type,scale,unit\n"
DIALECTS = {
    "opcua": dialect_of(temporary_source("opcua", Path("t.csv"), None)),
    "modbus": dialect_of(temporary_source("modbus", Path("t.csv"), 0)),
}


@pytest.mark.parametrize("protocol", DIALECTS)
@pytest.mark.parametrize("form", ["csv", "toml"])
def test_a_file_to_begin_with(bsfg: Bsfg, tmp_path: Path, protocol: str, form: str) -> None:
    """Each form explains every column that the code knows, is a good tag file as it stands, and both forms give the
    same tags."""
    done = bsfg("tags", "template", protocol, *(["--toml"] if form == "toml" else []))
    (tmp_path / f"new.{form}").write_text(done.stdout)
    for column in DIALECTS[protocol].all_columns:
        assert re.search(
            rf"^\ufeff?#+ {column.name}( \(needed\))?: {re.escape(column.meaning)}", done.stdout, re.MULTILINE
        )
    base = ["--base", "1"] if protocol == "modbus" else []
    checked = bsfg("tags", "check", f"new.{form}", "--protocol", protocol, *base)
    assert (checked.returncode, checked.stdout) == (0, f"new.{form}: good; {7 + (protocol == 'modbus')} tags\n")
    (tmp_path / "other.csv").write_text(bsfg("tags", "template", protocol).stdout)
    maps = [load_tag_map(temporary_source(protocol, tmp_path / name, 1)) for name in (f"new.{form}", "other.csv")]
    first, second = ([(tag.definition, tag.point, tag.rule) for tag in found.tags] for found in maps)
    assert first == second


@pytest.mark.parametrize("protocol", DIALECTS)
def test_every_column_has_an_example_that_can_be_used(protocol: str) -> None:
    """The example of each column is a cell that the reader takes, beside those that a row needs."""
    dialect = DIALECTS[protocol]
    needed = {"tag": "a/b", "address": "i=1"} if protocol == "opcua" else {"tag": "a/b", "register": "1"}
    if protocol == "modbus":
        needed |= {"table": "holding", "type": "uint32"}
    for column in dialect.all_columns:
        assert column.meaning
        assert not column.meaning.endswith(".")
        assert not column.choices or column.example in column.choices
        if column.name not in ("template", "use"):
            texts = {"type": "string8"} if column.name == "encoding" else {}
            row = needed | texts | {column.name: column.example}
            text = "[[tag]]\n" + "".join(f"{name} = {json.dumps(cell)}\n" for name, cell in row.items())
            assert len(read_tag_map("t.toml", text.encode(), "s", dialect).tags) == 1, text


def matches(schema: dict[str, Any], value: object) -> bool:
    """Whether a value matches the part of JSON Schema that ours uses."""
    types = {"string": str, "integer": int, "number": (int, float), "boolean": bool, "array": list, "object": dict}
    wanted = schema.get("type", list(types))
    if not any(isinstance(value, types[kind]) for kind in ([wanted] if isinstance(wanted, str) else wanted)):  # type: ignore[arg-type]
        return False
    if "anyOf" in schema and not any(matches(choice, value) for choice in schema["anyOf"]):
        return False
    if "enum" in schema and value not in schema["enum"]:
        return False
    if "pattern" in schema and not (isinstance(value, str) and re.search(schema["pattern"], value)):
        return False
    if isinstance(value, list):
        return all(matches(schema["items"], element) for element in value)
    if isinstance(value, dict):
        known = schema.get("properties", {})
        if not set(schema.get("required", ())) <= value.keys() or (
            schema.get("additionalProperties") is False and not value.keys() <= known.keys()
        ):
            return False
        return all(matches(known[name], member) for name, member in value.items() if name in known)
    return True


@pytest.mark.parametrize("protocol", DIALECTS)
def test_the_schema_is_the_columns(bsfg: Bsfg, protocol: str) -> None:
    """It has each column with its meaning and nothing else; the example file matches, and a misspelt key, a wrong
    choice and a row without its address do not."""
    schema = json.loads(bsfg("tags", "template", protocol, "--schema").stdout)
    assert schema == json_schema(DIALECTS[protocol], protocol)
    properties = schema["properties"]["tag"]["items"]["properties"]
    columns = {column.name: column.meaning for column in DIALECTS[protocol].all_columns}
    assert {name: described["description"] for name, described in properties.items()} == columns
    example = tomllib.loads(bsfg("tags", "template", protocol, "--toml").stdout)
    assert matches(schema, example)
    good = example["tag"][0]
    choice = "trigger" if protocol == "opcua" else "table"
    point = "address" if protocol == "opcua" else "register"
    for bad in (good | {"tagg": "x"}, good | {choice: "x"}, {k: v for k, v in good.items() if k != point}):
        assert not matches(schema, {"tag": [bad]})


def test_a_file_is_checked_as_its_source_reads_it(bsfg: Bsfg, tmp_path: Path) -> None:
    """By the source that has it, by the one that is named, or without a node.toml by the protocol; a tag of another
    source is refused, but not what two others share; without any of them the command says what to give."""
    (tmp_path / "node.toml").write_text(NODE + OTHER)
    (tmp_path / "m1.csv").write_text(HEADER + "a/b,holding,1,int16,,\n")
    (tmp_path / "m2.csv").write_text(HEADER + "a/c,holding,1,int16,,\n")
    (tmp_path / "new.csv").write_text(HEADER + "a/b,holding,7,int16,,\na/d,holding,70000,int16,,\n")
    assert bsfg("tags", "check", "m1.csv").stdout == "m1.csv: good; 1 tags\n"
    bad = bsfg("tags", "check", "new.csv", "--source", "m2", "--json")
    assert bad.returncode == 1
    assert [problem.partition(":")[0] for problem in json.loads(bad.stdout)["problems"]] == [
        "new.csv row 3 column register"
    ]
    (tmp_path / "new.csv").write_text(HEADER + "a/b,holding,7,int16,,\n")
    clash = bsfg("tags", "check", "new.csv", "--source", "m2")
    assert (clash.returncode, "is also in m1.csv row 2, of source m1" in clash.stdout) == (1, True)
    assert bsfg("tags", "check", "new.csv", "--source", "m1").returncode == 0
    (tmp_path / "m3.csv").write_text(HEADER + "a/c,holding,1,int16,,\n")
    (tmp_path / "node.toml").write_text(NODE + OTHER + OTHER.replace("m2", "m3"))
    assert bsfg("tags", "check", "m1.csv").stdout == "m1.csv: good; 1 tags\n"
    (tmp_path / "node.toml").write_text(NODE + OTHER)
    assert bsfg("tags", "check", "new.csv", "--protocol", "modbus", "--base", "0").returncode == 0
    for arguments, why in (
        (("new.csv",), "no source of node.toml reads new.csv"),
        (("new.csv", "--protocol", "modbus"), "--base 0, 1, 40001"),
        (("new.csv", "--protocol", "opcua", "--source", "m1"), "give one of them"),
        (("new.csv", "--source", "m9"), "no valid source 'm9'; it has m1, m2"),
    ):
        wrong = bsfg("tags", "check", *arguments)
        assert (wrong.returncode, why in wrong.stderr) == (2, True), wrong.stderr


def test_what_a_new_file_would_change(bsfg: Bsfg, tmp_path: Path) -> None:
    """Added, removed and changed tags, these by column, with a mark where a tag gets a new number; the rest is
    counted. Other formats compare too, and devices of a template by tag."""
    (tmp_path / "node.toml").write_text(NODE)
    rows = (
        "a/kept,holding,1,int16,,\na/gone,holding,2,int16,,\na/moved,holding,3,int16,,V\na/scaled,holding,4,int16,,\n"
    )
    (tmp_path / "m1.csv").write_text(HEADER + rows)
    (tmp_path / "new.toml").write_text(
        "".join(
            f'[[tag]]\ntag = "a/{name}"\ntable = "holding"\nregister = {register}\ntype = "int16"\n{more}'
            for name, register, more in (
                *(("new", 9, ""), ("kept", 1, ""), ("moved", 30, 'unit = "kV"\n'), ("scaled", 4, "scale = 0.1\n")),
            )
        )
    )
    assert bsfg("tags", "diff", "new.toml").stdout.splitlines() == [
        "+ a/new  (new.toml line 1)",
        "- a/gone",
        "~ a/moved  register: '3' -> '30', unit: 'V' -> 'kV'  (new number)",
        "~ a/scaled  scale: '' -> '0.1'",
        "m1: 1 added, 1 removed, 0 renamed, 2 changed, 1 kept",
    ]
    told = json.loads(bsfg("tags", "diff", "new.toml", "--json").stdout)
    assert (told["added"], told["removed"], told["kept"]) == (["a/new"], ["a/gone"], 1)
    assert told["changed"][0] == {
        "tag": "a/moved",
        "columns": {"register": ["3", "30"], "unit": ["V", "kV"]},
        "new_number": True,
    }
    (tmp_path / "renamed.csv").write_text(HEADER + rows.replace("a/gone", "b/new").replace("a/moved", "b/moved"))
    shown = bsfg("tags", "diff", "renamed.csv").stdout.splitlines()
    assert shown[0] == "> a/gone -> b/new  (the same value; its facts so far keep the old name)"
    assert shown[-1] == "m1: 0 added, 0 removed, 2 renamed, 0 changed, 2 kept"
    told = json.loads(bsfg("tags", "diff", "renamed.csv", "--json").stdout)
    assert (told["added"], told["renamed"]) == ([], [["a/gone", "b/new"], ["a/moved", "b/moved"]])
    (tmp_path / "bad.csv").write_text(HEADER)
    refused = bsfg("tags", "diff", "bad.csv")
    assert (refused.returncode, "holds no tags" in refused.stderr) == (1, True)
    (tmp_path / "node.toml").write_text(NODE + OTHER)
    assert "name the source whose file it would replace" in bsfg("tags", "diff", "new.toml").stderr


def test_a_list_becomes_a_tag_file(bsfg: Bsfg, tmp_path: Path) -> None:
    """The written file is good; what was not translated is listed by row with the reason, and the status says so."""
    done = bsfg(
        "tags", "import", "--from", "kepware", str(LISTS / "kepware.csv"), "--out", "t.csv", "--prefix", "hall/"
    )
    assert done.returncode == 1
    assert "6 rows of kepware.csv not translated:\n  row 10 Boiler.Curve: 400200 [10] is an array" in done.stderr
    assert "note: these registers count with address_base = 40001" in done.stderr
    assert "8 tags written to t.csv" in done.stderr
    checked = bsfg("tags", "check", "t.csv", "--protocol", "modbus", "--base", "40001")
    assert checked.stdout == "t.csv: good; 8 tags\n"
    (tmp_path / "one.csv").write_text("group,name,address,type\nm,a,1!400001,int16\n")
    for out in ((), ("--out", "-")):
        whole = bsfg("tags", "import", "--from", "neuron", "one.csv", *out)
        assert (whole.returncode, whole.stdout) == (
            0,
            "\ufefftag,unit_id,register,type,byte_order\nm/a,1,40001,int16,ABCD\n",
        )
    assert not (tmp_path / "-").exists()


@pytest.mark.parametrize(
    "arguments, code, why",
    [
        (("--from", "neuron", "missing.csv"), 1, "missing.csv cannot be read: No such file"),
        (("--from", "kepware", "list.csv"), 1, "is no export of Kepware: its first line has no column 'Tag Name'"),
        (("--from", "kepware", "s7.csv"), 1, "s7.csv has no tag that could be translated; nothing was written"),
        (("--from", "kepware", "--protocol", "opcua", "list.csv"), 2, "--device Channel1.Device1"),
        (("--from", "ignition", "--types", "missing.json", "list.csv"), 1, "missing.json cannot be read: No such file"),
        (("--from", "neuron", "--namespace", "x", "list.csv"), 2, "write NUMBER=URI"),
        (("--from", "neuron", "--encoding", "nope", "list.csv"), 2, "--encoding 'nope' is not known"),
        (("list.csv",), 2, "--from"),
    ],
)
def test_an_import_that_cannot_be_made(
    bsfg: Bsfg, tmp_path: Path, arguments: tuple[str, ...], code: int, why: str
) -> None:
    """Ends with what to do, and writes nothing."""
    (tmp_path / "list.csv").write_text("a,b\n1,2\n")
    (tmp_path / "s7.csv").write_text("Tag Name,Address,Data Type\nA,DB1.W0,Word\n")
    done = bsfg("tags", "import", "--out", "out.csv", *arguments)
    assert (done.returncode, why in done.stderr) == (code, True), done.stderr
    assert not (tmp_path / "out.csv").exists()
