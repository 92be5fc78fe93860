"""The columns that Modbus adds to a tag file, and rows that show them. Core."""

from __future__ import annotations

from agent.ingest.tags.columns import Column, Kind

COLUMNS = (
    Column("unit_id", "the unit behind the gateway; empty: unit_id of the source", "1", Kind.WHOLE),
    Column(
        "table",
        "the table of the register; not needed where its first digit names it (address_base 40001)",
        "input",
        choices=("coil", "discrete", "input", "holding"),
    ),
    Column("register", "the number of the register, counted from address_base of the source", "100", Kind.WHOLE),
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
    Column("scale", "value = register * scale + offset; empty: 1", "0.1", Kind.NUMBER),
    Column(
        "scale_register",
        "the register with the power of ten of the value (SunSpec: its scale factor), in the same table; it is read in "
        "the same request",
        "106",
        Kind.WHOLE,
    ),
    Column("offset", "see scale; empty: 0", "-40", Kind.NUMBER),
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
        choices=("utf-8", "latin-1", "utf-16", "low-byte", "high-byte", "c-string"),
    ),
    Column(
        "counter", "the value only rises and wraps: how many readings it has, or device for all of its type", "2^32"
    ),
    Column(
        "poll_interval_ms", "how often this tag is read; empty: poll_interval_ms of the source", "60000", Kind.WHOLE
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
