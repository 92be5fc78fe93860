"""Ingest: reads OPC UA servers and Modbus devices and appends their values to the fact store.

Each configured source is supervised separately: it connects, delivers samples, is lost, and is rebuilt. A tag map says
which values of a source are read; sampling rules decide which samples become facts. Samples leave through a port
(`StorePort`).

    opcua/  modbus/     the two adapters, alike file by file
    tags/               tag files: read, checked, watched, compared with the map in force

Commands that look at servers or keep certificates import `opcua.explore` and `opcua.security` themselves: this face
stays free of the protocol libraries, because reading a tag file needs none.

The package drops no value without a fact that says so. It never writes to a device.
"""

from agent.ingest.clock import (
    CLOCK_PREDICATE,
    JUMP_NS,
    ClockBelief,
    ClockChange,
    ClockMemory,
    ClockReading,
    Span,
    clock_message,
)
from agent.ingest.completeness import Stored
from agent.ingest.errors import SourceError, StoredUnreadable, TagFileProblem, TagMapError
from agent.ingest.gap import BELIEVED_PART, EVENTS_PART, FILL_PREDICATE, GAP_PREDICATE, OUTAGE_REASONS
from agent.ingest.lifecycle import Newest
from agent.ingest.ports import IngestPorts, RemovedTag
from agent.ingest.probe_result import WITHOUT_VALUE, ProbeStep, TagReading, accept_part
from agent.ingest.quality import TAG_REMOVED
from agent.ingest.source_probe import (
    is_read_by_node,
    judge_readings_of_node,
    probe_source,
    read_source,
    readings_of_node,
    some_tags,
)
from agent.ingest.supervision import Ingest, SourceStatistics
from agent.ingest.tags.change import plan_sources
from agent.ingest.tags.file import TagFile, find_tag_files, load_tag_files, load_tag_map, load_tag_maps, parse_tag_file
from agent.ingest.tags.tag_map import Tag, TagMap
