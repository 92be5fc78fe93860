"""MQTT 5 over mutual TLS 1.3: one connection to a broker, reconnected after each loss, and requests sent over it."""

from agent.replication.mqtt.carrier import Access, Incoming
from agent.replication.mqtt.link import Link
from agent.replication.mqtt.requester import Reply, Requester, ask_once, converse
from agent.replication.mqtt.transport import Connection
from agent.replication.mqtt.transport_errors import REFUSED_HINT, explain_alert, explain_unreachable, explain_untrusted
