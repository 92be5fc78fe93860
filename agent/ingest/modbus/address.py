"""The Modbus columns of a tag map; converts register numbers of vendor documentation into wire addresses.

The number in the `register` column counts from the source's `address_base`: 0 as on the wire, 1 when the sheet's first
register is 1, 40001 when the table is the first digit (0xxxx coils, 1xxxx discrete inputs, 3xxxx input registers, 4xxxx
holding registers; six digits reach beyond 9999). Core.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from enum import Enum

from agent.ingest.modbus.decode import ENCODINGS, ValueType, value_type, with_encoding, with_exponent
from agent.ingest.modbus.no_value import with_no_value
from agent.ingest.tags.columns import CellKind, Column
from agent.ingest.tags.sheet import CellError
from agent.ingest.tags.tag_map import Cells, Dialect, Tag
from agent.ingest.tags.templates import add_whole
from agent.settings.sources import POLL_INTERVAL_RANGE_MS, UNIT_ID_MAX, ModbusSourceSettings

ADDRESS_MAX = 65_535
NUMBER_REGISTERS_MAX = 4  # numbers are read in parts if a device allows no longer reads
_POWER, _COUNT = re.compile(r"2\^([0-9]{1,2})"), re.compile(r"[0-9]{1,20}")


class Table(Enum):
    """The four tables of a device; the value is what the tag map writes."""

    COIL = "coil"
    DISCRETE = "discrete"
    INPUT = "input"
    HOLDING = "holding"

    @property
    def is_bits(self) -> bool:
        """Whether its entries are single bits."""
        return self in (Table.COIL, Table.DISCRETE)


_TABLES = tuple(table.value for table in Table)
_TABLE_OF_DIGIT = {"0": Table.COIL, "1": Table.DISCRETE, "3": Table.INPUT, "4": Table.HOLDING}

COLUMNS = (
    Column("unit_id", "the unit behind the gateway; empty: unit_id of the source", "1", CellKind.WHOLE),
    Column(
        "table",
        "the table of the register; not needed where its first digit names it (address_base 40001)",
        "input",
        choices=_TABLES,
    ),
    Column("register", "the number of the register, counted from address_base of the source", "100", CellKind.WHOLE),
    Column(
        "type",
        "bool, bit0 to bit15, (u)int8/16/32/64, float16/32/64, bcd16/32 or string<bytes>; not needed for coils",
        "float32",
    ),
    Column(
        "byte_order",
        "the bytes of the value in the order of arrival, A the most significant; empty: byte_order of the source",
        "CDAB",
        choices=("ABCD", "CDAB", "BADC", "DCBA", "EFGHABCD", "CDABGHEF"),
    ),
    Column("scale", "value = register * scale + offset; empty: 1", "0.1", CellKind.NUMBER),
    Column(
        "scale_register",
        "the register with the power of ten of the value (SunSpec: its scale factor), in the same table; it is read in "
        "the same request",
        "106",
        CellKind.WHOLE,
    ),
    Column("offset", "see scale; empty: 0", "-40", CellKind.NUMBER),
    Column(
        "mask", "the bits of an int or uint register that are the value; they are shifted down, then scaled", "0x0FF0"
    ),
    Column(
        "clamp", "lowest and highest value after scaling; a value outside is stored as the limit, and says so", "0..100"
    ),
    Column(
        "no_value",
        "the numbers with which the device says that it has no value, as they stand in the registers: 0xFFFF|0x8000, "
        "-32768, nan, sunspec; none: all numbers are values; empty: no_value of the source",
        "0x8000",
    ),
    Column(
        "encoding",
        "of a string: utf-8, latin-1, utf-16, low-byte or high-byte (one character a register), c-string (ends at the "
        "first NUL); empty: utf-8",
        "latin-1",
        choices=tuple(ENCODINGS),
    ),
    Column(
        "counter", "the value only rises and wraps: how many readings it has, or device for all of its type", "2^32"
    ),
    Column(
        "poll_interval_ms", "how often this tag is read; empty: poll_interval_ms of the source", "60000", CellKind.WHOLE
    ),
)

EXAMPLE_ROWS = (
    {"tag": "boiler/pressure", "table": "input", "register": "1", "type": "uint16", "scale": "0.1", "unit": "bar"},
    {
        "tag": "boiler/flow",
        "table": "input",
        "register": "10",
        "type": "float32",
        "byte_order": "CDAB",
        "unit": "m3/h",
        "deadband": "0.5",
        "max_interval_ms": "60000",
    },
    {"tag": "boiler/burner", "table": "coil", "register": "4"},
    {
        "tag": "boiler/mode",
        "table": "holding",
        "register": "20",
        "type": "uint16",
        "enumeration": "0=Off|1=Manual|7=Automatic",
    },
    {
        "template": "meter",
        "tag": "{tag}/power",
        "table": "input",
        "register": "{register}+0",
        "type": "float32",
        "unit": "W",
    },
    {
        "template": "meter",
        "tag": "{tag}/energy",
        "table": "input",
        "register": "{register}+2",
        "type": "uint32",
        "unit": "Wh",
    },
    {"use": "meter", "tag": "hall1/meter1", "unit_id": "11", "register": "100"},
    {"use": "meter", "tag": "hall1/meter2", "unit_id": "12", "register": "100"},
)


@dataclass(frozen=True, slots=True)
class Register:
    """Where a value is and how it is read. `address` is the wire address, `count` is in registers or bits. `counter` is
    the modulus of a counter, before scaling; 0: the value is not a counter."""

    unit_id: int
    table: Table
    address: int
    count: int
    kind: ValueType
    poll_interval_ms: int = 1_000
    counter: int = 0

    def __hash__(self) -> int:
        return hash((self.unit_id, self.address, self.count))  # hashing all fields would take ten times as long

    @property
    def end(self) -> int:
        """The first address after the value."""
        return self.address + self.count


def dialect(settings: ModbusSourceSettings) -> Dialect:
    """The Modbus columns of a tag map, read with this source's base and defaults."""

    def read_point(cells: Cells) -> tuple[Register, str, str]:
        register = _register(cells, settings)
        written = cells.text("register")
        order = "" if register.table.is_bits else f" {register.kind.order_name}"
        mask = f" mask {register.kind.mask:#x}" if register.kind.mask else ""
        scale = cells.text("scale_register")
        mask += f" scale in {scale}" if scale else ""
        address = (
            f"unit {register.unit_id} {register.table.value} {written} (base {settings.address_base}){order}{mask}"
        )
        return register, address, register.kind.name

    def add_to_register(first: str, more: int) -> str:
        """The register `more` places further on in the same table."""
        if settings.address_base in (0, 1):
            return add_whole(first, more)
        digits = first.zfill(5)
        return digits[0] + str(int(digits[1:]) + more).zfill(len(digits) - 1)

    return Dialect(
        columns=COLUMNS,
        required=("tag", "register"),
        read_point=read_point,
        identity=_identity,
        interval_ms=lambda register: register.poll_interval_ms,
        sums={"register": add_to_register, "scale_register": add_to_register, "unit_id": add_whole},
        examples=EXAMPLE_ROWS,
        notes=lambda tags: _doubts(tags, settings.address_base),
    )


