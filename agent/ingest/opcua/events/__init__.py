"""Events and conditions of an OPC UA server, as messages. `collector` receives them; `event_service` speaks to asyncua;
the other modules decide (cores)."""

from agent.ingest.opcua.events.collector import EventCollector
from agent.ingest.opcua.events.event_loss import EVENTS_LOST

__all__ = ["EVENTS_LOST", "EventCollector"]
