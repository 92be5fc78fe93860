"""What the broker of a site is told: its configuration and its access list, generated from who asks whom.

A topology is a set of `PeerLink`s, "`asking` asks `serving`".  From it follow two texts for Mosquitto 2, and nothing is
edited by hand afterwards.  The access list has one block per zone with exactly the four kinds of topic its links need:

    a serving zone  reads  bsfg/1/<serving>/<asking>/req      writes bsfg/1/<serving>/<asking>/rsp/+
    an asking zone  writes bsfg/1/<serving>/<asking>/req      reads  bsfg/1/<serving>/<asking>/rsp/+

so a certificate without a link can do nothing, and no zone can ask, answer or listen in the name of another.  What the
broker cannot hold is left to the nodes: it grants every subscription and filters at delivery, and it passes any
ResponseTopic on.  The configuration makes it a relay that keeps nothing: no persistence, nothing retained, queues
bounded in messages and bytes.  This module decides and returns texts; `broker_folder` writes them, `broker_check`
proves a running broker.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from agent.replication.protocol.errors import ReplicationError
from agent.replication.protocol.topics import ROOT, is_zone, request_topic

PORT = 8883
"""MQTT over TLS, as registered."""

USER = "mosquitto"
"""Whom Debian's package makes for the broker to run as."""

PACKET_BYTES_MAX = 1_048_576
"""One page with its header.  Without a limit Mosquitto 2.0 takes 256 MB from anyone with a certificate."""

PACKETS_IN_FLIGHT = 8
"""Packets that may wait for one reader on one link: for four streams the page being sent and one asked ahead."""

SMALL_PACKETS = 16
"""Besides: receipts, questions about streams and cursors, and the requests of those who ask this zone."""

CONNECTIONS_PER_ZONE = 4
"""A node, its next identity beside it while that is proven, and two people at their command lines."""

CONNECTIONS_MAX_MIN = 64
"""However few the zones are."""

LINKS_MAX = 1024
"""More zones than a site has; a longer list is a script gone wrong."""

PATH_CHARACTERS_MAX = 1024


class TopologyError(ReplicationError):
    """A link, name or path of which no broker configuration can be made; says which and why."""


@dataclass(frozen=True, slots=True, order=True)
class PeerLink:
    """One zone asks another: `asking` pulls facts from `serving`, or appends to it."""

    serving: str
    asking: str


@dataclass(frozen=True, slots=True)
class Rights:
    """The topics (with `+` where any instance is meant) that one zone may write and read."""

    write: tuple[str, ...]
    read: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class BrokerLimits:
    """What clients may take of the broker, one by one and all together."""

    packet_bytes_max: int = PACKET_BYTES_MAX
    inflight_messages_max: int = 16
    keepalive_s_max: int = 120
    connections_max: int | None = None  # None: room for every zone that has a link
    # Of all clients together; below the MemoryHigh of the systemd drop-in, where everybody would be slowed down.
    memory_bytes_max: int = 192 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class BrokerPlan:
    """Everything the configuration depends on.  `folder` is where the broker will find its files."""

    links: tuple[PeerLink, ...]
    folder: str
    host: str = ""
    port: int = PORT
    user: str = USER
    limits: BrokerLimits = BrokerLimits()


_LIMIT_RANGES = {
    # Below 64 KiB a request with its list of known definitions no longer fits; above 256 MB MQTT itself ends.
    "packet_bytes_max": (65_536, 268_435_455),
    "inflight_messages_max": (1, 65_535),
    "memory_bytes_max": (16_777_216, 0x7FFF_FFFF),
    "keepalive_s_max": (10, 65_535),
    "connections_max": (1, 100_000),
}

CONFIG_NAME = "mosquitto.conf"
ACL_NAME = "acl"
CA_NAME = "zones-ca.pem"
CRL_NAME = "zones.crl"
CERT_NAME = "broker.pem"
KEY_NAME = "broker.key"


def parse_link(text: str) -> PeerLink:
    """`plant-a:idmz` means that idmz asks plant-a: first who has the facts, then who wants them, as in the topics."""
    serving, separator, asking = text.partition(":")
    if not separator or not is_zone(serving) or not is_zone(asking):
        raise TopologyError(f"{text[:80]!r} is no link: write SERVING:ASKING with two zones of [a-z0-9-]{{1,32}}")
    if serving == asking:
        raise TopologyError(f"{text!r} links a zone with itself: a node never asks itself")
    return PeerLink(serving, asking)


def zones_of(links: Iterable[PeerLink]) -> tuple[str, ...]:
    """Every zone that takes part, sorted."""
    return tuple(sorted({zone for link in links for zone in (link.serving, link.asking)}))


def rights_of(links: Iterable[PeerLink], zone: str) -> Rights:
    """What `zone` may do at the broker, and all that it may do."""
    write: list[str] = []
    read: list[str] = []
    for link in sorted(set(links)):
        request = request_topic(link.serving, link.asking)
        responses = f"{ROOT}/{link.serving}/{link.asking}/rsp/+"
        if zone == link.serving:
            read.append(request)
            write.append(responses)
        if zone == link.asking:
            write.append(request)
            read.append(responses)
    return Rights(tuple(write), tuple(read))


def render_acl(links: Iterable[PeerLink]) -> str:
    """The access list: one block per zone, the same bytes for the same links in whatever order."""
    links = _checked(links)
    lines = [
        "# Generated by bsfg broker config from these links (SERVING:ASKING); make changes there.",
        *(f"#   {link.serving}:{link.asking}" for link in links),
        "# User names are the common names of certificates. Whoever has no block here may do nothing: removing a block",
        "# and reloading the broker shuts a zone out at once, also its living sessions.",
    ]
    for zone in zones_of(links):
        rights = rights_of(links, zone)
        lines += ["", f"user {zone}"]
        lines += [f"topic write {topic}" for topic in rights.write]
        lines += [f"topic read {topic}" for topic in rights.read]
    return "\n".join(lines) + "\n"