def _doubts(tags: Sequence[Tag], base: int) -> Iterator[str]:
    """Registers whose first digit is that of their table, as vendor sheets count from 40001: few devices have so many
    registers that these are meant."""
    first = {Table.INPUT: 30_001, Table.HOLDING: 40_001}
    found = [
        (tag, number)
        for tag in tags
        if base in (0, 1) and tag.point.table in first
        if 0 <= (number := tag.point.address + base) - first[tag.point.table] < 9_999
    ]
    if found:
        (tag, number), *others = found
        more = f" and {len(others):,} more" if others else ""
        place = number - first[tag.point.table] + base
        yield (
            f"row {tag.row}: {tag.name}{more}: register {number} counted from {base} is rare; if the sheet counts from "
            f"{first[tag.point.table]}, set address_base = 40001 for the source, or write {place}"
        )


def _identity(register: Register) -> Register:
    """Two registers read the same value even if their poll interval or counter differs."""
    return replace(register, poll_interval_ms=0, counter=0)


def _register(cells: Cells, settings: ModbusSourceSettings) -> Register:
    unit_id = cells.integer("unit_id", 0, UNIT_ID_MAX, settings.unit_id)
    table, address = _place(cells, settings.address_base)
    kind = _kind(cells, table, settings)
    count, limit = 1 if table.is_bits else kind.registers, settings.registers_per_read_max
    if count > max(limit, NUMBER_REGISTERS_MAX):
        raise CellError(
            "type", f"needs {count} registers, but registers_per_read_max of source {settings.name} is {limit}"
        )
    if cells.text("scale_register"):
        address, kind = _with_exponent(cells, table, address, kind, settings)
        count = max(kind.value_at + kind.registers, (kind.exponent_at or 0) + 1)
    if address + count - 1 > ADDRESS_MAX:
        raise CellError(
            "register", f"needs {count} registers from here, which is beyond the last address, {ADDRESS_MAX}"
        )
    interval_ms = cells.integer("poll_interval_ms", *POLL_INTERVAL_RANGE_MS, settings.poll_interval_ms)
    return Register(unit_id, table, address, count, kind, interval_ms, _counter(cells, kind))


