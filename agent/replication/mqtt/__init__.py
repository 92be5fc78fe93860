"""MQTT 5 over mutual TLS 1.3: one connection to a broker, reconnected after each loss, and requests sent over it."""

from agent.replication.mqtt.carrier import Access, Incoming
from agent.replication.mqtt.link import BrokerLink
from agent.replication.mqtt.requester import PeerReply, Requester, ask_once, converse
from agent.replication.mqtt.transport import MqttConnection
from agent.replication.mqtt.transport_errors import REFUSED_HINT, explain_alert, explain_unreachable, explain_untrusted
