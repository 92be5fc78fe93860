"""Node ids as people write them: `nsu=<namespace URI>;s=<name>`, or without namespace for the standard one.

A namespace *index* is refused: a server may number its namespaces anew at every start, and then the index of yesterday
reads another machine's value without an error (OPC 10000-3, 8.2.2). The URI is resolved after every connect.

An index in brackets at the end, `i=2001[3]`, reads elements of an array; the server cuts them out (OPC 10000-4, 7.27).
A text identifier may itself end like that (`s="DB"."values"[3]` at Siemens): a node of that very name is read if the
server has one, an element of the array otherwise. Core.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Sequence
from dataclasses import dataclass
from uuid import UUID

from agent.ingest.opcua.columns import COLUMNS, EXAMPLE_ROWS
from agent.ingest.opcua.monitoring import AS_THE_SOURCE_SAYS, QUEUE_SIZE_MAX, Monitoring, Trigger
from agent.ingest.tags.tag_map import CellError, Cells, Dialect

NODE_ID = re.compile(r"(?:nsu=(?P<uri>[^;]+);|ns=(?P<index>\d+);)?(?P<kind>[isgb])=(?P<text>.+)", re.DOTALL)
STANDARD_URI = "http://opcfoundation.org/UA/"
INDEX = re.compile(r"(?P<node>.*[^=])\[(?P<range>\d{1,9}(?::\d{1,9})?(?:,\d{1,9}(?::\d{1,9})?)*)\]", re.DOTALL)
SAMPLING_INTERVAL_MS_MAX = 3_600_000


@dataclass(frozen=True, slots=True)
class NodeAddress:
    """A node id with its namespace by URI; `identifier` is int (i), str (s), UUID (g) or bytes (b)."""

    namespace_uri: str
    identifier: int | str | UUID | bytes

    def index(self, namespaces: Sequence[str]) -> int | None:
        """The namespace index at a server with these namespaces, None if it lacks ours."""
        return namespaces.index(self.namespace_uri) if self.namespace_uri in namespaces else None


def parse_node_address(text: str) -> NodeAddress:
    """The address in a node id. Raises ValueError that says what to write."""
    match = NODE_ID.fullmatch(text)
    if match is None:
        raise ValueError("is not a node id; write nsu=<namespace URI>;s=<name> (or ;i=<number>)")
    if match["index"] not in (None, "0"):
        raise ValueError("names a namespace by number, which a server may change; write nsu=<namespace URI>; instead")
    return NodeAddress(match["uri"] or STANDARD_URI, _identifier(match["kind"], match["text"]))


def _identifier(kind: str, text: str) -> int | str | UUID | bytes:
    if kind == "s":
        return text
    if kind == "i":
        if not (text.isascii() and text.isdigit() and int(text) < 2**32):
            raise ValueError("has a numeric identifier that is not 0 to 4294967295")
        return int(text)
    try:
        return UUID(text) if kind == "g" else base64.b64decode(text, validate=True)
    except (ValueError, binascii.Error):
        raise ValueError("has an identifier that is not " + ("a GUID" if kind == "g" else "Base64")) from None


@dataclass(frozen=True, slots=True)
class Reading:
    """A node, or with an index range elements of the array in it."""

    address: NodeAddress
    index_range: str = ""

    @property
    def is_element(self) -> bool:
        """Whether it is one element, which the server sends as an array of one."""
        return bool(self.index_range) and ":" not in self.index_range


@dataclass(frozen=True, slots=True)
class TagPoint:
    """Where the value of a tag is and how it is monitored. `readings` are tried in their order."""

    readings: tuple[Reading, ...]
    monitoring: Monitoring = AS_THE_SOURCE_SAYS

    @classmethod
    def of(cls, address: NodeAddress) -> TagPoint:
        """A whole node, monitored as its source says."""
        return cls((Reading(address),))


def parse_readings(text: str) -> tuple[Reading, ...]:
    """What an address with or without an index may mean, in order. Raises ValueError that says what to write."""
    match = INDEX.fullmatch(text)
    if match is None:
        return (Reading(parse_node_address(text)),)
    for bounds in match["range"].split(","):
        first, _, last = bounds.partition(":")
        if last and int(first) >= int(last):
            raise ValueError(f"has the range {bounds}, whose end is not above its begin")
    element = Reading(parse_node_address(match["node"]), match["range"])
    if isinstance(element.address.identifier, str):
        return Reading(parse_node_address(text)), element
    return (element,)


def dialect() -> Dialect:
    """The OPC UA columns of a tag map."""
    return Dialect(
        columns=COLUMNS,
        required=("tag", "address"),
        read_point=_read_point,
        identity=lambda point: point.readings,
        examples=EXAMPLE_ROWS,
    )


def _read_point(cells: Cells) -> tuple[TagPoint, str, str]:
    text = cells.text("address")
    try:
        readings = parse_readings(text)
    except ValueError as error:
        raise CellError("address", str(error)) from error
    sampling_ms = None
    if cells.text("sampling_interval_ms"):
        sampling_ms = cells.integer("sampling_interval_ms", 0, SAMPLING_INTERVAL_MS_MAX)
    trigger = cells.choice("trigger", [one.name.lower() for one in Trigger], Trigger.STATUS_VALUE.name.lower())
    deadband = cells.text("server_deadband")
    monitoring = Monitoring(
        sampling_interval_ms=sampling_ms,
        queue_size=cells.integer("queue_size", 1, QUEUE_SIZE_MAX * 10, 0),
        deadband=_deadband(cells, deadband),
        deadband_is_percent=deadband.endswith("%"),
        trigger=Trigger[trigger.upper()],
    )
    return TagPoint(readings, monitoring), text, cells.text("data_type")


def _deadband(cells: Cells, text: str) -> float:
    size = float(cells.number("server_deadband", text.rstrip("%").strip(), 0))
    if size < 0 or (text.endswith("%") and size > 100):
        raise CellError(
            "server_deadband", "must be 0 or more, or 0% to 100% of the range that the server gives the node"
        )
    return size
