"""Numbers that are no value, and texts: what a device means, or a bad sample, never something else."""

import struct
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.ingest.modbus.address import Register, Table
from agent.ingest.modbus.block import BlockDecoder
from agent.ingest.modbus.decode import ENCODINGS, DecodeError, decode, value_type, with_encoding
from agent.ingest.modbus.explore.interpretation import is_suspicious
from agent.ingest.modbus.no_value import with_no_value
from agent.ingest.modbus.read_plan import read_of
from agent.ingest.quality import BAD_DECODING_ERROR, BAD_NO_DATA_AVAILABLE, GOOD
from agent.ingest.tags.sheet import CellError
from agent.message import Value
from agent.settings.sources import ModbusSourceSettings
from tests.ingest.modbus.devices import decoded, register_of_row

SUNSPEC = ("sunspec",)


def sample(
    words: Sequence[int], name: str, cell: str = "", defaults: Sequence[str] = (), **cells: str
) -> tuple[Value, int]:
    """The value and status of a row with these cells."""
    settings = ModbusSourceSettings("m", Path("t.csv"), 0, host="h", no_value=tuple(defaults))
    (found,) = decoded(words, register_of_row(settings, register="0", type=name, no_value=cell, **cells))
    return found


@pytest.mark.parametrize(
    "name, words, cell, defaults",
    [
        ("uint16", [0xFFFF], "0xFFFF", ()),
        ("uint16", [0x8000], "0xFFFF|0x8000", ()),
        ("int16", [0x8000], "-32768", ()),
        ("int32", [0x8000, 0], "0x80000000", ()),
        ("int32", [0x7FFF, 0xFFFF], "0x7FFFFFFF 0x80000000", ()),
        ("uint64", [0xFFFF] * 4, "0xFFFFFFFFFFFFFFFF", ()),
        ("float32", [0x7FC0, 0], "nan", ()),
        ("float32", [0xFFFF, 0xFFFF], "0xFFFFFFFF", ()),
        ("float32", [0x7FC0, 0], "0xFFFFFFFF", ()),  # any NaN
        ("float32", [0xC61C, 0x3C00], "-9999", ()),
        ("bcd16", [0x9999], "9999", ()),
        ("uint8", [0x00FF], "255", ()),
        ("uint16", [0xFFFF], "", ("0xFFFF",)),
        ("int32", [0x8000, 0], "", ("0xFFFF", "0x80000000")),
        ("int16", [0x8000], "", ("int16:0x8000",)),
        ("int16", [0x8000], "", SUNSPEC),
        ("uint16", [0xFFFF], "", SUNSPEC),
        ("int32", [0x8000, 0], "", SUNSPEC),
        ("uint32", [0xFFFF, 0xFFFF], "", SUNSPEC),
        ("int64", [0x8000, 0, 0, 0], "", SUNSPEC),
        ("float32", [0x7FC0, 0], "", SUNSPEC),
        ("float64", [0x7FF8, 0, 0, 0], "", ("nan",)),
    ],
)
def test_a_number_that_is_no_value_has_a_bad_status(
    name: str, words: list[int], cell: str, defaults: tuple[str, ...]
) -> None:
    """Of a row, and of a section or profile for the types that it fits; with a scale, too."""
    assert sample(words, name, cell, defaults) == (None, BAD_NO_DATA_AVAILABLE)
    assert sample(words, name, cell, defaults, scale="0.1") == (None, BAD_NO_DATA_AVAILABLE)


@pytest.mark.parametrize(
    "name, words, cell, defaults, value",
    [
        ("uint16", [0xFFFE], "0xFFFF", (), 0xFFFE),
        ("int16", [0xFFFF], "", SUNSPEC, -1),
        ("uint16", [0x8000], "", SUNSPEC, 0x8000),
        ("uint16", [0x8000], "", ("int16:0x8000",), 0x8000),
        ("uint32", [0, 0xFFFF], "", ("0xFFFF",), 0xFFFF),  # as many bits as digits
        ("uint16", [0xFFFF], "none", SUNSPEC, 0xFFFF),
        ("uint16", [0xFFFF], "0x8000", SUNSPEC, 0xFFFF),  # a row replaces the section's
        ("float32", [0, 0], "", ("0x80000000",), 0.0),  # 0x80000000 is -0.0, which equals 0.0
        ("float32", [0x7F80, 0], "nan", (), float("inf")),
        ("bool", [0xFFFF], "", SUNSPEC, True),
        ("string2", [0x4142], "", SUNSPEC, "AB"),
        ("bcd16", [0x1234], "", SUNSPEC, 1234),
    ],
)
def test_other_numbers_are_values(
    name: str, words: list[int], cell: str, defaults: tuple[str, ...], value: object
) -> None:
    """A number is no value only for the type and length that is meant."""
    assert sample(words, name, cell, defaults) == (value, GOOD)


