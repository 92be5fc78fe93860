"""Neuron's tag list (EMQX Neuron), its Excel sheet saved as CSV.

Columns: group, interval, name, address, attribute, type, description, decimal, precision, bias. Modbus addresses are
`SLAVE!ADDRESS[.BIT][#ENDIAN][.LEN[H][L][D][E]]`, such as `1!400001`, `1!400010.4`, `1!300004#BL`, `1!400001.10H`; OPC
UA addresses are `NAMESPACE!NODEID`. Core.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from fractions import Fraction

from agent.ingest.tags.foreign.translation import (
    ForeignCsv,
    NotTranslated,
    Options,
    Translation,
    factor,
    node_address,
    number,
    register_cells,
    translate_rows,
)

CSV = ForeignCsv("Neuron", required=("group", "name", "address", "type"), numbers=("decimal", "bias"))
MODBUS_TYPES = {
    "int16": "int16",
    "uint16": "uint16",
    "word": "uint16",
    "int32": "int32",
    "uint32": "uint32",
    "dword": "uint32",
    "int64": "int64",
    "uint64": "uint64",
    "lword": "uint64",
    "float": "float32",
    "double": "float64",
}
ORDERS = {"LL": "ABCD", "LB": "BADC", "BL": "CDAB", "BB": "DCBA"}
ORDERS_OF_EIGHT_BYTES = {**ORDERS, "L": "ABCD", "B": "DCBA", "WS": "CDABGHEF", "WR": "EFGHABCD"}
ADDRESS = re.compile(
    r"(?P<unit>[0-9]{1,3})!(?P<table>[0-9])(?P<number>0*[0-9]{1,5})(?:\.(?P<part>[0-9]{1,3}))?(?:#(?P<endian>[BL]{1,2}|WS|WR))?"
    r"(?:\.(?P<length>[0-9]{1,3}))?(?P<half>[HLDE]?)"
)


def translate(file: str, data: bytes, options: Options) -> Translation:
    """The tags of a node. Raises TagMapError for a file that is no such list."""
    rows, notes = CSV.rows(file, data, options)
    found = translate_rows(((row, _name(cells), cells) for row, cells in rows), options, _translated)
    found.notes += notes
    if options.protocol == "modbus":
        found.notes.append(
            "numbers of 4 and 8 bytes without #.. in their address follow the node's endianness: set byte_order of the source;"
            " texts without H or L are read as by Neuron's driver, high byte first, though its manual says L"
        )
    return found


def _name(cells: Mapping[str, str]) -> str:
    return "/".join(part for part in (cells.get("group", ""), cells.get("name", "")) if part)


def _translated(cells: Mapping[str, str], options: Options) -> tuple[Mapping[str, str], str]:
    if not cells.get("name"):
        raise NotTranslated("has no name")
    attributes = set(re.split(r"[\s,/|]+", cells.get("attribute", "Read").lower()))
    if not attributes & {"read", "subscribe"}:
        raise NotTranslated(f"attribute {cells['attribute']}: its value is not read from the device")
    own = _modbus(cells, options) if options.protocol == "modbus" else _opcua(cells, options)
    precision = cells.get("precision", "")
    lost = "" if precision in {"", "0"} else f"precision {precision}; values are not rounded here"
    return {**own, "description": cells.get("description", "")}, lost


def _modbus(cells: Mapping[str, str], options: Options) -> dict[str, str]:
    address, kind = cells.get("address", "").replace(" ", ""), cells.get("type", "").lower()
    match = ADDRESS.fullmatch(address)
    if match is None:
        raise NotTranslated(f"{cells.get('address')!r} is no Modbus address such as 1!400001")
    own = {"unit_id": match["unit"], **register_cells(options, match["table"], int(match["number"]))}
    own |= _type(match, kind)
    if rate := cells.get("interval", ""):
        own["poll_interval_ms"] = rate
    return own | _scaling(cells)


def _opcua(cells: Mapping[str, str], options: Options) -> dict[str, str]:
    namespace, separator, identifier = cells.get("address", "").partition("!")
    if not separator or not namespace.isdigit() or not identifier:
        raise NotTranslated(f"{cells.get('address')!r} is no OPC UA address such as 2!Device1.Tag1")
    if _scaling(cells):
        raise NotTranslated("has decimal or bias: values of OPC UA are recorded as the server gives them")
    node = f"i={identifier}" if identifier.isdigit() else f"s={identifier}"
    return {"address": node_address(options, int(namespace), node)}


def _type(match: re.Match[str], kind: str) -> dict[str, str]:
    """The cells of type and byte order."""
    if kind == "string":
        length = match["length"] or match["part"]
        if not length:
            raise NotTranslated("is a text without a length in its address")
        if match["half"] in ("D", "E"):
            raise NotTranslated(f"holds one byte in each register ({match['half']}), which has no counterpart")
        return {"type": f"string{int(length)}", "byte_order": "BADC" if match["half"] == "L" else "ABCD"}
    if kind == "bit":
        is_bit_table = match["table"] in ("0", "1")
        return {} if is_bit_table else {"type": f"bit{int(match['part'] or 0)}", "byte_order": "ABCD"}
    if kind not in MODBUS_TYPES or match["part"] or match["length"]:
        raise NotTranslated(f"type {kind or '(none)'} at {match[0]} has no counterpart")
    return {"type": MODBUS_TYPES[kind], "byte_order": _order(MODBUS_TYPES[kind], match["endian"] or "")}


def _order(kind: str, endian: str) -> str:
    """The byte order of a number, empty if it is that of the node, which does not apply to two bytes."""
    if kind.endswith("16"):
        return "BADC" if endian.startswith("B") else "ABCD"
    return (ORDERS_OF_EIGHT_BYTES if kind.endswith("64") else ORDERS).get(endian, "")


def _scaling(cells: Mapping[str, str]) -> dict[str, str]:
    """The multiplier of a tag, of which 0 stands for none, and what is added, as cells."""
    return factor(number(cells.get("decimal", "")) or Fraction(1), number(cells.get("bias", "")))
