"""The columns of a row that say how a register is read."""

from collections.abc import Iterable

import pytest

from agent.ingest.errors import TagMapError
from agent.ingest.modbus.address import Register
from agent.ingest.tags.tag_map import Tag
from tests.ingest.tags.reading import modbus

HEADER = "tag,table,register,type,scale,mask,clamp,counter,poll_interval_ms\n"


def file_of(rows: Iterable[str]) -> str:
    """The tag file with these rows."""
    return HEADER + "".join(f"a/{number},{row}\n" for number, row in enumerate(rows))


def read(*rows: str) -> list[Tag]:
    """The tags of these rows, a/0 and on."""
    return list(modbus(file_of(rows), poll_interval_ms=700).tags)


def point(row: str) -> Register:
    """The register of one row."""
    (tag,) = read(row)
    assert isinstance(tag.point, Register)
    return tag.point


def test_what_a_row_may_say_of_its_register() -> None:
    """A mask in any notation, a clamp, the modulus of a counter, and an interval other than that of the source."""
    found = point("holding,1,uint16,0.1,0x0FF0,-5..100.5,,250")
    assert (found.kind.mask, found.kind.clamp, found.poll_interval_ms) == (0x0FF0, (-5, 100.5), 250)
    assert point("holding,1,uint16,,4080,,,").kind.mask == 0x0FF0
    assert point("holding,1,uint16,,,,,").poll_interval_ms == 700
    for text, modulus in (("65536", 65_536), ("2^16", 65_536), ("device", 2**32), ("10000", 10_000)):
        assert point(f"holding,1,uint32,,,,{text},").counter == modulus
    assert point("holding,1,bcd16,,,,device,").counter == 10_000
    assert point("holding,1,uint16,,0x0FF0,,device,").counter == 256


@pytest.mark.parametrize(
    "row, column, why",
    [
        ("holding,1,uint16,,0x1FFFF,,,", "mask", "more bits in its mask than the 16"),
        ("holding,1,uint16,,0,,,", "mask", "is not a mask"),
        ("holding,1,uint16,,-1,,,", "mask", "is not a mask"),
        ("holding,1,float32,,0xFF,,,", "mask", "has no mask"),
        ("coil,1,,,1,,,", "mask", "has no mask"),
        ("holding,1,uint16,,,5,,", "clamp", "is not a range"),
        ("holding,1,uint16,,,..5,,", "clamp", "is not a range"),
        ("holding,1,uint16,,,5..,,", "clamp", "is not a range"),
        ("holding,1,uint16,,,9..2,,", "clamp", "ends before it begins"),
        ("holding,1,uint16,,,2..2,,", "clamp", "ends before it begins"),
        ("holding,1,uint16,,,a..2,,", "clamp", "is not a number"),
        ("holding,1,string4,,,0..2,,", "clamp", "cannot be clamped"),
        ("holding,1,uint16,,,,2^32,", "counter", "must be 2 to 65536"),
        ("holding,1,uint16,,,,often,", "counter", "must be the number of readings"),
        (f"holding,1,uint16,,,,{'9' * 5_000},", "counter", "must be the number of readings"),
        ("holding,1,float32,,,,device,", "counter", "is for whole numbers"),
        ("holding,1,uint16,,,0..9,device,", "counter", "is for whole numbers"),
        ("holding,1,uint16,-1,,,device,", "counter", "is for whole numbers that only rise"),
        ("holding,1,uint16,,,,,5", "poll_interval_ms", "is outside 10 to 3600000"),
    ],
)
def test_what_a_row_may_not_say(row: str, column: str, why: str) -> None:
    """Each mistake names its column and what to write."""
    with pytest.raises(TagMapError) as caught:
        read(row)
    (problem,) = caught.value.problems
    assert problem.column == column
    assert why in problem.why


@pytest.mark.parametrize(
    "base, rows, note",
    [
        (0, ("holding,40112,uint16,,,,,",), "register 40112 counted from 0 is rare; {} or write 111"),
        (
            1,
            ("input,30001,uint16,,,,,", "input,30003,uint16,,,,,"),
            "register 30001 counted from 1 is rare; {} or write 1",
        ),
        (0, ("holding,112,uint16,,,,,", "input,40112,uint16,,,,,", "holding,50001,uint16,,,,,"), ""),
    ],
)
def test_a_register_of_another_count_is_doubted(base: int, rows: tuple[str, ...], note: str) -> None:
    """A number from a sheet that counts from 40001 is read far beyond the registers of most devices: it is accepted,
    because a device may have so many, and named once with what to write instead."""
    found = modbus(file_of(rows), base).notes
    first = "30001" if "input" in rows[0] else "40001"
    hint = f"if the sheet counts from {first}, set address_base = 40001 for the source,"
    assert len(found) == bool(note)
    assert all(text.endswith(note.format(hint)) for text in found), found
    assert all(("and 1 more" in text) == (len(rows) > 1) for text in found)