def test_a_masked_number_is_judged_before_its_mask() -> None:
    """The whole register is 0xFFFF: none of its bits mean anything."""
    assert sample([0xFFFF], "uint16", "", SUNSPEC, mask="0x00FF") == (None, BAD_NO_DATA_AVAILABLE)
    assert sample([0x12FF], "uint16", "", SUNSPEC, mask="0x00FF") == (0xFF, GOOD)


@pytest.mark.parametrize(
    "name, cell, why",
    [
        ("uint16", "0x10000", "no number that uint16 can be"),
        ("uint16", "-1", "no number that uint16 can be"),
        ("int16", "nan", "NaN, which int16"),
        ("uint16", "never", "is no number"),
        ("bool", "0", "is for numbers"),
        ("string4", "0xFFFF", "is for numbers"),
    ],
)
def test_what_cannot_be_no_value_is_told(name: str, cell: str, why: str) -> None:
    """With the column, when the tag file is read."""
    with pytest.raises(CellError, match=why) as refused:
        sample([0, 0], name, cell)
    assert refused.value.column == "no_value"


@pytest.mark.parametrize("text", ["sunspec", "nan", "0xFFFF", "0x8000000000000000", "int16:0x8000", "float32:nan"])
def test_settings_take_known_forms(text: str) -> None:
    """Anything else is told when the configuration is read."""
    assert not list(ModbusSourceSettings("m", Path("t.csv"), 0, host="h", no_value=(text,)).problems())
    wrong = ModbusSourceSettings("m", Path("t.csv"), 0, host="h", no_value=(text + "!", "0xFFF", "65535"))
    assert [name for name, _ in wrong.problems()] == ["no_value"] * 3


def test_types_with_the_same_numbers_share_one_object() -> None:
    """A file has thousands of tags."""
    kind = value_type("uint16", "ABCD")
    assert with_no_value(kind, "", SUNSPEC) is with_no_value(kind, "0xffff", ())
    assert with_no_value(kind, "", ()) is kind


@pytest.mark.parametrize(
    "name, value, is_odd",
    [
        ("uint16", 65535, True),
        ("uint16", 0x8000, True),
        ("int16", -1, False),
        ("int16", -32768, True),
        ("int32", 2**31 - 1, True),
        ("uint64", 2**64 - 1, True),
        ("float32", float("nan"), True),
        ("float32", 1.0, False),
        ("string4", "x", False),
    ],
)
def test_suspicious_values_are_marked(name: str, value: Value, is_odd: bool) -> None:
    """For people who look at a device for the first time."""
    assert is_suspicious(value_type(name, "ABCD"), value) is is_odd


# --- parts of registers -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name, order, mask, words, value",
    [
        ("int16", "ABCD", 0xFF00, [0xFB64], -5),
        ("uint16", "ABCD", 0xFF00, [0xFB64], 0xFB),
        ("int16", "ABCD", 0x00FF, [0xFB64], 0x64),
        ("int16", "ABCD", 0x0FF0, [0x1230], 0x23),
        ("int16", "ABCD", 0x0FF0, [0x1F30], -13),
        ("int16", "ABCD", 0x8000, [0x8000], -1),
        ("int32", "ABCD", 0xFFF00000, [0xFFF0, 0], -1),
        ("int8", "ABCD", 0, [0xFB64], 0x64),
        ("int8", "ABCD", 0, [0x64FB], -5),
        ("int8", "BADC", 0, [0xFB64], -5),
        ("uint8", "ABCD", 0, [0x64FB], 0xFB),
        ("uint8", "BADC", 0, [0xFB64], 0xFB),
        ("int8", "ABCD", 0xF0, [0x00F0], -1),
    ],
)
def test_a_part_of_a_register_has_its_own_sign(name: str, order: str, mask: int, words: list[int], value: int) -> None:
    """The highest bit of the mask is the sign of an int; int8 and uint8 are the low byte of a register, or with swapped
    bytes the high one. A block gives the same."""
    kind = value_type(name, order, mask=mask)
    assert decode(kind, words) == value
    read = read_of([Register(1, Table.HOLDING, 0, kind.registers, kind)])
    assert BlockDecoder(read, [1]).decode(struct.pack(f">{len(words)}H", *words), 0).values == [value]
    assert decode(value_type(name, order, 2, 1, mask), words) == 2 * value + 1, "the scale comes after the mask"