def _with_exponent(
    cells: Cells, table: Table, address: int, kind: ValueType, settings: ModbusSourceSettings
) -> tuple[int, ValueType]:
    """Where a read begins that has the value and the register with its power of ten, and the type for it."""
    column, limit = "scale_register", settings.registers_per_read_max
    if cells.text("counter"):
        raise CellError(column, "makes the modulus of a counter change; leave one of both empty")
    cells_of_scale = Cells({**cells.texts, "register": cells.text(column)})
    try:
        exponent_table, exponent_at = _place(cells_of_scale, settings.address_base)
    except CellError as error:
        raise CellError(column, error.why) from error
    if exponent_table is not table:
        raise CellError(column, f"is in table {exponent_table.value}, and the value in {table.value}")
    first = min(address, exponent_at)
    if max(address + kind.registers, exponent_at + 1) - first > limit:
        raise CellError(column, f"is too far from the value for one read of {limit} registers")
    try:
        return first, with_exponent(kind, address - first, exponent_at - first)
    except ValueError as error:
        raise CellError(column, str(error)) from error


def _place(cells: Cells, base: int) -> tuple[Table, int]:
    """Table and wire address of a row."""
    if base in (0, 1):
        if not cells.text("table"):
            raise CellError("table", "is empty; write coil, discrete, input or holding")
        number = cells.integer("register", base, ADDRESS_MAX + base)
        return _table(cells), number - base
    text = cells.text("register")
    digits = text.zfill(5)
    if not text.isascii() or not text.isdigit() or len(digits) > 6 or digits[0] not in _TABLE_OF_DIGIT:
        raise CellError("register", "must be 5 or 6 digits beginning with 0, 1, 3 or 4, such as 40001")
    table, number = _TABLE_OF_DIGIT[digits[0]], int(digits[1:])
    if not 1 <= number <= ADDRESS_MAX + 1:
        raise CellError("register", f"must count from {digits[0]}0001; there is no register 0 in this notation")
    if cells.text("table") and _table(cells) is not table:
        raise CellError("table", f"contradicts register {text}, which is in table {table.value}")
    return table, number - 1


def _table(cells: Cells) -> Table:
    return Table(cells.choice("table", _TABLES))


def _kind(cells: Cells, table: Table, settings: ModbusSourceSettings) -> ValueType:
    name = cells.text("type") or ("bool" if table.is_bits else "")
    if not name:
        raise CellError("type", "is empty; write one such as int16, uint32 or float32")
    if table.is_bits and name.lower() != "bool":
        raise CellError("type", f"must be bool: an entry of table {table.value} is a single bit")
    scale = cells.number("scale", cells.text("scale"), 1)
    offset = cells.number("offset", cells.text("offset"), 0)
    if scale == 0:
        raise CellError("scale", "is 0, which would make every value the same")
    order = cells.text("byte_order").upper() or settings.byte_order
    mask, clamp = _mask(cells), _clamp(cells)
    try:
        kind = value_type(name, order, scale, offset, mask, clamp)
    except ValueError as error:
        why = str(error)
        words = {"order of": "byte_order", "scale": "scale", "mask": "mask", "clamp": "clamp"}
        raise CellError(next((words[word] for word in words if word in why), "type"), why) from error
    try:
        kind = with_no_value(kind, cells.text("no_value"), settings.no_value)
    except ValueError as error:
        raise CellError("no_value", str(error)) from error
    if cells.text("encoding"):
        try:
            return with_encoding(kind, cells.choice("encoding", tuple(ENCODINGS)))
        except ValueError as error:
            raise CellError("encoding", str(error)) from error
    return kind


def _mask(cells: Cells) -> int:
    """The mask of the bits that are the value; 0 for all."""
    text = cells.text("mask")
    try:
        mask = int(text, 0) if text else 0
    except ValueError:
        mask = -1
    if mask < 0 or (text and not mask):
        raise CellError("mask", "is not a mask; write the bits of the value as a number, such as 0x0FF0")
    return mask


def _clamp(cells: Cells) -> tuple[float, float] | None:
    """The lowest and the highest value."""
    text = cells.text("clamp")
    if not text:
        return None
    low, dots, high = (part.strip() for part in text.partition(".."))
    if not (low and dots and high):
        raise CellError("clamp", "is not a range; write the lowest and the highest value, such as 0..100")
    limits = cells.number("clamp", low, 0), cells.number("clamp", high, 0)
    if limits[0] >= limits[1]:
        raise CellError("clamp", "ends before it begins; write the lowest value first")
    return limits


def _counter(cells: Cells, kind: ValueType) -> int:
    """The modulus of a counter; 0 if the value is not a counter."""
    text = cells.text("counter").lower()
    if not text:
        return 0
    if not kind.is_integer or kind.clamp is not None or kind.scale < 0:
        raise CellError("counter", "is for whole numbers that only rise: int, uint and bcd types without a clamp")
    power = _POWER.fullmatch(text)
    if text == "device":
        return kind.modulus
    if not power and not _COUNT.fullmatch(text):
        raise CellError(
            "counter", "must be the number of readings, such as 65536 or 2^32, or device for the type's own"
        )
    modulus = 2 ** int(power[1]) if power else int(text)
    if not 2 <= modulus <= kind.modulus:
        raise CellError("counter", f"must be 2 to {kind.modulus}, which is how many readings {kind.name} can have")
    return modulus
