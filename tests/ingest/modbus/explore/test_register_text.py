"""Registers as a person names them."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.ingest.modbus.address import ADDRESS_MAX, Table
from agent.ingest.modbus.explore.register_text import (
    VALUES_MAX,
    base_hint,
    parse_ranges,
    parse_registers,
    register_text,
)
from agent.settings.sources import ModbusSourceSettings

SETTINGS = {base: ModbusSourceSettings("meter", Path("t.csv"), base) for base in (0, 1, 40_001)}


@given(st.sampled_from(Table), st.integers(0, ADDRESS_MAX), st.sampled_from([0, 1, 40_001]))
def test_what_is_printed_is_read_back(table: Table, address: int, base: int) -> None:
    """A register as the commands print it means the same address when it is typed, in each base."""
    text = register_text(table, address, base)
    (register,) = parse_registers(text if base == 40_001 else f"{table.value}:{text}", SETTINGS[base])
    assert (register.table, register.address) == (table, address)


def test_without_a_table_both_register_tables_are_meant() -> None:
    """A manual that says only a number leaves two tables to look at; in base 40001 the digit says it."""
    found = parse_ranges("100-103", SETTINGS[1])
    assert [(part.table, part.address, part.count, part.number) for part in found] == [
        (Table.INPUT, 99, 4, 100),
        (Table.HOLDING, 99, 4, 100),
    ]
    (place,) = parse_ranges("30100", SETTINGS[40_001])
    assert (place.table, place.address) == (Table.INPUT, 99)


def test_a_range_holds_as_many_values_as_fit() -> None:
    """Of registers 10 to 15 there are three floats, in the order that was given; bits need no type."""
    found = parse_registers("holding:10-15:float32:CDAB", SETTINGS[0])
    assert [(value.address, value.count, value.kind.order_name) for value in found] == [
        (n, 2, "CDAB") for n in (10, 12, 14)
    ]
    assert len(parse_registers("00001-00008", SETTINGS[40_001])) == 8
    assert len(parse_registers("input:3:float64", SETTINGS[0])) == 1


@pytest.mark.parametrize(
    "text, base, why",
    [
        ("5", 0, "names no table; write holding:5"),
        ("x:5", 0, "is no register; write"),
        ("holding", 0, "is no register; write"),
        ("holding:1:int16:AB:x", 0, "is no register; write"),
        ("holding:0", 1, "is outside 1 to 65536"),
        ("holding:70000", 0, "is outside 0 to 65535"),
        ("holding:9-5", 0, "does not run upwards"),
        ("30001-40005", 40_001, "within one table"),
        ("50001", 40_001, "beginning with 0, 1, 3 or 4"),
        ("holding:1:real", 0, "is not a type; known are"),
        ("holding:1:int32:AB", 0, "is not an order of 4 bytes"),
        ("coil:1:int16", 0, "must be bool"),
        (f"holding:0-{VALUES_MAX}", 0, "name at most"),
    ],
)
def test_what_cannot_be_meant_is_refused_with_what_to_write(text: str, base: int, why: str) -> None:
    """Each wrong form has its own words."""
    with pytest.raises(ValueError, match=why):
        parse_registers(text, SETTINGS[base])


def test_a_type_has_no_place_where_all_are_tried() -> None:
    """`probe` tries every type, so one that is named is refused and not ignored."""
    with pytest.raises(ValueError, match="all types are tried"):
        parse_ranges("holding:1:int16", SETTINGS[0])


def test_the_base_that_explains_an_address_that_is_one_off() -> None:
    """Counting from 1 where 0 was said is the register before, counting from 0 where 1 was said the one behind; nothing
    else is explained."""
    assert "address_base = 1" in base_hint(17, 0, 16)
    assert "address_base = 0" in base_hint(17, 1, 17)
    assert [base_hint(17, 0, 18), base_hint(17, 1, 15), base_hint(40_017, 40_001, 15), base_hint(17, 0, 17)] == [""] * 4
