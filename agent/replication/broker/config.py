"""Core: the configuration of a site's Mosquitto, and the rights of its nodes, made from the links between them.

A link says that node `asking` sends requests to node `serving`. A node may

    publish     bsfg/1/<serving>/<asking>/req       as the asking node of a link
                bsfg/1/<serving>/<asking>/rsp/+/+   as the serving node of a link
    subscribe   bsfg/1/<node>/+/req                 if it serves, and
                bsfg/1/+/<node>/rsp/<slot>/+        if it asks, for sixteen slots

so a certificate without a link has no rights, and no node can send in the name of another. The subscriptions are
allowed as they stand here, letter by letter, and no others: with a list of patterns, a node could hold as many
subscriptions as it can name topics, at 2.4 kB each, until the broker has no memory left (docs/decisions/0063).

Mosquitto's plugin for dynamic security, a part of its Debian package, refuses all else. Its file is read when the
broker starts; the links are read back from it, so there is no other list of them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Any

from agent.replication.protocol.errors import MalformedMessage, ReplicationError
from agent.replication.protocol.topics import (
    ROOT,
    SLOTS,
    is_node,
    parse_request_topic,
    request_filter,
    request_topic,
    response_filter,
)

PORT = 8883
"""The registered port of MQTT over TLS."""

USER = "mosquitto"
"""The user that Debian's package creates for the broker."""

PACKET_BYTES_MAX = 1_048_576
"""One page with its header. Without a limit Mosquitto 2.0 accepts 256 MB from any client with a certificate."""

LINKS_MAX = 8192
"""More links than any site has; a longer list is a mistake of a script."""

PATH_CHARACTERS_MAX = 1024

CONFIG_NAME = "mosquitto.conf"
RIGHTS_NAME = "rights.json"
CA_NAME = "zones-ca.pem"
CRL_NAME = "zones.crl"
CERT_NAME = "broker.pem"
KEY_NAME = "broker.key"


class TopologyError(ReplicationError):
    """A link, name or path that cannot be part of a broker configuration. The message names it and the reason."""


class RightsDamaged(TopologyError):
    """The file of rights is not as it was written, so links and denials cannot be taken from it."""

    hint = (
        f"remove {RIGHTS_NAME}, name every link again (bsfg broker config FOLDER --link SERVING:ASKING ...), and deny again "
        "each node that was denied"
    )


@dataclass(frozen=True, slots=True, order=True)
class PeerLink:
    """A link between two nodes: `asking` pulls facts from `serving`, or appends to it."""

    serving: str
    asking: str

    def __str__(self) -> str:
        return f"{self.serving}:{self.asking}"


@dataclass(frozen=True, slots=True)
class BrokerPlan:
    """All inputs of the configuration. `folder`: the path of its files; `plugin`: that of Mosquitto's plugin."""

    folder: str
    plugin: str
    host: str = ""
    port: int = PORT
    user: str = USER


def parse_link(text: str) -> PeerLink:
    """Parse SERVING:ASKING, in the order of the topics: `plant-a:idmz` means that idmz pulls from plant-a. Raises
    TopologyError."""
    serving, separator, asking = text.partition(":")
    if not separator or not is_node(serving) or not is_node(asking):
        raise TopologyError(f"{text[:80]!r} is not a link: write SERVING:ASKING with two nodes of [a-z0-9-]{{1,32}}")
    if serving == asking:
        raise TopologyError(f"{text!r} links a node with itself; a node sends no requests to itself")
    return PeerLink(serving, asking)


def nodes_of(links: Iterable[PeerLink]) -> tuple[str, ...]:
    """All nodes of these links, sorted."""
    return tuple(sorted({node for link in links for node in (link.serving, link.asking)}))


def render_rights(links: Collection[PeerLink], denied: Collection[str] = ()) -> str:
    """The file of the plugin. Zones in `denied` have no rights. Raises TopologyError for too many links."""
    if len(links) > LINKS_MAX:
        raise TopologyError(f"{len(links)} links, at most {LINKS_MAX}")
    nodes = nodes_of(links)
    granted = {node: list[dict[str, Any]]() for node in nodes}
    for link in sorted(set(links)):
        granted[link.asking].append(_allowed("publishClientSend", request_topic(link.serving, link.asking)))
        granted[link.serving].append(_allowed("publishClientSend", f"{ROOT}/{link.serving}/{link.asking}/rsp/+/+"))
    for node in {link.serving for link in links}:
        granted[node].append(_allowed("subscribeLiteral", request_filter(node)))
    for node in {link.asking for link in links}:
        granted[node] += [_allowed("subscribeLiteral", response_filter(node, slot)) for slot in SLOTS]
    rights = {
        "defaultACLAccess": {
            "publishClientSend": False,
            "publishClientReceive": True,  # of what it may subscribe to
            "subscribe": False,
            "unsubscribe": True,
        },
        "clients": [
            {"username": node, "roles": [] if node in denied else [{"rolename": node, "priority": 0}]} for node in nodes
        ],
        "groups": [],
        "roles": [{"rolename": node, "acls": granted[node]} for node in nodes],
    }
    return json.dumps(rights, indent=1) + "\n"


def _allowed(kind: str, topic: str) -> dict[str, Any]:
    return {"acltype": kind, "topic": topic, "priority": 0, "allow": True}


