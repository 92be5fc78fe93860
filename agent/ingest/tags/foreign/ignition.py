"""Ignition's tag export: JSON of 8.x, CSV of 7.x.

An OPC tag has an `opcItemPath`. For a device of the Modbus driver that is `[Device]HR1`, possibly with a unit
(`[Device]3.HR1`), a type (`HRF`, `HRUI`), a bit (`HR1.0`) or the length of a text (`HRS27:40`). For another OPC UA
server it is a node id. UDT instances are expanded: settings and parameters are merged along the chain of types and of
the instances around them, and a tag whose settings hold a reference without a value is refused. Core.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from fractions import Fraction

from agent.ingest.errors import TagFileProblem, TagMapError
from agent.ingest.tags.foreign.ignition_udt import REFERENCE, IgnitionExport
from agent.ingest.tags.foreign.translation import (
    ForeignCsv,
    ForeignRow,
    NotTranslated,
    Options,
    Remark,
    Translation,
    clamp,
    linear,
    node_address,
    number,
    register_cells,
    translate_rows,
)
from agent.ingest.tags.sheet import ROWS_MAX, check_size
from agent.message import check_depth

CSV = ForeignCsv(
    "Ignition",
    required=("Name", "TagType", "OPCItemPath"),
    numbers=("rawlow", "rawhigh", "scaledlow", "scaledhigh", "deadband"),
)
TABLES = {"C": "0", "DI": "1", "IR": "3", "HR": "4"}
TYPES = {
    "": "int16",
    "US": "uint16",
    "I": "int32",
    "UI": "uint32",
    "I_64": "int64",
    "UI_64": "uint64",
    "F": "float32",
    "D": "float64",
    "BCD": "bcd16",
    "BCD_32": "bcd32",
}
ITEM = re.compile(r"(?:ns=1;s=)?\[(?P<device>[^\]]*)\](?P<rest>.*)")
MODBUS = re.compile(  # the longest kind first: HRI_641 is register 1 as 64 bits
    r"(?:(?P<unit>[0-9]{1,3})\.)?(?P<table>C|DI|IR|HR)(?P<kind>U?I_64|BCD_32|BCD|US|UI|I|F|D|S|)(?P<number>[0-9]{1,5})"
    r"(?:\.(?P<bit>[0-9]{1,2})|:(?P<length>[0-9]{1,3}))?"
)
NODE = re.compile(r"(?:nsu=(?P<uri>[^;]+);|ns=(?P<index>[0-9]{1,5});)?(?P<identifier>[isgb]=.+)", re.DOTALL)
OWN_SERVERS = ("ignition opc ua server", "ignition opc-ua server")

# Numbers in the CSV of 7.x and words in the JSON of 8.x for the same.
OPC = {"0", "opc", "opctag", "opc tag"}
OFF = {"", "0", "off", "none", "false"}
CLAMP_BOTH = {"3", "clamp_both", "both"}


def translate(file: str, data: bytes, options: Options) -> Translation:
    """The OPC tags of an export. Raises TagMapError for a file that is none."""
    check_size(file, data)
    refused: list[Remark] = []
    is_json = data.lstrip(b"\xef\xbb\xbf \r\n\t").startswith((b"{", b"["))
    notes: tuple[str, ...] = ()
    if is_json:
        rows = _from_json(file, data, options, refused)
    else:
        found_rows, notes = CSV.rows(file, data, options)
        rows = _from_csv(found_rows)
    found = translate_rows(rows, options, _translated)
    found.refused += refused
    found.notes += notes
    if options.protocol == "modbus":
        found.notes.append(
            'the file does not hold the byte order: Ignition\'s default, low word first, is byte_order = "CDAB" of the source'
        )
    return found


def _translated(tag: Mapping[str, str], options: Options) -> tuple[dict[str, str], str]:
    """The cells of a tag without its name, and the settings that are lost."""
    path = tag.get("opcitempath", "")
    if not path or tag.get("valuesource", tag.get("tagtype", "opc")).lower() not in OPC:
        raise NotTranslated("is not read by OPC")
    if tag.get("enabled", "true").lower() == "false":
        raise NotTranslated("is disabled")
    if REFERENCE.search(path):
        raise NotTranslated(f"{path!r} has a parameter without a value")
    item = ITEM.fullmatch(path)
    is_own = item is not None and tag.get("opcserver", "").lower() in ("", *OWN_SERVERS)
    if options.protocol == "modbus":
        if item is None or not is_own:
            raise NotTranslated(f"{path!r} is an item of an OPC UA server; run again with --protocol opcua")
        own = _modbus(item, options) | _scaling(tag)
    else:
        if is_own:
            raise NotTranslated(f"{path!r} is read by Ignition's own driver; run again with --protocol modbus")
        if _scaling(tag):
            raise NotTranslated("is scaled: values of OPC UA are recorded as the server gives them")
        own = _opcua(path, options)
    own |= _deadband(tag)
    own |= {"unit": tag.get("engunit", ""), "description": tag.get("documentation", "") or tag.get("tooltip", "")}
    mode = tag.get("clampmode", "").lower()
    # Our clamp has two ends.
    lost = f"clampMode {tag['clampmode']}" if mode not in {*OFF, "no_clamp", *CLAMP_BOTH} else ""
    return own, lost


def _modbus(item: re.Match[str], options: Options) -> dict[str, str]:
    if options.device and item["device"] != options.device:
        raise NotTranslated(f"is of the device {item['device']}; import it with --device {item['device']}")
    match = MODBUS.fullmatch(item["rest"])
    if match is None:
        raise NotTranslated(f"{item['rest']!r} is no address of the Modbus driver")
    own = register_cells(options, TABLES[match["table"]], int(match["number"]))
    if match["unit"]:
        own["unit_id"] = match["unit"]
    if match["table"] in ("C", "DI"):
        if match["kind"] or match["bit"] or match["length"]:
            raise NotTranslated(f"{item['rest']!r} is one bit, and its address asks for more")
        return own
    if match["kind"] == "S" and match["length"]:
        return own | {"type": f"string{int(match['length'])}"}
    if match["length"] or match["kind"] not in TYPES:
        raise NotTranslated(f"{match['table']}{match['kind']} is no type of the Modbus driver with a counterpart")
    if match["bit"]:
        if int(match["bit"]) > 15:
            raise NotTranslated("takes a bit beyond 15; write the register that holds it")
        return own | {"type": f"bit{int(match['bit'])}"}
    return own | {"type": TYPES[match["kind"]]}


def _opcua(path: str, options: Options) -> dict[str, str]:
    match = NODE.fullmatch(path)
    if match is None:
        raise NotTranslated(f"{path!r} is no node id")
    if match["uri"]:
        return {"address": path}
    return {"address": node_address(options, int(match["index"] or 0), match["identifier"])}


def _scaling(tag: Mapping[str, str]) -> dict[str, str]:
    mode = tag.get("scalemode", "").lower()
    if mode in OFF:
        return {}
    if mode not in {"1", "linear"}:
        raise NotTranslated(f"scaleMode {tag['scalemode']} has no counterpart; only Linear has")
    # A missing setting has the default of the product: 0 to 10 becomes 0 to 10.
    ends = (("rawlow", "0"), ("rawhigh", "10"), ("scaledlow", "0"), ("scaledhigh", "10"))
    points = [tag.get(name) or default for name, default in ends]
    is_clamped = tag.get("clampmode", "").lower() in CLAMP_BOTH
    return linear(*points) | (clamp(*points[2:]) if is_clamped else {})


def _deadband(tag: Mapping[str, str]) -> dict[str, str]:
    """The deadband of the tag, unless it is the negligible default."""
    if number(tag.get("deadband", "")) <= Fraction(1, 1000):
        return {}
    mode = tag.get("deadbandmode", "absolute").lower()
    if mode == "off":
        return {}
    return {"deadband": tag["deadband"] + ("%" if mode in {"1", "percent", "percentage"} else "")}


def _from_csv(rows: Iterable[ForeignRow]) -> Iterator[tuple[int, str, Mapping[str, str]]]:
    """(row, path and name, cells) of each tag that is no folder."""
    for row, cells in rows:
        if cells.get("tagtype", "").lower() in {"6", "folder"}:
            continue
        name = "/".join(part for part in (cells.get("path", "").strip("/"), cells.get("name", "")) if part)
        yield row, name, cells


def _from_json(
    file: str, data: bytes, options: Options, refused: list[Remark]
) -> Iterator[tuple[int, str, Mapping[str, str]]]:
    """(number of the tag, path and name, settings) of each tag, members of UDT instances included. Tags that cannot be
    expanded are added to `refused`."""
    try:
        check_depth("tags", data)
        root = json.loads(data.decode(options.code_page or "utf-8-sig"))
    except ValueError as error:
        raise TagMapError([TagFileProblem(file, 0, "", "", f"is not JSON: {error}")]) from error
    export = IgnitionExport(file, root)
    for index, (name, tag) in enumerate(export.tags(), 1):
        if index > ROWS_MAX:
            raise TagMapError([TagFileProblem(file, 0, "", "", f"has more than {ROWS_MAX} tags; export it in parts")])
        if isinstance(tag, str):
            refused.append(Remark(index, name, tag))
        else:
            yield index, name, tag
    if not export.has_tags:
        raise TagMapError([TagFileProblem(file, 0, "", "", "is no tag export of Ignition: it holds no tags")])
