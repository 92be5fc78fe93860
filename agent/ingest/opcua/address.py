"""The OPC UA columns of a tag map and how they are read: a node, or elements of its array, and how it is monitored. The
server cuts the elements out (OPC 10000-4, 7.27). Core."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache

from agent.ingest.opcua.subscriptions.monitoring import AS_THE_SOURCE_SAYS, QUEUE_SIZE_MAX, Monitoring, Trigger
from agent.ingest.tags.columns import CellKind, Column
from agent.ingest.tags.sheet import CellError
from agent.ingest.tags.tag_map import SHARED_MAX, Cells, Dialect
from agent.settings.opcua_address import STANDARD_URI, NodeAddress, parse_node_address

INDEX_RANGE = re.compile(r"\d{1,9}(?::\d{1,9})?(?:,\d{1,9}(?::\d{1,9})?)*")
SAMPLING_INTERVAL_MS_MAX = 3_600_000
_TRIGGERS = tuple(kind.name.lower() for kind in Trigger)

COLUMNS = (
    Column(
        "address",
        "the node id with the namespace by URI",
        "nsu=urn:vendor:plc;s=Oven.Temperature",
    ),
    Column("index_range", "the element of an array that is read; 1:3: several of them, 2,0: one of a matrix", "3"),
    Column("data_type", "the type at the server, as `bsfg opcua browse` writes it; decides nothing", "Double"),
    Column(
        "sampling_interval_ms",
        "how often the server looks at this value; 0: as fast as it can; empty: that of the source",
        "1000",
        CellKind.WHOLE,
    ),
    Column(
        "queue_size",
        "values that the server keeps for this tag; empty: enough for a stall of ten seconds",
        "20",
        CellKind.WHOLE,
    ),
    Column(
        "server_deadband",
        "the server notifies a number only when it has moved by more than this, absolute or in percent of its range",
        "0.1",
        CellKind.NUMBER,
    ),
    Column(
        "trigger",
        "what the server notifies; empty: status_value",
        "status_value",
        choices=_TRIGGERS,
    ),
)

EXAMPLE_ROWS = (
    {
        "tag": "line1/oven.temperature",
        "address": "nsu=urn:vendor:plc;s=Oven.Temperature",
        "unit": "degC",
        "deadband": "0.5",
        "max_interval_ms": "60000",
    },
    {
        "tag": "line1/oven.mode",
        "address": "nsu=urn:vendor:plc;s=Oven.Mode",
        "enumeration": "0=Off|1=Manual|7=Automatic",
    },
    {
        "tag": "line1/oven.zone4",
        "address": "nsu=urn:vendor:plc;i=2001",
        "index_range": "3",
        "sampling_interval_ms": "1000",
    },
    {"template": "drive", "tag": "{tag}/speed", "address": "nsu=urn:vendor:plc;s={address}.Speed", "unit": "1/min"},
    {"template": "drive", "tag": "{tag}/current", "address": "nsu=urn:vendor:plc;s={address}.Current", "unit": "A"},
    {"use": "drive", "tag": "line1/drive1", "address": "Drives[1]"},
    {"use": "drive", "tag": "line1/drive2", "address": "Drives[2]"},
)


@dataclass(frozen=True, slots=True)
class Reading:
    """A node, or with an index range, elements of its array."""

    address: NodeAddress
    index_range: str = ""

    @property
    def is_element(self) -> bool:
        """Whether it is a single element, which the server sends as an array of one."""
        return bool(self.index_range) and ":" not in self.index_range


@dataclass(frozen=True, slots=True)
class TagPoint:
    """Where the value of a tag is and how it is monitored."""

    reading: Reading
    monitoring: Monitoring = AS_THE_SOURCE_SAYS

    @classmethod
    def of(cls, address: NodeAddress) -> TagPoint:
        """A whole node, monitored by the settings of its source."""
        return cls(Reading(address))


_shared_monitoring = lru_cache(SHARED_MAX)(Monitoring)  # thousands of tags have the same


def dialect() -> Dialect:
    """The OPC UA columns of a tag map."""
    return Dialect(
        columns=COLUMNS,
        required=("tag", "address"),
        read_point=_read_point,
        identity=lambda point: point.reading,
        examples=EXAMPLE_ROWS,
    )


def _read_point(cells: Cells) -> tuple[TagPoint, str, str]:
    text, index_range = cells.text("address"), _index_range(cells)
    try:
        reading = Reading(parse_node_address(text), index_range)
    except ValueError as error:
        raise CellError("address", str(error)) from error
    sampling_ms = None
    if cells.text("sampling_interval_ms"):
        sampling_ms = cells.integer("sampling_interval_ms", 0, SAMPLING_INTERVAL_MS_MAX)
    trigger = cells.choice("trigger", _TRIGGERS, Trigger.STATUS_VALUE.name.lower())
    deadband = cells.text("server_deadband")
    monitoring = _shared_monitoring(
        sampling_interval_ms=sampling_ms,
        queue_size=cells.integer("queue_size", 1, QUEUE_SIZE_MAX * 10, 0),
        deadband=_deadband(cells, deadband),
        deadband_is_percent=deadband.endswith("%"),
        trigger=Trigger[trigger.upper()],
    )
    written = f"{text}[{index_range}]" if index_range else text
    return TagPoint(reading, monitoring), written, cells.text("data_type")


def _index_range(cells: Cells) -> str:
    text = cells.text("index_range")
    if text and not INDEX_RANGE.fullmatch(text):
        raise CellError("index_range", "is not an index; write 3, 1:3 or, of a matrix, 2,0")
    for bounds in text.split(","):
        first, _, last = bounds.partition(":")
        if last and int(first) >= int(last):
            raise CellError("index_range", f"has the range {bounds}, whose end is not above its begin")
    return text


def _deadband(cells: Cells, text: str) -> float:
    size = float(cells.number("server_deadband", text.rstrip("%").strip(), 0))
    if size < 0 or (text.endswith("%") and size > 100):
        raise CellError(
            "server_deadband", "must be 0 or more, or 0% to 100% of the range that the server gives the node"
        )
    return size


SERVER_CLOCK = Reading(NodeAddress(STANDARD_URI, 2258))  # Server_ServerStatus_CurrentTime