def read_rights(text: str) -> tuple[tuple[PeerLink, ...], tuple[str, ...]]:
    """The links, and the denied nodes, in the file of the plugin. Raises RightsDamaged if it is not one of ours."""
    links = set[PeerLink]()
    try:
        found = json.loads(text)
        for role in found["roles"]:
            for rule in role["acls"]:
                if rule["acltype"] == "publishClientSend" and rule["topic"].endswith("/req"):
                    topic = parse_request_topic(rule["topic"])
                    links.add(PeerLink(topic.serving_node, topic.asking_node))
        denied = [str(client["username"]) for client in found["clients"] if not client["roles"]]
        rendered = json.loads(render_rights(links, denied))
    except (ValueError, RecursionError, KeyError, TypeError, AttributeError, MalformedMessage) as error:
        raise RightsDamaged(f"{RIGHTS_NAME} is damaged: {error!r}") from error
    if rendered != found:
        raise RightsDamaged(f"{RIGHTS_NAME} was changed by hand or by mosquitto_ctrl")
    return tuple(sorted(links)), tuple(denied)


def render_config(plan: BrokerPlan) -> str:
    """The complete configuration file; nothing is inherited from the distribution's. Raises TopologyError."""
    _check_plan(plan)
    folder = plan.folder.rstrip("/")
    return f"""\
# Written once by bsfg broker config, which leaves it alone from then on: change what you need, then restart the broker.
# Start the broker with this file only (mosquitto -c FILE): Debian's own /etc/mosquitto/mosquitto.conf turns persistence
# on before it includes other files.
user {plan.user}
listener {plan.port}{" " + plan.host if plan.host else ""}

# Clients need TLS 1.3 and a certificate of the nodes' authority.
cafile {folder}/{CA_NAME}
certfile {folder}/{CERT_NAME}
keyfile {folder}/{KEY_NAME}
# If this list is missing at a reload, revoked certificates are accepted: replace it whole, then run bsfg broker reload.
crlfile {folder}/{CRL_NAME}
tls_version tlsv1.3
require_certificate true
allow_anonymous false

# The common name of the certificate is the node. What it may send and receive is in the plugin's file, which is read at
# the start only; all else is refused, subscriptions too, before it costs memory.
use_identity_as_username true
plugin {plan.plugin}
plugin_opt_config_file {folder}/{RIGHTS_NAME}

# A relay without storage: unconfirmed facts stay at the node that recorded them.
persistence false
retain_available false
# No client may read $SYS, so nothing is published there.
sys_interval 0

# Without it a page waits for a delayed acknowledgement: 88 ms instead of 0.4 ms.
set_tcp_nodelay true

# Limits. Announced in CONNACK: the packet size, and the number of unacknowledged packets (ReceiveMaximum).
max_packet_size {PACKET_BYTES_MAX}
max_inflight_messages 16
# QoS 2 would let a client store messages here that it never completes; nodes use QoS 0 and 1.
max_qos 1
# What waits for a reader that does not read; further messages are dropped, and the reader requests them again. At QoS 0
# only messages are counted: 16 pages of 1 MB. Nodes subscribe at QoS 0; the other two lines bound QoS 1.
max_queued_messages 16
max_inflight_bytes {PACKET_BYTES_MAX}
max_queued_bytes {PACKET_BYTES_MAX}
# In total. At this limit Mosquitto disconnects clients, the service manager restarts the broker at its own, which is
# higher, and nodes reconnect within seconds. A thousand plants take 40 MB.
memory_limit 1073741824
# Mosquitto 2.0.11 (Debian 12) lowers its count twice for a connection that ends; the unit's limit of open files holds.
max_connections 4096
# A dead client is detected after one and a half times this, in seconds. A socket that never sends CONNECT is closed
# after 90 to 96 s; Mosquitto has no setting for that.
max_keepalive 120
# A session that outlives its connection is removed; nodes keep none.
persistent_client_expiration 1h

# To standard error, from where systemd writes it to the journal.
log_dest stderr
log_timestamp_format %Y-%m-%dT%H:%M:%S
log_type error
log_type warning
log_type notice
# Reloads are logged at this level.
log_type information
connection_messages true
"""


def parse_config(text: str) -> dict[str, str]:
    """The settings of a configuration. A later line overrides an earlier one, as in Mosquitto."""
    settings = {}
    for line in text.splitlines():
        name, _, value = line.strip().partition(" ")
        if name and not name.startswith("#"):
            settings[name] = value.strip()
    return settings


def _check_plan(plan: BrokerPlan) -> None:
    """Refuse values that could add a second line or a comment to the file. Raises TopologyError."""
    path = rf"/.{{0,{PATH_CHARACTERS_MAX - 1}}}(?<! )"
    forms = (("folder", path), ("plugin", path), ("host", r"\S*"), ("user", r"\S+"), ("port", r"[1-9]\d{0,4}"))
    for what, form in forms:
        value = str(getattr(plan, what))
        if not (value.isprintable() and re.fullmatch(form, value)):
            raise TopologyError(f"{what} {value[:80]!r} cannot stand in a broker's configuration")
    if plan.port > 65535:
        raise TopologyError(f"port {plan.port} is not in 1..65535")
