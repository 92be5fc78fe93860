"""The carrier: one MQTT 5 connection to a broker over mutual TLS, kept up, and requests sent over it."""

from agent.replication.mqtt.carrier import Access, Incoming
from agent.replication.mqtt.link import Link, LinkStatistics
from agent.replication.mqtt.one_shot import ATTEMPTS, RETRY_MS_MAX, RETRY_MS_MIN, ask_once, visiting
from agent.replication.mqtt.requester import Asker, Reply
from agent.replication.mqtt.transport_errors import NEVER_ACCEPTED_HINT, alert_words, trust_words, unreached_words

__all__ = [
    "ATTEMPTS",
    "NEVER_ACCEPTED_HINT",
    "RETRY_MS_MAX",
    "RETRY_MS_MIN",
    "Access",
    "Asker",
    "Incoming",
    "Link",
    "LinkStatistics",
    "Reply",
    "alert_words",
    "ask_once",
    "trust_words",
    "unreached_words",
    "visiting",
]
