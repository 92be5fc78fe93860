"""Ingest: reads OPC UA servers and Modbus devices and appends their values to the fact store.

Each configured source is supervised on its own: it connects, delivers samples, is lost, and is built anew. A tag map
says which values of a source are read; sampling rules decide which samples become facts. Samples leave through a port
(`StorePort`).

    opcua/  modbus/     the two adapters, alike file by file
    tags/               tag files: read, checked, watched, compared with the map in force

The package drops no value without a fact that says so. It never writes to a device.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from agent.ingest.errors import IngestError, SourceError, TagMapError
from agent.ingest.lifecycle import State
from agent.ingest.settings import ModbusSourceSettings, OpcuaSourceSettings, SourceSettings
from agent.ingest.supervisor import Ingest, SourceStatistics
from agent.ingest.tags.file import load_tag_map, load_tag_maps
from agent.ingest.tags.tag_map import TagMap

if TYPE_CHECKING:
    from agent.ingest.opcua.file_check import certificate_days_left, check_source_files

# Names whose modules load cryptography or a protocol library: imported when somebody asks for them, so that a command
# that reads a tag file needs neither.
_ON_DEMAND = {
    "certificate_days_left": "agent.ingest.opcua.file_check",
    "check_source_files": "agent.ingest.opcua.file_check",
}

__all__ = [
    "Ingest",
    "IngestError",
    "ModbusSourceSettings",
    "OpcuaSourceSettings",
    "SourceError",
    "SourceSettings",
    "SourceStatistics",
    "State",
    "TagMap",
    "TagMapError",
    "certificate_days_left",
    "check_source_files",
    "load_tag_map",
    "load_tag_maps",
]


def __getattr__(name: str) -> Any:
    """A name of `_ON_DEMAND`, from its module."""
    if name not in _ON_DEMAND:
        raise AttributeError(f"module {__name__} has no attribute {name}")
    return getattr(importlib.import_module(_ON_DEMAND[name]), name)