def queued_messages_max(links: Iterable[PeerLink]) -> int:
    """Messages that may wait for one client that does not read: what the links of the busiest zone need, and no more.

    This is the limit that holds the broker's memory: measured with Mosquitto 2.0.11, what waits at QoS 0 is counted in
    messages only, never in bytes, so 200 of them (a usual setting) are 200 MB for each deaf reader.  Above the limit every
    packet is dropped, also an acknowledgement: an asker that keeps its open requests below it never sees that.
    """
    links = _checked(links)
    busiest = max(sum(zone in (link.serving, link.asking) for link in links) for zone in zones_of(links))
    return SMALL_PACKETS + PACKETS_IN_FLIGHT * busiest


def connections_max(links: Iterable[PeerLink]) -> int:
    """Connections that the zones of these links need at the most. Mosquitto closes what comes beyond without a word to the client."""
    return max(CONNECTIONS_MAX_MIN, CONNECTIONS_PER_ZONE * len(zones_of(_checked(links))))


def render_config(plan: BrokerPlan) -> str:
    """The main configuration file, complete: nothing is inherited from a distribution's own."""
    links = _checked(plan.links)
    _check_plan(plan)
    limits = plan.limits
    folder = plan.folder.rstrip("/")
    queued = queued_messages_max(links)
    connections = limits.connections_max or connections_max(links)
    return f"""\
# Generated by bsfg broker config; make changes there. Start the broker with this file alone (mosquitto -c FILE):
# Debian's own /etc/mosquitto/mosquitto.conf turns persistence on before it includes anything.
user {plan.user}
listener {plan.port}{" " + plan.host if plan.host else ""}

# Who may connect: whoever the zones' authority signed, and nobody else. TLS 1.3 or nothing.
cafile {folder}/{CA_NAME}
certfile {folder}/{CERT_NAME}
keyfile {folder}/{KEY_NAME}
# At a reload a missing list lets revoked certificates in: replace it whole, then prove it with bsfg broker check.
crlfile {folder}/{CRL_NAME}
tls_version tlsv1.3
require_certificate true
allow_anonymous false

# Who they are: the common name of the certificate is the user the access list speaks of.
use_identity_as_username true
acl_file {folder}/{ACL_NAME}

# A relay, not a store: what a node has not confirmed is kept by the node that wrote it, never here.
persistence false
retain_available false
# Nobody may read $SYS, so nothing is published there.
sys_interval 0

# Without it a page waits for a delayed acknowledgement: 88 ms in place of 0.4 ms.
set_tcp_nodelay true

# Limits. Told to clients in CONNACK: the size of a packet, and how many unacknowledged ones (ReceiveMaximum).
max_packet_size {limits.packet_bytes_max}
max_inflight_messages {limits.inflight_messages_max}
# What waits for one reader that does not read; more is dropped here and asked for again by its reader. Messages at QoS 0
# are only counted, so the first line bounds the memory: {SMALL_PACKETS} small ones, and {PACKETS_IN_FLIGHT} pages for each link of the busiest zone.
max_queued_messages {queued}
max_queued_bytes {queued * limits.packet_bytes_max}
# Of all together. Beyond it whoever sends is disconnected and comes back, in place of the kernel ending the broker.
memory_limit {limits.memory_bytes_max}
# A dead client is noticed after one and a half times this, in seconds.
max_keepalive {limits.keepalive_s_max}
# For {CONNECTIONS_PER_ZONE} connections of each zone: its node, a new identity beside it, people at their command lines.
max_connections {connections}

# To standard error, where systemd's journal takes it.
log_dest stderr
log_timestamp_format %Y-%m-%dT%H:%M:%S
log_type error
log_type warning
log_type notice
# Reloads are told at this level.
log_type information
connection_messages true
"""


def _checked(links: Iterable[PeerLink]) -> list[PeerLink]:
    """The links, each once and in order; refuses none, too many, and zones that would break out of a line."""
    links = sorted(set(links))
    if not links:
        raise TopologyError("no links: a broker for nobody; name at least one SERVING:ASKING")
    if len(links) > LINKS_MAX:
        raise TopologyError(f"{len(links)} links, at most {LINKS_MAX}")
    for link in links:
        parse_link(f"{link.serving}:{link.asking}")
    return links


def _check_plan(plan: BrokerPlan) -> None:
    """Each value ends up in a line of its own, so none may bring a second line or a comment with it."""
    if not plan.folder.startswith("/") or len(plan.folder) > PATH_CHARACTERS_MAX:
        raise TopologyError(f"{plan.folder[:80]!r} is no absolute path; the broker starts anywhere")
    for what, value in (("folder", plan.folder), ("host", plan.host), ("user", plan.user)):
        if any(not character.isprintable() for character in value) or value != value.strip():
            raise TopologyError(f"{what} {value[:80]!r} holds characters that do not fit into one line")
    for what, value in (("host", plan.host), ("user", plan.user)):
        if " " in value:
            raise TopologyError(f"{what} {value[:80]!r} holds a space")
    if not plan.user:
        raise TopologyError("user is empty; name the user the broker runs as, by custom mosquitto")
    if not 1 <= plan.port <= 65535:
        raise TopologyError(f"port {plan.port} is not in 1..65535")
    for name, (lowest, highest) in _LIMIT_RANGES.items():
        value = getattr(plan.limits, name)
        if value is not None and not lowest <= value <= highest:
            raise TopologyError(f"{name} {value} is not in {lowest}..{highest}")
