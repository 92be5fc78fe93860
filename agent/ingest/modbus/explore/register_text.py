"""Parses registers as they are written in a command: `[TABLE:]REGISTER[-LAST][:TYPE[:ORDER]]`, such as `holding:100`,
`40101:float32:CDAB` or `input:0-9`. Numbers count from the `address_base` of the source. Core.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

from agent.ingest.modbus.address import Register, Table, dialect
from agent.ingest.tags.sheet import CellError
from agent.ingest.tags.tag_map import Cells
from agent.settings.sources import ModbusSourceSettings

WITH_TABLE = 40_001  # the base in which the first digit names the table
VALUES_MAX = 2_000  # of one argument; a slow device gives as many in a minute
_RANGE = re.compile(r"(\d+)(?:-(\d+))?")
_DIGITS = {Table.COIL: "0", Table.DISCRETE: "1", Table.INPUT: "3", Table.HOLDING: "4"}


@dataclass(frozen=True, slots=True)
class RegisterRange:
    """`count` entries of a table from wire address `address`, which the command writes as `number`."""

    table: Table
    address: int
    count: int
    number: int


def parse_ranges(text: str, settings: ModbusSourceSettings) -> list[RegisterRange]:
    """The registers of a text without a type. Without a table there are two ranges: input and holding registers. Raises
    ValueError with what to write."""
    table, first, last, rest = _parts(text)
    if rest:
        raise ValueError(f"{text!r} names a type, and all types are tried here; write it without")
    if table or settings.address_base == WITH_TABLE:
        return [_place(table, first, last, settings)]
    return [_place(table.value, first, last, settings) for table in (Table.INPUT, Table.HOLDING)]


def parse_registers(text: str, settings: ModbusSourceSettings) -> list[Register]:
    """The values of a text: one, or as many of its type as fit between two registers. The default type is uint16.
    Raises ValueError with what to write."""
    table, first, last, rest = _parts(text)
    if not table and settings.address_base != WITH_TABLE:
        raise ValueError(f"{text!r} names no table; write holding:{first} (or input, coil, discrete)")
    place = _place(table, first, last, settings)
    kind = rest[0] if rest else "" if place.table.is_bits else "uint16"
    order = rest[1] if len(rest) > 1 else ""
    register = _register({"table": table, "register": first, "type": kind, "byte_order": order}, settings)
    count = max(1, place.count // register.count)
    if count > VALUES_MAX:
        raise ValueError(f"{text!r} are {count:,} values; name at most {VALUES_MAX:,}")
    return [replace(register, address=register.address + index * register.count) for index in range(count)]


def register_text(table: Table, address: int, base: int) -> str:
    """A wire address as a tag file with this address base writes it."""
    if base != WITH_TABLE:
        return str(address + base)
    return f"{_DIGITS[table]}{address + 1:0{4 if address < 9_999 else 5}d}"


def span_text(table: Table, first: int, end: int, base: int) -> str:
    """The same for the wire addresses from `first` to `end`, which is excluded."""
    texts = dict.fromkeys(register_text(table, address, base) for address in (first, end - 1))
    return "-".join(texts)


def base_hint(number: int, base: int, address: int) -> str:
    """The address base with which register `number` would be at this wire address, as a hint; empty if there is
    none."""
    other_base = {(0, -1): 1, (1, 0): 0}.get((base, address - number))
    if other_base is None:
        return ""
    return f"as if counted from {other_base} (address_base = {other_base})"


def _parts(text: str) -> tuple[str, str, str, list[str]]:
    """Table, first and last number, and the rest."""
    words = text.strip().split(":")
    table = words.pop(0).lower() if words[0].lower() in {known.value for known in Table} else ""
    match = _RANGE.fullmatch(words.pop(0)) if words else None
    if match is None or len(words) > 2:
        raise ValueError(
            f"{text!r} is no register; write [TABLE:]REGISTER[-LAST][:TYPE[:ORDER]], as holding:100:float32"
        )
    return table, match[1], match[2] or match[1], words


def _place(table: str, first: str, last: str, settings: ModbusSourceSettings) -> RegisterRange:
    has_digit = settings.address_base == WITH_TABLE and first.zfill(5)[0] in "01"
    kind = "" if has_digit or table in {Table.COIL.value, Table.DISCRETE.value} else "uint16"
    begin, end = (_register({"table": table, "type": kind, "register": number}, settings) for number in (first, last))
    if end.address < begin.address or end.table is not begin.table:
        raise ValueError(f"{first}-{last} does not run upwards within one table")
    return RegisterRange(begin.table, begin.address, end.address - begin.address + 1, int(first))


def _register(cells: dict[str, str], settings: ModbusSourceSettings) -> Register:
    """The register that a row with these cells reads."""
    try:
        register, _, _ = dialect(settings).read_point(Cells(cells))
    except CellError as error:
        raise ValueError(f"{error.column} {cells.get(error.column, '')!r} {error.why}") from error
    assert isinstance(register, Register), "of the Modbus dialect"
    return register
