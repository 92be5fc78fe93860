"""Templates: like devices written once, in both formats, with errors that name device and template."""

import pytest

from agent.ingest.errors import TagMapError
from agent.ingest.tags.tag_map import TagMap
from tests.ingest.tags.reading import modbus, opcua

HEADER = "template,use,tag,unit_id,table,register,type,unit,description\n"
METER = (
    "meter,,{tag}/power,,input,{register}+0,float32,W,Power of {description}\n"
    "meter,,{tag}/energy,,input,{register}+2,uint32,Wh,\n"
)


def tags_of(rows: str, base: int = 0) -> TagMap:
    """The tag map of these rows."""
    return modbus(HEADER + rows, base, "meters.csv")


def problems(rows: str, base: int = 0) -> list[str]:
    """What is wrong with these rows."""
    with pytest.raises(TagMapError) as caught:
        tags_of(rows, base)
    return [str(problem) for problem in caught.value.problems]


def test_a_device_is_every_row_of_its_template() -> None:
    """Placeholders are the device's cells, sums are added, empty cells are taken from the device; plain rows stay."""
    rows = METER + "plain/t,,plain/t,,holding,7,int16,,\n".replace("plain/t,,", ",,", 1)
    rows += ",meter,hall1/m1,11,,100,,,main feed\n,meter,hall1/m2,12,,200,,,pump\n"
    tags = tags_of(rows).tags
    found = [
        (t.definition.subject[4:], t.point.unit_id, t.point.address, t.point.kind.name, t.definition.description)
        for t in tags
    ]
    assert found == [
        ("plain/t", 1, 7, "int16", ""),
        ("hall1/m1/power", 11, 100, "float32", "Power of main feed"),
        ("hall1/m1/energy", 11, 102, "uint32", "main feed"),
        ("hall1/m2/power", 12, 200, "float32", "Power of pump"),
        ("hall1/m2/energy", 12, 202, "uint32", "pump"),
    ]
    assert [(tag.row, tag.template_row) for tag in tags] == [(4, 0), (5, 2), (5, 3), (6, 2), (6, 3)]


def test_the_same_in_toml_and_for_opcua() -> None:
    """The keys are the columns; an address is made of the device's address."""
    text = (
        '[[tag]]\ntemplate = "drive"\ntag = "{tag}/speed"\naddress = "nsu=urn:plc;s={address}.Speed"\n'
        '[[tag]]\nuse = "drive"\ntag = "line1/d1"\naddress = "Drives[1]"\n'
    )
    (tag,) = opcua(text, "drives.toml").tags
    assert (tag.definition.subject, tag.definition.address) == ("tag:line1/d1/speed", "nsu=urn:plc;s=Drives[1].Speed")
    assert (tag.row, tag.template_row) == (5, 1)


@pytest.mark.parametrize(
    "base, register, plus, expected",
    [
        (1, "100", "2", "unit 1 input 102 (base 1) ABCD"),
        (1, "100", "2 + 30+4", "unit 1 input 136 (base 1) ABCD"),
        (40001, "30009", "2", "unit 1 input 30011 (base 40001) ABCD"),
        (40001, "39999", "2", "unit 1 input 310001 (base 40001) ABCD"),  # not 40001, which is a holding register
        (40001, "300009", "2", "unit 1 input 300011 (base 40001) ABCD"),
    ],
)
def test_a_sum_stays_in_its_table(base: int, register: str, plus: str, expected: str) -> None:
    """Also in the notation whose first digit is the table."""
    table = "" if base == 40001 else "input"
    rows = f"m,,{{tag}}/x,,{table},{{register}}+{plus},float32,,\n,m,a/b,,,{register},,,\n"
    (tag,) = tags_of(rows, base).tags
    assert tag.definition.address == expected


@pytest.mark.parametrize(
    "rows, expected",
    [
        (",metre,a/b,,,0,,,x\n", ["row 4 column use: 'metre' is no template of this file; did you mean meter?"]),
        (",meter,a/b,,,0,,,\n", ["row 4 (template row 2) column description: 'Power of {description}' needs the cell"]),
        (
            ",meter,a/b,,,,,,x\n",
            ["(template row 2) column register: '{register}+0' needs the cell", "(template row 3)"],
        ),
        (",meter,a/b,,,4x,,,x\n", ["gives '4x+0' here, which is not a sum of whole numbers", "gives '4x+2'"]),
        (",meter,a/b,,,65535,,,x\n", ["row 4 (template row 2) column register: '65535' needs 2", "outside 0 to 65535"]),
        (",meter,a/b,300,,0,,,x\n", ["(template row 2) column unit_id: '300' is outside", "(template row 3)"]),
        (",meter,a/b,,,0,int16,,x\n", ["row 4 column type: 'int16' has no effect: every row of the template has its"]),
        (
            ",meter,a/b,,,0,,,x\n,meter,a/b,2,,0,,,x\n",
            [
                "row 5 (template row 2) column tag: 'a/b/power' is also in row 4 (template row 2)",
                "row 5 (template row 3)",
            ],
        ),
        ("m,,{tag}/x,,input,{registers},int16,,\n,m,a/b,,,0,,,\n", ["names {registers}, which is not a column"]),
        ("m,,x/y,,input,1,int16,,\n,m,a/b,,,0,,,\n", ["must hold {tag}"]),
        ("m,meter,{tag}/y,,input,1,int16,,\n,m,a/b,,,0,,,\n", ["a row of a template uses no template"]),
    ],
)
def test_mistakes_name_device_and_template(rows: str, expected: list[str]) -> None:
    """Each is told with the rows that it concerns and what to do; nothing is left out in silence."""
    found = problems(METER + rows)
    assert len(found) == len(expected), found
    for problem, part in zip(found, expected, strict=True):
        assert part in problem


def test_a_mistake_in_a_template_is_reported_once() -> None:
    """Not for each of 200 devices."""
    rows = "m,,{tag}/x,,input,{register},flaot32,,\n" + "".join(f",m,a/{n},,,{n},,,\n" for n in range(200))
    (problem,) = problems(rows)
    assert problem.startswith("meters.csv row 3 (template row 2) column type: 'flaot32' is not a type")
    assert problem.endswith("(and 199 more devices)")


def test_a_template_without_device_is_noted() -> None:
    """It reads nothing, which is worth a look, and no error."""
    found = tags_of(METER + ",,a/b,,input,0,int16,,\n")
    assert found.notes == ("meters.csv: no row uses the template meter",)


def test_no_bomb_goes_off() -> None:
    """A file that would be millions of tags, or gigabytes of text, is refused before it is written out."""
    many = "".join(f"m,,{{tag}}/{n},,input,{n},int16,,\n" for n in range(1_000))
    found = problems(many + "".join(f",m,a/{n},{n % 200},,,,,\n" for n in range(10_000)))
    assert found == ["meters.csv: more than 50000 tags with all devices written out; split the source"]
    long = "m,,{tag}/x,,input,1,int16,," + "{description}" * 5_000 + "\n"
    found = problems(long + ",m,a/b,,,,,," + "x" * 100_000 + "\n")
    assert found == ["meters.csv row 3: is larger than 16777216 bytes with all devices written out; split the source"]
