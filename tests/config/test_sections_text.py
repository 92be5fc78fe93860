"""A node.toml that is not TOML, cut into its sections: a mistake in the notation of one costs no other."""

from codecs import BOM_UTF8

import pytest

from agent.config.sections_text import BrokenTable, read_tables

NODE = b'[node]\nzone = "plant-a"\n'
METER = b'[[modbus]]\nname = "meter"\nport = 502\n'


def without_reason(tables: object) -> object:
    """Broken tables by their names alone."""
    if isinstance(tables, BrokenTable):
        return f"broken {tables.name}".rstrip()
    if isinstance(tables, dict):
        return {name: without_reason(table) for name, table in tables.items()}
    return [without_reason(table) for table in tables] if isinstance(tables, list) else tables


GOOD = {"node": {"zone": "plant-a"}, "modbus": [{"name": "meter", "port": 502}]}


@pytest.mark.parametrize(
    "data, expected",
    [
        (NODE + METER, GOOD),
        (BOM_UTF8 + NODE + METER, GOOD),
        (BOM_UTF8 + NODE + METER + b"[store]\na\n", {**GOOD, "store": "broken"}),
        (b'[[modbus]]\nname = "boiler\n' + NODE + METER, {**GOOD, "modbus": ["broken boiler", GOOD["modbus"][0]]}),
        (NODE + METER + b'[[modbus]]\nport = = 5\nname = "boiler"', {**GOOD, "modbus": [GOOD["modbus"][0], "broken boiler"]}),
        (NODE + METER + b'[[opcua]\nname = "plc"\n', {**GOOD, "opcua": ["broken plc"]}),
        (NODE + METER + b'[[peer]]\nzone = "idmz\n', {**GOOD, "peer": ["broken idmz"]}),
        (NODE + METER + b'[[peer]]\nzone = "idmz"\nexports = ["a"\n', {**GOOD, "peer": ["broken idmz"]}),
        (NODE + METER + b"[[peer]]\nport =\n", {**GOOD, "peer": ["broken"]}),
        (NODE + METER + b"[store]\na = 1\na = 2\n", {**GOOD, "store": "broken"}),
        (NODE + METER + b"[store]\n[store]\n", {**GOOD, "store": "broken"}),
        (NODE + METER + b'[modbus]\nname = "one"\n', {**GOOD, "modbus": [*GOOD["modbus"], "broken one"]}),
        (b'[modbus]\nname = "one"\n' + NODE + METER, {**GOOD, "modbus": ["broken one", *GOOD["modbus"]]}),
        (NODE + METER + b'[[opcua]]\nname = "plc" # \xfc\n', {**GOOD, "opcua": ["broken plc"]}),
        (
            NODE + METER + b'[[peer]]\nzone = "plant-a"\nnode = "plant-a-2"\nexports = ["a"\n',
            {**GOOD, "peer": ["broken plant-a-2"]},
        ),
        (b"# ours\nzone = \n" + NODE + METER, {**GOOD, "file": "broken"}),
        (NODE + METER + b'[[peer]]\nstart = [\n {stream = "a", at = "end"},\n]\n[peer.more]\na = 1\n[store]\nb\n',
         {**GOOD, "peer": [{"start": [{"stream": "a", "at": "end"}], "more": {"a": 1}}], "store": "broken"}),
    ],
)  # fmt: skip
def test_the_other_sections_are_read(data: bytes, expected: object) -> None:
    """A missing quote, a bracket, a key or a section twice, one bracket for two, a byte that is not UTF-8, a line
    before the first header, with and without the byte order mark of editors of Windows: the section is broken, at its
    place and under its name, and everything else is what it says."""
    assert without_reason(read_tables(data)) == expected


def test_a_broken_section_names_its_line() -> None:
    """As the line is counted in the whole file."""
    (broken,) = read_tables(NODE + b'\n[[modbus]]\nname = "boiler\n' + METER)["modbus"][:1]
    assert "(at line 5, column 15)" in broken.why
