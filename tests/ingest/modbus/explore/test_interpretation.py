"""What registers can mean, and which meaning equals the panel: against words that are packed here, not by the
product."""

import random
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.ingest.modbus.address import ADDRESS_MAX, Table
from agent.ingest.modbus.decode import ORDERS, decode, value_type
from agent.ingest.modbus.explore.interpretation import (
    WIDEST,
    candidates,
    doubts,
    interpretations,
    moved,
    parse_wanted,
    ranges_to_try,
    ranked,
    tag_row,
)
from tests.ingest.modbus.devices import FORMATS, words_on_the_wire

EVERY = [(name, order) for name, form in FORMATS.items() for order in ORDERS[struct.calcsize(form)]]


def words_of(name: str, order: str, value: float) -> list[int]:
    """The words of a device that holds this value."""
    return words_on_the_wire(struct.pack(FORMATS[name], value), order)


def at(address: int, *words: int) -> dict[int, int]:
    """These words from an address on."""
    return {address + place: word for place, word in enumerate(words)}


@pytest.mark.parametrize("name, order", EVERY)
def test_every_type_and_order_is_found(name: str, order: str) -> None:
    """A value held in any type and order is among the exact candidates, and the row that is printed for it reads it."""
    value = -12.5 if name.startswith("float") else 12_345
    words = at(100, *words_of(name, order, value))
    found = [hit for hit in candidates(words, Table.HOLDING, 100, 1, parse_wanted(str(value))) if hit.is_exact]
    fitting = [hit for hit in found if name in (hit.found.kind.name, *hit.also) and hit.found.kind.order_name == order]
    assert fitting, found
    row = tag_row(fitting[0].found, 1, 0, "meter")
    assert (row["register"], row["scale"]) == ("100", "")
    kind = value_type(row["type"], row["byte_order"])
    assert decode(kind, [words[100 + place] for place in range(kind.registers)]) == value


@given(st.sampled_from(EVERY), st.integers(1, 30_000), st.sampled_from([-3, -2, -1, 1, 2]))
def test_a_scaled_value_is_found_with_its_scale(kind: tuple[str, str], raw: int, power: int) -> None:
    """A device that holds tenths, or hundreds, is found with the scale, and the row with that scale gives the value of
    the panel."""
    name, order = kind
    if name == "float16" and raw > 2_048:
        return  # it does not hold every such number
    wanted = raw * 10**power if power > 0 else raw / 10**-power
    words = at(7, *words_of(name, order, raw))
    met = candidates(words, Table.INPUT, 7, 1, parse_wanted(repr(wanted)))
    scales = {
        hit.found.kind.scale: hit.found.value
        for hit in met
        if name in (hit.found.kind.name, *hit.also) and hit.found.kind.order_name == order
    }
    assert scales[10**power] == wanted


def test_one_off_with_the_wrong_word_order_is_recognised() -> None:
    """influxdata/telegraf#8151: three mains voltages, low word first. Asked one register off, the reading with the high
    word first is within 1 %, and so plausible; the true one is exact, comes first, and the doubt is told."""
    voltages = (231.4, 229.8, 233.1)
    words = at(100, *(word for volts in voltages for word in words_of("float32", "CDAB", volts)))
    found = ranked(candidates(words, Table.INPUT, 101, 1, parse_wanted("231.4")))
    readings = [(hit.found.address, hit.found.kind.order_name, hit.is_asked) for hit in found[:2]]
    assert readings == [(100, "CDAB", False), (101, "ABCD", True)]
    assert 0.0001 < found[1].error < 0.01
    remarks = doubts(found, parse_wanted("231.4"))
    assert [remark.partition(" share a register")[0] for remark in remarks if "share a register" in remark] == [
        "float32 CDAB at wire address 100 and float32 ABCD at wire address 101"
    ]
    apart = ranked(candidates(at(0, 0, 2_314), Table.INPUT, 0, 2, parse_wanted("231.4")))
    assert len(apart) > 1
    assert not any("share a register" in remark for remark in doubts(apart, parse_wanted("231.4")))
    tight = ranked(candidates(words, Table.INPUT, 101, 1, parse_wanted("231.4", "0.1%")))
    assert [hit.found.address for hit in tight] == [100]
    assert doubts(tight, parse_wanted("231.4", "0.1%")) == []


def test_a_rare_type_does_not_come_first_by_chance() -> None:
    """A word whose bytes, turned around, are decimal digits that show the very value stays behind a plain reading that
    is within the tolerance."""
    found = ranked(candidates(at(0, 2_339), Table.INPUT, 0, 1, parse_wanted("231", "3%")))
    assert [hit.is_exact for hit in found] == [False, True]
    assert [hit.found.kind.name for hit in found] == ["uint16", "bcd16"]
    assert found[0].also == ("int16",)


