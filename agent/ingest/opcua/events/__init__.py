"""Events and conditions of an OPC UA server, as messages. `collector` receives them; `event_service` speaks to asyncua;
the other modules decide (cores)."""

from agent.ingest.opcua.events.collector import EventCollector

EVENTS_LOST = "events_lost"  # the predicate of the fact

__all__ = ["EVENTS_LOST", "EventCollector"]
