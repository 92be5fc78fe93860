"""Makes the source that a section of node.toml describes."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeAlias

from agent.ingest.delivery import Delivery
from agent.ingest.ports import StoredFacts
from agent.settings.sources import ModbusSourceSettings, SourceSettings

if TYPE_CHECKING:
    from agent.ingest.modbus.line import Endpoints
    from agent.ingest.modbus.source import ModbusSource
    from agent.ingest.opcua.poll_source import OpcuaPollSource
    from agent.ingest.opcua.source import OpcuaSource

    Source: TypeAlias = OpcuaSource | OpcuaPollSource | ModbusSource


def make_source(
    settings: SourceSettings,
    delivery: Delivery,
    stored: StoredFacts | None,
    endpoints: Callable[[], Endpoints] | None,
) -> Source:
    """A source. Without `stored` no gap is filled from history. `endpoints` gives what Modbus sources share; None: this
    one has its own. The adapter is imported here, because asyncua takes half a second and 25 MB, which a node without
    an OPC UA source does not need."""
    if isinstance(settings, ModbusSourceSettings):
        from agent.ingest.modbus.line import Endpoints
        from agent.ingest.modbus.source import ModbusSource

        return ModbusSource(settings, (endpoints or Endpoints)(), delivery)
    from agent.ingest.opcua import session
    from agent.ingest.opcua.events import EVENTS_LOST, EventCollector
    from agent.ingest.opcua.history import HistoryBackfill
    from agent.ingest.opcua.poll_source import OpcuaPollSource
    from agent.ingest.opcua.source import OpcuaSource

    session.quiet_library()
    rate, recorder, backfill = settings.history_values_per_s_max, delivery.recorder, None
    if stored is not None and rate:
        backfill = HistoryBackfill(delivery, recorder.for_another_task(), stored, rate)
    if settings.mode == "poll":
        return OpcuaPollSource(settings, delivery, backfill)
    events = EventCollector(settings, recorder.for_another_task(EVENTS_LOST)) if settings.events else None
    return OpcuaSource(settings, delivery, backfill, events)
