"""The columns that OPC UA adds to a tag file, and rows that show them. Core."""

from __future__ import annotations

from agent.ingest.opcua.subscriptions.monitoring import Trigger
from agent.ingest.tags.columns import Column, Kind

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
        Kind.WHOLE,
    ),
    Column(
        "queue_size",
        "values that the server keeps for this tag; empty: enough for a stall of ten seconds",
        "20",
        Kind.WHOLE,
    ),
    Column(
        "server_deadband",
        "the server notifies a number only when it has moved by more than this, absolute or in percent of its range",
        "0.1",
        Kind.NUMBER,
    ),
    Column(
        "trigger",
        "what the server notifies; empty: status_value",
        "status_value",
        choices=tuple(kind.name.lower() for kind in Trigger),
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
