"""Ignition's tag export: JSON of 8.x, CSV of 7.x.

An OPC tag has an `opcItemPath`. For a device of the Modbus driver that is `[Device]HR1`, possibly with a unit
(`[Device]3.HR1`), a type (`HRF`, `HRUI`), a bit (`HR1.0`) or the length of a text (`HRS27:40`). For another OPC UA
server it is a node id. Members of UDT instances are expanded with their parameters. Core.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from fractions import Fraction
from typing import Any

from agent.ingest.errors import Problem, TagMapError
from agent.ingest.tags.foreign.translation import (
    NotTranslated,
    Options,
    Remark,
    Translation,
    clamp,
    foreign_rows,
    linear,
    node_address,
    number,
    register_cells,
    translate_rows,
)
from agent.ingest.tags.sheet import ROWS_MAX, check_size
from agent.message import check_depth

DEPTH_MAX = 20  # folders in folders, and UDTs in UDTs
NODES_MAX = 2 * ROWS_MAX  # folders and tags with all UDTs expanded; UDTs in UDTs multiply
TEXT_MAX = 4_096  # characters of a setting with its parameters filled in
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
OPCUA_TYPES = {
    "int1": "SByte",
    "int2": "Int16",
    "int4": "Int32",
    "int8": "Int64",
    "float4": "Float",
    "float8": "Double",
    "boolean": "Boolean",
    "string": "String",
    "datetime": "DateTime",
}
ITEM = re.compile(r"(?:ns=1;s=)?\[(?P<device>[^\]]*)\](?P<rest>.*)")
MODBUS = re.compile(  # the longest kind first: HRI_641 is register 1 as 64 bits
    r"(?:(?P<unit>[0-9]{1,3})\.)?(?P<table>C|DI|IR|HR)(?P<kind>U?I_64|BCD_32|BCD|US|UI|I|F|D|S|)(?P<number>[0-9]{1,5})"
    r"(?:\.(?P<bit>[0-9]{1,2})|:(?P<length>[0-9]{1,3}))?"
)
NODE = re.compile(r"(?:nsu=(?P<uri>[^;]+);|ns=(?P<index>[0-9]{1,5});)?(?P<identifier>[isgb]=.+)", re.DOTALL)
PARAMETER = re.compile(r"\{(?P<name>[^{}+-]+)(?P<more>[+-][0-9]{1,9})?\}")
OWN_SERVERS = ("ignition opc ua server", "ignition opc-ua server")

SETTINGS = (
    *("valueSource", "enabled", "opcServer", "opcItemPath", "dataType", "engUnit", "documentation", "tooltip"),
    *("scaleMode", "rawLow", "rawHigh", "scaledLow", "scaledHigh", "clampMode", "deadband", "deadbandMode"),
)

# Numbers in the CSV of 7.x and words in the JSON of 8.x for the same.
OPC = {"0", "opc", "opctag", "opc tag"}
OFF = {"", "0", "off", "none", "false"}
CLAMP_BOTH = {"3", "clamp_both", "both"}


def translate(file: str, data: bytes, options: Options) -> Translation:
    """The OPC tags of an export. Raises TagMapError for a file that is none."""
    check_size(file, data)
    refused: list[Remark] = []
    is_json = data.lstrip(b"\xef\xbb\xbf \r\n\t").startswith((b"{", b"["))
    rows = _from_json(file, data, refused) if is_json else _from_csv(file, data)
    found = translate_rows(rows, options, _translated)
    found.refused += refused
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
    if PARAMETER.search(path):
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
        own = _opcua(path, options) | {"data_type": OPCUA_TYPES.get(tag.get("datatype", "").lower(), "")}
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


def _from_csv(file: str, data: bytes) -> Iterator[tuple[int, str, Mapping[str, str]]]:
    """(row, path and name, cells) of each tag that is no folder."""
    for row, cells in foreign_rows(file, data, "Ignition", ("Name", "TagType", "OPCItemPath")):
        if cells.get("tagtype", "").lower() in {"6", "folder"}:
            continue
        name = "/".join(part for part in (cells.get("path", "").strip("/"), cells.get("name", "")) if part)
        yield row, name, cells


def _from_json(file: str, data: bytes, refused: list[Remark]) -> Iterator[tuple[int, str, Mapping[str, str]]]:
    """(number of the tag, path and name, settings) of each tag, members of UDT instances included. Tags that cannot be
    expanded are added to `refused`."""
    try:
        check_depth("tags", data)
        root = json.loads(data.decode("utf-8-sig"))
    except ValueError as error:
        raise TagMapError([Problem(file, 0, "", "", f"is not JSON: {error}")]) from error
    export = _Export(file, root)
    for index, (name, tag) in enumerate(export.tags(), 1):
        if index > ROWS_MAX:
            raise TagMapError([Problem(file, 0, "", "", f"has more than {ROWS_MAX} tags; export it in parts")])
        if isinstance(tag, str):
            refused.append(Remark(index, name, tag))
        else:
            yield index, name, tag
    if not export.has_tags:
        raise TagMapError([Problem(file, 0, "", "", "is no tag export of Ignition: it holds no tags")])


class _Export:
    """The tags of a JSON export."""

    def __init__(self, file: str, root: object) -> None:
        self.has_tags = False
        self._file, self._nodes = file, 0
        self._root = {"tags": root} if isinstance(root, list) else root
        self._types: dict[str, dict[str, Any]] = {}
        self._collect_types(self._root, "", 0)

    def tags(self) -> Iterator[tuple[str, Mapping[str, str] | str]]:
        """(path and name, settings by name in lower case or the reason why there are none)."""
        root = self._root
        is_one = isinstance(root, dict) and "tags" not in root and "name" in root
        yield from self._walk({"tags": [root]} if is_one else root, "", {}, 0)

    def _collect_types(self, node: object, path: str, depth: int) -> None:
        for tag in _members(node) if depth <= DEPTH_MAX else ():
            name = str(tag.get("name", ""))
            here = f"{path}/{name}" if path else name
            if tag.get("tagType") == "UdtType":
                self._types[here.removeprefix("_types_/")] = tag
            else:
                self._collect_types(tag, here, depth + 1)

    def _walk(
        self, node: object, path: str, parameters: Mapping[str, str], depth: int
    ) -> Iterator[tuple[str, Mapping[str, str] | str]]:
        if depth > DEPTH_MAX:
            yield path, f"is nested deeper than {DEPTH_MAX} levels"
            return
        for tag in _members(node):
            self.has_tags = True
            self._nodes += 1
            if self._nodes > NODES_MAX:
                raise TagMapError([Problem(self._file, 0, "", "", f"is more than {NODES_MAX} tags with all UDTs")])
            name = str(tag.get("name", ""))
            here = f"{path}/{name}" if path else name
            kind = tag.get("tagType", "Folder" if "tags" in tag else "AtomicTag")
            if kind == "UdtType" or name == "_types_":
                continue
            if kind == "UdtInstance":
                yield from self._instance(tag, here, parameters, depth)
            elif kind in {"Folder", "Provider"}:
                yield from self._walk(tag, here, parameters, depth + 1)
            else:
                yield here, _settings(tag, {**parameters, "TagName": name})

    def _instance(
        self, tag: dict[str, Any], path: str, outer: Mapping[str, str], depth: int
    ) -> Iterator[tuple[str, Mapping[str, str] | str]]:
        name = str(tag.get("typeId", ""))
        merged, seen = tag, 0
        while name and seen < DEPTH_MAX:
            if name not in self._types:
                yield path, f"is a UDT instance of {name}, which is not in this file; export the type with it"
                return
            merged, seen = _merged(self._types[name], merged), seen + 1
            name = str(self._types[name].get("typeId", ""))
        values = {key: _filled(_value(value), outer) for key, value in _parameters(merged).items()}
        parameters = {**outer, **values, "InstanceName": path.rpartition("/")[2]}
        yield from self._walk(merged, path, parameters, depth + 1)


def _members(node: object) -> list[dict[str, Any]]:
    tags = node.get("tags") if isinstance(node, dict) else None
    return [tag for tag in tags if isinstance(tag, dict)] if isinstance(tags, list) else []


def _merged(base: dict[str, Any], over: dict[str, Any]) -> dict[str, Any]:
    """A type with the overrides of an instance. Members are merged by name."""
    members = {str(tag.get("name")): tag for tag in _members(base)}
    for tag in _members(over):
        name = str(tag.get("name"))
        members[name] = {**members[name], **tag} if name in members else tag
    parameters = {**_parameters(base), **_parameters(over)}
    return {**base, **over, "parameters": parameters, "tags": list(members.values())}


def _parameters(tag: dict[str, Any]) -> dict[str, Any]:
    found = tag.get("parameters")
    return found if isinstance(found, dict) else {}


def _value(found: object) -> str:
    """A setting as text: plain, or {"value": ...}, or a binding with parameters in it."""
    if isinstance(found, dict):
        return _value(found.get("binding", found.get("value", "")))
    if isinstance(found, str | int | float):
        return str(found).lower() if isinstance(found, bool) else str(found)
    return ""


def _settings(tag: dict[str, Any], parameters: Mapping[str, str]) -> Mapping[str, str]:
    return {name.lower(): _filled(_value(tag[name]), parameters) for name in SETTINGS if name in tag}


def _filled(text: str, parameters: Mapping[str, str]) -> str:
    """A text with its parameters replaced by their values. Unknown ones stay. `{Base+2}` adds to a number."""

    def value(match: re.Match[str]) -> str:
        known = parameters.get(match["name"])
        if known is None:
            return match[0]
        if not match["more"]:
            return known
        return str(int(known) + int(match["more"])) if re.fullmatch("-?[0-9]{1,9}", known) else match[0]

    if len(text) > TEXT_MAX:
        return text[:TEXT_MAX]
    filled = PARAMETER.sub(value, text)
    return filled if len(filled) <= TEXT_MAX else text