def test_a_byte_counts_to_256() -> None:
    """As a counter it has the modulus of its size."""
    assert value_type("uint8", "ABCD").modulus == 256


# --- texts ------------------------------------------------------------------------------------------------------------


def text(data: bytes, encoding: str, order: str = "ABCD") -> Value:
    """The text in these bytes."""
    kind = with_encoding(value_type(f"string{len(data)}", order), encoding)
    return decode(kind, struct.unpack(f">{len(data) // 2}H", data))


@pytest.mark.parametrize(
    "data, encoding, order, value",
    [
        (b"Model 7\0", "utf-8", "ABCD", "Model 7"),
        (b"\0\0Mod\0", "utf-8", "ABCD", "Mod"),
        (b"Mod\xff\xff\xff", "utf-8", "ABCD", "Mod"),
        (b"Mod   \0\0", "utf-8", "ABCD", "Mod"),
        (b"\xff\xff\xff\xff", "utf-8", "ABCD", ""),
        (b"oM\0d", "utf-8", "BADC", "Mod"),
        ("Kühl".encode() + b"\0", "utf-8", "ABCD", "Kühl"),
        (b"K\xfchl", "latin-1", "ABCD", "Kühl"),
        (b"\0M\0o\0d\0\0", "low-byte", "ABCD", "Mod"),
        (b"\xffM\xffo\xffd", "low-byte", "ABCD", "Mod"),
        (b"M\0o\0d\0\0\0", "high-byte", "ABCD", "Mod"),
        (b"M o d ", "high-byte", "ABCD", "Mod"),
        (b"\0M\0\xfc", "utf-16", "ABCD", "Mü"),
        (b"M\0\xfc\0\0\0", "utf-16", "BADC", "Mü"),
        (b"Mod\0rest", "c-string", "ABCD", "Mod"),
    ],
)
def test_a_text_is_read_in_its_encoding(data: bytes, encoding: str, order: str, value: str) -> None:
    """Padding before and behind it is left out: NUL, blanks, 0xFF."""
    assert text(data, encoding, order) == value


@pytest.mark.parametrize(
    "data, encoding",
    [
        (b"\0M\0o\0d", "utf-8"),
        (b"M\0o\0d\0", "utf-8"),
        (b"Mod\0rest", "utf-8"),
        (b"K\xfchl", "utf-8"),
        (b"Mode", "low-byte"),
        (b"Mode", "high-byte"),
        (b"\xd8\0AB", "utf-16"),
    ],
)
def test_what_cannot_be_decoded_is_bad_and_not_cut(data: bytes, encoding: str) -> None:
    """Neither an empty text nor its first letter is good."""
    with pytest.raises(DecodeError):
        text(data, encoding)
    words = struct.unpack(f">{len(data) // 2}H", data)
    assert sample(words, f"string{len(data)}", encoding=encoding) == (None, BAD_DECODING_ERROR)


@given(st.text(st.characters(min_codepoint=33, max_codepoint=0xD7FF), min_size=1, max_size=20))
def test_texts_come_back(value: str) -> None:
    """Every text without blanks at its ends, in each encoding that can write it."""
    written = {
        "utf-8": value.encode(),
        "utf-16": value.encode("utf-16-be"),
        "low-byte": b"".join(b"\0" + letter.encode("latin-1", "replace") for letter in value),
    }
    for encoding, data in written.items():
        if encoding == "low-byte" and not value.isascii():
            continue
        assert text(data + b"\0" * (len(data) % 2), encoding) == value


def test_an_encoding_is_for_texts() -> None:
    """And is one of those that are known."""
    with pytest.raises(CellError, match="is for strings") as refused:
        sample([0], "uint16", encoding="latin-1")
    assert refused.value.column == "encoding"
    with pytest.raises(CellError, match="must be one of") as refused:
        sample([0], "string2", encoding="ebcdic")
    assert set(ENCODINGS) <= set(refused.value.why.removeprefix("must be one of ").split(", "))
