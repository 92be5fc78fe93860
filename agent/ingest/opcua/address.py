"""Reads the OPC UA columns of a tag map: a node, or elements of its array, and how it is monitored. The server cuts the
elements out (OPC 10000-4, 7.27). Core."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache

from agent.ingest.opcua.columns import COLUMNS, EXAMPLE_ROWS
from agent.ingest.opcua.subscriptions.monitoring import AS_THE_SOURCE_SAYS, QUEUE_SIZE_MAX, Monitoring, Trigger
from agent.ingest.tags.sheet import CellError
from agent.ingest.tags.tag_map import SHARED_MAX, Cells, Dialect
from agent.settings.opcua_address import STANDARD_URI, NodeAddress, parse_node_address

INDEX_RANGE = re.compile(r"\d{1,9}(?::\d{1,9})?(?:,\d{1,9}(?::\d{1,9})?)*")
SAMPLING_INTERVAL_MS_MAX = 3_600_000


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
    trigger = cells.choice("trigger", [kind.name.lower() for kind in Trigger], Trigger.STATUS_VALUE.name.lower())
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
