"""Where answers of `bsfg setup` differ from what is there: file, line, what stands there and what was answered."""

from pathlib import Path

import pytest

from agent.cli.prepare.differences import NOTHING, Difference, of_rows, of_section

FILE = Path("node.toml")
TEXT = """[node]
zone = "plant-a"
# the press
[[opcua]]
name = "press"
url = "opc.tcp://10.0.0.5:4840"  # moved in May
[[ modbus ]]
name = "boiler"
host = "10.0.0.6"
port = 502
[[modbus]]
name = "oven"
host = "10.0.0.7"
skip = [
  ["a"],
]
unit_id = 2
"""


@pytest.mark.parametrize(
    "section, name, answers, found",
    [
        ("opcua", "press", {"name": "press", "url": "opc.tcp://10.0.0.5:4840"}, []),
        (
            *("opcua", "press", {"url": "opc.tcp://10.0.0.9:4840"}),
            [Difference(FILE, 6, 'url = "opc.tcp://10.0.0.5:4840"  # moved in May', 'url = "opc.tcp://10.0.0.9:4840"')],
        ),
        ("modbus", "oven", {"host": "10.0.0.6"}, [Difference(FILE, 13, 'host = "10.0.0.7"', 'host = "10.0.0.6"')]),
        ("modbus", "boiler", {"unit_id": 3}, [Difference(FILE, 7, "[[modbus]] boiler has no unit_id", "unit_id = 3")]),
        ("modbus", "oven", {"port": 502}, [Difference(FILE, 11, "[[modbus]] oven has no port", "port = 502")]),
        (
            "modbus",
            "oven",
            {"unit_id": 3},
            [Difference(FILE, 11, "[[modbus]] oven has another unit_id", "unit_id = 3")],
        ),
    ],
)
def test_the_line_of_a_section(section: str, name: str, answers: dict[str, object], found: list[Difference]) -> None:
    """The line of that section and no other; without one of its own, where the section begins."""
    assert list(of_section(FILE, TEXT, section, "name", name, answers)) == found


def test_sections_on_one_line_are_compared_too() -> None:
    """Their lines are not found, but the difference is."""
    text = 'modbus = [{ name = "boiler", host = "10.0.0.6" }]\n'
    (found,) = of_section(FILE, text, "modbus", "name", "boiler", {"name": "boiler", "host": "h"})
    assert found == Difference(FILE, 1, "[[modbus]] boiler has another host", 'host = "h"')


def test_rows_that_differ() -> None:
    """Changed, removed and added ones, each with its line; equal ones in between are none."""
    there, answer = "tag,type\na,int16\nb,int16\nc,int16\n", "tag,type\na,uint16\nc,int16\nd,int16\n"
    file = Path("t.csv")
    assert list(of_rows(file, there, there)) == []
    assert list(of_rows(file, there, answer)) == [
        Difference(file, 2, "a,int16", "a,uint16"),
        Difference(file, 3, "b,int16", NOTHING),
        Difference(file, 5, NOTHING, "d,int16"),
    ]
    assert str(Difference(file, 3, "b,int16", NOTHING)) == "t.csv:3: b,int16; the answer is: nothing"
