"""TOML tag files: the same tags and the same checks as CSV, problems with the line of their table."""

import pytest

from agent.ingest.errors import TagMapError
from agent.ingest.tags import toml_rows
from tests.ingest.tags.reading import modbus, opcua

CSV = """tag,table,register,type,byte_order,scale,offset,unit,deadband,max_interval_ms
boiler/flow,input,10,float32,CDAB,0.1,-40,m3/h,5%,60000
boiler/burner,coil,4,,,,,,,
"""
TOML = """# the boiler
[[tag]]
tag = "boiler/flow"
table = "input"
register = 10
type = "float32"
byte_order = "CDAB"
scale = 0.1
offset = -40
unit = "m3/h"
deadband = "5%"
max_interval_ms = 60_000

[[ tag ]]   # the next
tag = 'boiler/burner'
table = "coil"
register = 0x4
"""


def test_the_same_tags_as_from_csv() -> None:
    """A table is a row: definitions, rules and points are equal, and the row is the line of its table."""
    from_csv, from_toml = modbus(CSV), modbus(TOML, file="meter.toml")
    assert [(t.definition, t.rule, t.point, t.stream) for t in from_csv.tags] == [
        (t.definition, t.rule, t.point, t.stream) for t in from_toml.tags
    ]
    assert [tag.row for tag in from_toml.tags] == [2, 14]


@pytest.mark.parametrize(
    "table, line, key, why",
    [
        ('tag = "a/b"\naddress = "ns=2;s=x"', 5, "address", "by number"),
        ('tag = "a/b"\nadress = "i=1"', 5, "adress", "is not a key; did you mean address?"),
        ('tag = "a/b"\naddress = ["i=1"]', 5, "address", "must be text in quotes, a number"),
        ('tag = "a/b"\naddress = "i=1"\nmin_interval_ms = 1.5', 5, "min_interval_ms", "whole number"),
        ('tag = "a/b"\naddress = "i=1"\ndeadband = inf', 5, "deadband", "finite"),
        ('tag = "a/b"\naddress = "i=1"\nqueue_size = 0xffffffffffffffffff', 5, "queue_size", "must be text in quotes"),
        ('address = "i=1"', 5, "tag", "is empty"),
        ('tag = "ok/ok"\naddress = "i=9"', 5, "tag", "is also in line 1"),
    ],
)
def test_a_bad_value_is_named(table: str, line: int, key: str, why: str) -> None:
    """With the file, the line of its table and the key."""
    with pytest.raises(TagMapError) as caught:
        opcua(f'[[tag]]\ntag = "ok/ok"\naddress = "i=1000"\n\n[[tag]]\n{table}\n', "plc.toml")
    (problem,) = caught.value.problems
    assert (problem.file, problem.row, problem.column) == ("plc.toml", line, key)
    assert why in problem.why
    assert f"plc.toml line {line} key {key}{': ' if problem.value else ' is empty;'}" in str(caught.value)


@pytest.mark.parametrize(
    "text, why",
    [
        ("", "holds no tags"),
        ("[[tag]\n", "is not TOML"),
        ("tag = [{tag = 'a/b', address = 'i=1'}]", "one [[tag]] table for each tag"),
        ("[tag]\ntag = 'a/b'", "one [[tag]] table for each tag"),
        ("[[tags]]\ntag = 'a/b'", "is not a table of a tag file"),
        ("a = " + "[" * 100_000, "is nested too deeply"),
        ("a = " + "9" * 10_000, "is not TOML"),
    ],
)
def test_files_that_are_no_tag_file(text: str, why: str) -> None:
    """Each says what to do; none raises anything else, however hostile."""
    with pytest.raises(TagMapError, match=r"plc\.toml") as caught:
        opcua(text, "plc.toml")
    assert why in str(caught.value)


def test_text_that_looks_like_a_table_is_none() -> None:
    """Lines are counted past comments and strings over several lines that show a [[tag]]."""
    text = '# [[tag]]\n[[tag]]\ntag = "a/1"\naddress = "i=1"\nunit = """\n[[tag]]\n"""\n[[tag]]\ntag = "a/2"\naddress = "i=2"\n'
    with pytest.raises(TagMapError) as caught:
        opcua(text.replace('"i=2"', '"oops"'), "plc.toml")
    assert [problem.row for problem in caught.value.problems] == [8]
    assert [tag.row for tag in opcua(text.replace('"""\n[[tag]]\n"""', "'''[[tag]]'''"), "plc.toml").tags] == [2, 6]


def test_too_many_tables_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """The limit of a CSV file holds, with the line of the first table beyond it."""
    monkeypatch.setattr(toml_rows, "ROWS_MAX", 1)
    with pytest.raises(TagMapError, match=r"plc\.toml line 3: more than 1 tags"):
        opcua("[[tag]]\ntag = 'a/1'\n[[tag]]\ntag = 'a/2'\n", "plc.toml")
