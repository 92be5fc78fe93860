"""MQTT 5 over mutual TLS 1.3: one connection to a broker, reconnected after each loss, and requests sent over it."""

from agent.replication.mqtt.carrier import Access, Incoming
from agent.replication.mqtt.link import Link, LinkStatistics
from agent.replication.mqtt.requester import (
    ATTEMPTS,
    RETRY_MS_MAX,
    RETRY_MS_MIN,
    Reply,
    Requester,
    ask_once,
    open_requester,
)
from agent.replication.mqtt.transport_errors import REFUSED_HINT, explain_alert, explain_unreachable, explain_untrusted

__all__ = [
    "ATTEMPTS",
    "REFUSED_HINT",
    "RETRY_MS_MAX",
    "RETRY_MS_MIN",
    "Access",
    "Incoming",
    "Link",
    "LinkStatistics",
    "Reply",
    "Requester",
    "ask_once",
    "explain_alert",
    "explain_unreachable",
    "explain_untrusted",
    "open_requester",
]