def test_a_tolerance_of_nothing_still_allows_the_rounding_of_the_panel() -> None:
    """231.4 on the panel may be 231.44 in the register, and is not 231.46."""
    for value, is_met in ((231.44, True), (231.46, False)):
        words = at(0, *words_of("float32", "ABCD", value))
        found = list(candidates(words, Table.INPUT, 0, 1, parse_wanted("231.4", "0")))
        assert bool(found) is is_met


def test_zero_is_no_evidence() -> None:
    """A panel that shows 0 is met by many readings, which is told; no scale is made up for 0."""
    wanted = parse_wanted("0")
    found = ranked(candidates(at(0, 0, 0, 0, 0), Table.INPUT, 0, 1, wanted))
    assert {hit.found.kind.scale for hit in found} == {1}
    assert "shows another value" in doubts(found, wanted)[0]


def test_a_text_is_found_in_both_orders() -> None:
    """A model name, also with the bytes of each word turned, also one register off."""
    for data, order in ((b"PM-1", "AB"), (b"MP1-", "BA")):
        words = at(50, int.from_bytes(data[:2], "big"), int.from_bytes(data[2:], "big"))
        for asked in (50, 51):
            found = list(candidates(words, Table.HOLDING, asked, 1, parse_wanted("PM-1")))
            assert [(hit.found.address, hit.found.kind.order_name) for hit in found] == [(50, order)]


@pytest.mark.parametrize("text, tolerance", [("231,4", "1%"), ("1 234", "1%"), ("nan", "1%"), ("2", "a"), ("2", "-1")])
def test_what_is_no_number_is_refused(text: str, tolerance: str) -> None:
    """A decimal comma would otherwise be searched for as a text, and found nowhere."""
    with pytest.raises(ValueError, match=r"write|finite|0 or more"):
        parse_wanted(text, tolerance)


@given(st.integers(0, ADDRESS_MAX), st.integers(1, 32))
def test_the_reads_of_a_probe_cover_what_it_interprets(address: int, count: int) -> None:
    """The first read holds all registers that any reading needs, one register off included; all lie in the table, and
    their number is bounded."""
    count = min(count, ADDRESS_MAX + 1 - address)
    reads = list(ranges_to_try(address, count))
    assert all(first >= 0 and length >= 1 and first + length <= ADDRESS_MAX + 1 for first, length in reads)
    assert len(reads) <= 1 + 4 * (count + 4)
    first, length = reads[0]
    needed = range(max(0, address - 1), min(ADDRESS_MAX + 1, address + count + WIDEST))
    assert set(needed) == set(range(first, first + length))


def test_movement_distinguishes_constant_words_from_live_ones() -> None:
    """Over several looks the values of a reading, and which of its addresses changed."""
    looks = [at(5, 0x4000 + seconds, 7, seconds) for seconds in range(3)]
    found = next(reading for reading in interpretations(looks[0], Table.INPUT, 5) if reading.kind.name == "uint32")
    values, changed = moved(looks, found)
    assert values == [(0x4000 + seconds) << 16 | 7 for seconds in range(3)]
    assert changed == {5}


def test_random_words_rarely_meet_a_value() -> None:
    """Most windows of random words meet a value nowhere: what is met is evidence. One in twelve does by chance, nearly
    always in another power of ten; the seed is fixed."""
    chance = random.Random(8151)
    wanted = parse_wanted("231.4")
    met = 0
    for _ in range(240):
        words = {place: chance.randrange(65_536) for place in range(8)}
        met += any(True for _ in candidates(words, Table.INPUT, 1, 1, wanted))
    assert met < 40, met


@pytest.mark.parametrize(
    "words, encoding",
    [
        ([0x4D6F, 0x6465, 0x6C00], ""),
        ([0x004D, 0x006F, 0x0064, 0x0065, 0x006C, 0], "low-byte"),
        ([0x4D00, 0x6F00, 0x6400, 0x6500, 0x6C00, 0], "high-byte"),
        ([0, 0x4D6F, 0x6465, 0x6CFF, 0xFFFF], ""),
    ],
)
def test_a_text_is_found_in_every_encoding(words: list[int], encoding: str) -> None:
    """The row to paste names the encoding, and reads the text that was asked for."""
    found = ranked(candidates(dict(enumerate(words, 100)), Table.HOLDING, 100, len(words), parse_wanted("Model")))
    assert found
    assert tag_row(found[0].found, 1, 0, "m").get("encoding", "") == encoding
    assert found[0].found.value == "Model"
