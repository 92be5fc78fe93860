"""Ignition's tag export: JSON of 8.x, CSV of 7.x.

An OPC tag has an `opcItemPath`. For a device of the Modbus driver that is `[Device]HR1`, possibly with a unit
(`[Device]3.HR1`), a type (`HRF`, `HRUI`), a bit (`HR1.0`) or the length of a text (`HRS27:40`). For another OPC UA
server it is a node id, and every item of Ignition's own drivers is a node of its own server. UDT instances are
expanded: settings and parameters are merged along the chain of types and of the instances around them, and a tag whose
settings hold a reference without a value is refused. A list of several devices or servers is refused, unless one is
chosen, because a tag file has one source. Core.
"""

from __future__ import annotations

import json
import re
import shlex
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from fractions import Fraction
from typing import Any

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
    decimal,
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
    numbers=("rawlow", "rawhigh", "scaledlow", "scaledhigh", "deadband", "englow", "enghigh"),
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
UDT_INSTANCES = {"10", "udt_inst"}
OFF = {"", "0", "off", "none", "false"}
CLAMP_BOTH = {"3", "clamp_both", "both"}
# The defaults of the product, which an export leaves out: of sixty explicit rawHigh in public exports none is 100, and
# of seventy explicit scaledHigh none is 10.
ENDS = {"rawlow": "0", "rawhigh": "100", "scaledlow": "0", "scaledhigh": "10"}


def translate(file: str, data: bytes, options: Options) -> Translation:
    """The OPC tags of an export. Raises TagMapError for a file that is none."""
    check_size(file, data)
    refused: list[Remark] = []
    start = data.lstrip(b"\xef\xbb\xbf \r\n\t")[:1]
    notes: tuple[str, ...] = ()
    if start == b"<":
        raise _whole(file, "is XML; export the tags as JSON (Ignition 8) or CSV (Ignition 7)")
    if start in {b"{", b"["}:
        rows = list(_from_json(file, data, options, refused))
    else:
        found_rows, notes = CSV.rows(file, data, options)
        rows = list(_from_csv(found_rows))
    found = translate_rows(rows, options, _translated)
    numbers = {row for row, _ in found.rows}
    translated = [tag for row, _, tag in rows if row in numbers]
    _check_one_source(file, translated, options)
    found.refused += refused
    found.notes += notes
    if any(_scaling(tag) and not all(tag.get(end) for end in ENDS) for tag in translated):
        found.notes.append(
            "the file lacks ends of scaled ranges, which have Ignition's defaults (rawLow and scaledLow 0,"
            " rawHigh 100, scaledHigh 10); compare such a value"
        )
    if options.protocol == "modbus":
        found.notes.append(
            'the file does not hold the byte order: Ignition\'s default, low word first, is byte_order = "CDAB" of the source'
        )
    return found


def _check_one_source(file: str, tags: Iterable[Mapping[str, str]], options: Options) -> None:
    """Raise TagMapError for tags of several devices or OPC UA servers: the address of one means another value in the
    other."""
    names = Counter(_source(tag, options) for tag in tags)
    if len(names) > 1:
        listed = ", ".join(f"{name} ({count})" for name, count in names.most_common())
        raise _whole(
            file, f"has the tags of {listed}, and a tag file is read from one of them; give one: --device NAME"
        )


def _own_item(tag: Mapping[str, str]) -> re.Match[str] | None:
    """The item of one of Ignition's drivers that a tag reads, if it does."""
    is_own = tag.get("opcserver", "").lower() in ("", *OWN_SERVERS)
    return ITEM.fullmatch(tag.get("opcitempath", "")) if is_own else None


def _source(tag: Mapping[str, str], options: Options) -> str:
    """The device of a driver, or the OPC UA server, from which a tag is read with the protocol."""
    item = _own_item(tag)
    if item:
        return item["device"] if options.protocol == "modbus" else "Ignition OPC UA Server"
    return tag.get("opcserver") or "no OPC UA server"


def _whole(file: str, why: str) -> TagMapError:
    return TagMapError([TagFileProblem(file, 0, "", "", why)])


