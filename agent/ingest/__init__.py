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
from agent.ingest.settings import (
    APPLICATION_URI,
    ModbusSourceSettings,
    OpcuaSourceSettings,
    SecurityMode,
    SecurityPolicy,
    SourceSettings,
)
from agent.ingest.supervisor import Ingest, SourceStatistics
from agent.ingest.tags.file import load_tag_map, load_tag_maps
from agent.ingest.tags.tag_map import TagMap

if TYPE_CHECKING:
    from agent.ingest.opcua.explore.explorer import NodeReading, explore, row_text
    from agent.ingest.opcua.explore.probe import Outcome, Probe, check_settings, section
    from agent.ingest.opcua.explore.tag_rows import TagRow, tag_file
    from agent.ingest.opcua.explore.walk import OBJECTS, SERVER, FoundVariable, Walk, is_wanted
    from agent.ingest.opcua.security.certificate import (
        activate_certificate,
        ensure_certificate,
        hand_over_file,
        read_certificate,
        renew_certificate,
    )
    from agent.ingest.opcua.security.file_check import certificate_days_left, check_source_files
    from agent.ingest.opcua.security.trust_folder import TrustFolder

# Names whose modules load cryptography or a protocol library: imported when somebody asks for them, so that a command
# that reads a tag file needs neither.
_ON_DEMAND = {
    "FoundVariable": "agent.ingest.opcua.explore.walk",
    "NodeReading": "agent.ingest.opcua.explore.explorer",
    "OBJECTS": "agent.ingest.opcua.explore.walk",
    "SERVER": "agent.ingest.opcua.explore.walk",
    "Outcome": "agent.ingest.opcua.explore.probe",
    "Probe": "agent.ingest.opcua.explore.probe",
    "TagRow": "agent.ingest.opcua.explore.tag_rows",
    "TrustFolder": "agent.ingest.opcua.security.trust_folder",
    "Walk": "agent.ingest.opcua.explore.walk",
    "activate_certificate": "agent.ingest.opcua.security.certificate",
    "certificate_days_left": "agent.ingest.opcua.security.file_check",
    "check_settings": "agent.ingest.opcua.explore.probe",
    "check_source_files": "agent.ingest.opcua.security.file_check",
    "ensure_certificate": "agent.ingest.opcua.security.certificate",
    "explore": "agent.ingest.opcua.explore.explorer",
    "hand_over_file": "agent.ingest.opcua.security.certificate",
    "is_wanted": "agent.ingest.opcua.explore.walk",
    "read_certificate": "agent.ingest.opcua.security.certificate",
    "renew_certificate": "agent.ingest.opcua.security.certificate",
    "row_text": "agent.ingest.opcua.explore.explorer",
    "section": "agent.ingest.opcua.explore.probe",
    "tag_file": "agent.ingest.opcua.explore.tag_rows",
}

__all__ = [
    "APPLICATION_URI",
    "OBJECTS",
    "SERVER",
    "FoundVariable",
    "Ingest",
    "IngestError",
    "ModbusSourceSettings",
    "NodeReading",
    "OpcuaSourceSettings",
    "Outcome",
    "Probe",
    "SecurityMode",
    "SecurityPolicy",
    "SourceError",
    "SourceSettings",
    "SourceStatistics",
    "State",
    "TagMap",
    "TagMapError",
    "TagRow",
    "TrustFolder",
    "Walk",
    "activate_certificate",
    "certificate_days_left",
    "check_settings",
    "check_source_files",
    "ensure_certificate",
    "explore",
    "hand_over_file",
    "is_wanted",
    "load_tag_map",
    "load_tag_maps",
    "read_certificate",
    "renew_certificate",
    "row_text",
    "section",
    "tag_file",
]


def __getattr__(name: str) -> Any:
    """A name of `_ON_DEMAND`, from its module."""
    if name not in _ON_DEMAND:
        raise AttributeError(f"module {__name__} has no attribute {name}")
    return getattr(importlib.import_module(_ON_DEMAND[name]), name)
