"""Kepware's CSV export of a device (KEPServerEX, ThingWorx Kepware Server).

Columns: Tag Name, Address, Data Type, Respect Data Type, Client Access, Scan Rate, Scaling, Raw Low, Raw High, Scaled
Low, Scaled High, Scaled Data Type, Clamp Low, Clamp High, Eng. Units, Description, Negate Value. The addresses are
those of its Modbus drivers: `40001` or `400001`, `H40001` in hexadecimal, `.5` a bit, `.20H` and `.20L` a text of so
many bytes, `[10]` an array. For OPC UA the tags of any driver are read from Kepware's own server. Core.
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
    clamp,
    factor,
    linear,
    register_cells,
    translate_rows,
)

CSV = ForeignCsv(
    "Kepware",
    required=("Tag Name", "Address", "Data Type"),
    numbers=("raw low", "raw high", "scaled low", "scaled high"),
)
NAMESPACE = "KEPServerEX"  # number 2 of its OPC UA server, in most editions
DEFAULT_SCAN_RATE_MS = "100"  # of every tag, and not used for OPC clients: no wish to poll a device ten times a second
MODBUS_TYPES = {
    "boolean": "bool",
    "short": "int16",
    "word": "uint16",
    "long": "int32",
    "dword": "uint32",
    "llong": "int64",
    "qword": "uint64",
    "float": "float32",
    "double": "float64",
    "bcd": "bcd16",
    "lbcd": "bcd32",
}
ADDRESS = re.compile(r"(?:(?P<hex>H)(?P<hex_table>[0134])(?P<hex_digits>[0-9A-F]+)|(?P<table>[0134])(?P<digits>[0-9]+))"
                     r"(?:\.(?P<part>[0-9]{1,3})(?P<half>[HL]?))?", re.IGNORECASE)  # fmt: skip


def translate(file: str, data: bytes, options: Options) -> Translation:
    """The tags of a device. Raises TagMapError for a file that is no such export."""
    rows, notes = CSV.rows(file, data, options)
    found = translate_rows(((row, cells.get("tag name", ""), cells) for row, cells in rows), options, _translated)
    found.notes += notes
    if options.protocol == "opcua" and 2 not in options.namespaces:
        found.notes.append(
            f"the tags are in the namespace {NAMESPACE}; if the server's edition has another one, such as ThingWorx Kepware"
            " Server, give --namespace 2=URI"
        )
    elif options.protocol == "modbus":
        found.notes.append(
            'the file does not hold the byte order: Kepware\'s default, first word low, is byte_order = "CDAB" of the source'
        )
    return found


def _translated(cells: Mapping[str, str], options: Options) -> tuple[Mapping[str, str], str]:
    if not cells.get("tag name"):
        raise NotTranslated("has no name")
    if cells.get("client access", "").upper() == "WO":
        raise NotTranslated("can only be written")
    namespace = options.namespaces.get(2, NAMESPACE)
    own, lost = {"address": f"nsu={namespace};s={options.device}.{cells['tag name']}"}, ""
    if options.protocol == "modbus":
        own, lost = _modbus(cells, options)
    unit = cells.get("eng units") or cells.get("eng. units", "")
    return {**own, "unit": unit, "description": cells.get("description", "")}, lost


def _modbus(cells: Mapping[str, str], options: Options) -> tuple[dict[str, str], str]:
    address, kind = cells.get("address", "").replace(" ", ""), cells.get("data type", "").lower()
    address, _, elements = address.partition("[")
    match = ADDRESS.fullmatch(address)
    if match is None:
        why = "is no address of a Modbus device; tags of other drivers are read from Kepware's OPC UA server"
        raise NotTranslated(f"{cells.get('address')!r} {why}, with --protocol opcua")
    if elements or "array" in kind:
        raise NotTranslated(f"{cells.get('address')} is an array; a tag is one value, write a row for each element")
    table, number = (
        match["table"] or match["hex_table"],
        int(match["digits"] or match["hex_digits"], 16 if match["hex"] else 10),
    )
    own = register_cells(options, table, number) | _type(match, kind)
    if (rate := cells.get("scan rate", "")) not in {"", DEFAULT_SCAN_RATE_MS}:
        own["poll_interval_ms"] = rate
    lost = [] if cells.get("client access", "RO").upper() in {"", "RO", "R", "R/W", "RW"} else [cells["client access"]]
    own |= _scaling(cells)
    clamps = [name for name in ("clamp low", "clamp high") if cells.get(name, "0") not in {"", "0"}]
    if len(clamps) == 1:  # our clamp has two ends
        lost.append(f"{clamps[0]} {cells[clamps[0]]}")
    return own, ", ".join(lost)


def _type(match: re.Match[str], kind: str) -> dict[str, str]:
    """The cells of type and byte order."""
    if match["half"] or kind == "string":
        if not match["part"]:
            raise NotTranslated("is a text without a length in its address")
        order = {"byte_order": "BADC"} if match["half"].upper() == "L" else {}
        return {"type": f"string{int(match['part'])}", **order}
    if match["part"]:
        if int(match["part"]) > 15:
            raise NotTranslated(f"bit {match['part']} does not exist; bits count from 0 to 15")
        return {"type": f"bit{int(match['part'])}"}
    if kind not in MODBUS_TYPES:
        raise NotTranslated(f"data type {kind or '(none)'} has no counterpart")
    return {"type": MODBUS_TYPES[kind]}


def _scaling(cells: Mapping[str, str]) -> dict[str, str]:
    scaling = cells.get("scaling", "").lower()
    negated = cells.get("negate value", "0") not in {"", "0"}
    if scaling in {"", "none"}:
        return factor(Fraction(-1)) if negated else {}
    if scaling != "linear":
        raise NotTranslated(f"scaling {cells['scaling']} has no counterpart; only Linear has")
    low, high = cells.get("scaled low", ""), cells.get("scaled high", "")
    if negated:
        low, high = (text.removeprefix("-") if text.startswith("-") else f"-{text or 0}" for text in (low, high))
    is_clamped = all(cells.get(name, "0") not in {"", "0"} for name in ("clamp low", "clamp high"))
    line = linear(cells.get("raw low", ""), cells.get("raw high", ""), low, high)
    return line | (clamp(low, high) if is_clamped else {})