def _translated(tag: Mapping[str, str], options: Options) -> tuple[dict[str, str], str]:
    """The cells of a tag without its name, and the settings that are lost."""
    path = tag.get("opcitempath", "")
    if tag.get("tagtype", "").lower() in UDT_INSTANCES:
        raise NotTranslated("is a UDT instance, whose members a CSV does not hold; export the tags as JSON")
    if not path or tag.get("valuesource", tag.get("tagtype", "opc")).lower() not in OPC:
        raise NotTranslated("is not read by OPC")
    if tag.get("enabled", "true").lower() == "false":
        raise NotTranslated("is disabled")
    if REFERENCE.search(path):
        raise NotTranslated(f"{path!r} has a parameter without a value")
    item, source = _own_item(tag), _source(tag, options)
    if options.protocol == "modbus" and item is None:
        raise NotTranslated(f"{path!r} is an item of an OPC UA server; run again with --protocol opcua")
    if options.device not in {"", source}:
        raise NotTranslated(f"is of {source}; import it with --device {shlex.quote(source)}")
    if options.protocol == "opcua" and _scaling(tag):
        raise NotTranslated("is scaled: values of OPC UA are recorded as the server gives them")
    if item is None:
        own = _opcua(path, options)
    else:
        own = _own_node(item, options) if options.protocol == "opcua" else _modbus(item, options) | _scaling(tag)
    own |= _deadband(tag)
    own |= {"unit": tag.get("engunit", ""), "description": tag.get("documentation", "") or tag.get("tooltip", "")}
    mode = tag.get("clampmode", "").lower()
    is_lost = _scaling(tag) and mode not in {*OFF, "no_clamp", *CLAMP_BOTH}  # our clamp has two ends
    return own, f"clampMode {tag['clampmode']}" if is_lost else ""


def _modbus(item: re.Match[str], options: Options) -> dict[str, str]:
    match = MODBUS.fullmatch(item["rest"])
    if match is None:
        raise NotTranslated(
            f"{item['rest']!r} is no address of the Modbus driver; items of other drivers are read from Ignition's OPC UA"
            " server, with --protocol opcua"
        )
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
        if match["kind"] not in {"", "US"}:
            raise NotTranslated("is a bit of a number of several registers; write the register that holds it")
        if int(match["bit"]) > 15:
            raise NotTranslated("takes a bit beyond 15; write the register that holds it")
        return own | {"type": f"bit{int(match['bit'])}"}
    return own | {"type": TYPES[match["kind"]]}


def _own_node(item: re.Match[str], options: Options) -> dict[str, str]:
    """The cells of an item of one of Ignition's drivers as a node of Ignition's OPC UA server."""
    if 1 not in options.namespaces:
        raise NotTranslated(
            f"{item[0]!r} is read by a driver of Ignition: run again with --protocol modbus if that is Modbus, or read it"
            " from Ignition's OPC UA server and give --namespace 1=URI, which is the application URI of that server"
        )
    return {"address": node_address(options, 1, f"s=[{item['device']}]{item['rest']}")}


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
    points = [tag.get(name) or default for name, default in ENDS.items()]
    is_clamped = tag.get("clampmode", "").lower() in CLAMP_BOTH
    return linear(*points) | (clamp(*points[2:]) if is_clamped else {})


def _deadband(tag: Mapping[str, str]) -> dict[str, str]:
    """The deadband of the tag, unless it is the negligible default. A percentage is one of the engineering range, and
    ours one of the value."""
    deadband = number(tag.get("deadband", ""))
    mode = tag.get("deadbandmode", "absolute").lower()
    if deadband <= Fraction(1, 1000) or mode == "off":
        return {}
    if mode in {"1", "percent", "percentage"}:
        deadband *= abs(number(tag.get("enghigh") or "100") - number(tag.get("englow", ""))) / 100
    return {"deadband": decimal(deadband)} if deadband else {}


def _from_csv(rows: Iterable[ForeignRow]) -> Iterator[tuple[int, str, Mapping[str, str]]]:
    """(row, path and name, cells) of each tag that is no folder and no part of a type. The second line is the version
    of the format."""
    for row, cells in rows:
        path = cells.get("path", "").strip("/")
        if (
            cells.get("tagtype", "").lower() in {"6", "folder"}
            or path.split("/")[0] == "_types_"
            or next(iter(cells.values())).startswith("# version")
        ):
            continue
        yield row, "/".join(part for part in (path, cells.get("name", "")) if part), cells


def _from_json(
    file: str, data: bytes, options: Options, refused: list[Remark]
) -> Iterator[tuple[int, str, Mapping[str, str]]]:
    """(number of the tag, path and name, settings) of each tag, members of UDT instances included. Tags that cannot be
    expanded are added to `refused`."""
    index = 0
    types = _json("the file of --types", options.types, options) if options.types else None
    export = IgnitionExport(file, _json(file, data, options), types)
    for index, (name, tag) in enumerate(export.tags(), 1):
        if index > ROWS_MAX:
            raise _whole(file, f"has more than {ROWS_MAX} tags; export it in parts")
        if isinstance(tag, str):
            refused.append(Remark(index, name, tag))
        else:
            yield index, name, tag
    if not export.has_tags:
        raise _whole(file, "is no tag export of Ignition: it holds no tags")
    if not index:
        raise _whole(file, "holds only UDT definitions; import the export of the tags, and give this one as --types")


def _json(file: str, data: bytes, options: Options) -> Any:
    try:
        check_depth("tags", data)
        return json.loads(data.decode(options.code_page or "utf-8-sig"))
    except ValueError as error:
        raise _whole(file, f"is not JSON: {error}") from error
