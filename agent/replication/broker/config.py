"""Configuration and access list of a site's broker, generated from the links between zones.

A topology is a set of `PeerLink`s: zone `asking` sends requests to zone `serving`. Two texts for Mosquitto 2 are
generated from it and need no editing. The access list has one block per zone with exactly the topics that its links
need:

    a serving zone  reads  bsfg/1/<serving>/<asking>/req      writes bsfg/1/<serving>/<asking>/rsp/+
    an asking zone  writes bsfg/1/<serving>/<asking>/req      reads  bsfg/1/<serving>/<asking>/rsp/+

so a certificate without a link has no rights, and no zone can send or receive in the name of another. Two things are
left to the nodes: the broker grants every subscription and filters at delivery, and it does not check a ResponseTopic.
The configuration makes the broker a relay without storage: no persistence, no retained messages, bounded queues. This
module returns texts; `folder` writes them, `check` tests a running broker.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from agent.replication.protocol.errors import ReplicationError
from agent.replication.protocol.topics import ROOT, is_zone, request_topic

PORT = 8883
"""The registered port of MQTT over TLS."""

USER = "mosquitto"
"""The user that Debian's package creates for the broker."""

PACKET_BYTES_MAX = 1_048_576
"""One page with its header. Without a limit Mosquitto 2.0 accepts 256 MB from any client with a certificate."""

PACKETS_IN_FLIGHT = 8
"""Packets that may wait for one reader on one link: for each of four streams the page being sent and the page read
ahead."""

SMALL_PACKETS = 16
"""In addition: receipts, requests about streams and cursors, and requests to this zone."""

CONNECTIONS_PER_ZONE = 4
"""A node, its second connection while a new identity is tried, and two commands of operators."""

CONNECTIONS_MAX_MIN = 64
"""Lower bound of `max_connections`, for sites with few zones."""

LINKS_MAX = 1024
"""More links than any site has; a longer list is a mistake of a script."""

PATH_CHARACTERS_MAX = 1024


class TopologyError(ReplicationError):
    """A link, name or path that cannot be part of a broker configuration. The message names it and the reason."""


@dataclass(frozen=True, slots=True, order=True)
class PeerLink:
    """A link between two zones: `asking` pulls facts from `serving`, or appends to it."""

    serving: str
    asking: str


@dataclass(frozen=True, slots=True)
class Rights:
    """The topics that one zone may publish and receive; `+` means any instance."""

    write: tuple[str, ...]
    read: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class BrokerLimits:
    """Resource limits of the broker, per client and in total."""

    packet_bytes_max: int = PACKET_BYTES_MAX
    inflight_messages_max: int = 16
    keepalive_s_max: int = 120
    connections_max: int | None = None  # None: computed from the links
    # In total; below MemoryHigh of the systemd drop-in, which would slow down all clients.
    memory_bytes_max: int = 192 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class BrokerPlan:
    """All inputs of the configuration. `folder` is the path of the files on the broker's machine."""

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
    """Parse SERVING:ASKING, in the order of the topics: `plant-a:idmz` means that idmz pulls from plant-a. Raises
    TopologyError."""
    serving, separator, asking = text.partition(":")
    if not separator or not is_zone(serving) or not is_zone(asking):
        raise TopologyError(f"{text[:80]!r} is not a link: write SERVING:ASKING with two zones of [a-z0-9-]{{1,32}}")
    if serving == asking:
        raise TopologyError(f"{text!r} links a zone with itself; a node sends no requests to itself")
    return PeerLink(serving, asking)


def zones_of(links: Iterable[PeerLink]) -> tuple[str, ...]:
    """All zones of these links, sorted."""
    return tuple(sorted({zone for link in links for zone in (link.serving, link.asking)}))


def rights_of(links: Iterable[PeerLink], zone: str) -> Rights:
    """All topics that `zone` may publish and receive."""
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
    """The access list, one block per zone. The order of `links` does not matter."""
    links = _checked(links)
    lines = [
        "# Generated by bsfg broker config from these links (SERVING:ASKING); do not edit.",
        *(f"#   {link.serving}:{link.asking}" for link in links),
        "# User names are the common names of certificates. A zone without a block has no rights: to deny a zone at once,",
        "# open sessions included, remove its block and reload the broker.",
    ]
    for zone in zones_of(links):
        rights = rights_of(links, zone)
        lines += ["", f"user {zone}"]
        lines += [f"topic write {topic}" for topic in rights.write]
        lines += [f"topic read {topic}" for topic in rights.read]
    return "\n".join(lines) + "\n"


def queued_messages_max(links: Iterable[PeerLink]) -> int:
    """Messages that may wait for one client that does not read: as many as the links of the busiest zone need.

    This limit bounds the broker's memory. Mosquitto 2.0.11 counts waiting QoS 0 messages, not their bytes (measured),
    so 200 of them, a usual setting, are 200 MB for each such client. Above the limit every packet is dropped,
    acknowledgements too; a requester that keeps fewer requests open never reaches it."""
    links = _checked(links)
    busiest = max(sum(zone in (link.serving, link.asking) for link in links) for zone in zones_of(links))
    return SMALL_PACKETS + PACKETS_IN_FLIGHT * busiest


def connections_max(links: Iterable[PeerLink]) -> int:
    """Connections that the zones of these links need at most. Mosquitto closes further ones without a reason code."""
    return max(CONNECTIONS_MAX_MIN, CONNECTIONS_PER_ZONE * len(zones_of(_checked(links))))


def render_config(plan: BrokerPlan) -> str:
    """The complete configuration file; nothing is inherited from the distribution's. Raises TopologyError."""
    links = _checked(plan.links)
    _check_plan(plan)
    limits = plan.limits
    folder = plan.folder.rstrip("/")
    queued = queued_messages_max(links)
    connections = limits.connections_max or connections_max(links)
    return f"""\
# Generated by bsfg broker config; do not edit. Start the broker with this file alone (mosquitto -c FILE):
# Debian's own /etc/mosquitto/mosquitto.conf turns persistence on before it includes other files.
user {plan.user}
listener {plan.port}{" " + plan.host if plan.host else ""}

# Clients need TLS 1.3 and a certificate of the zones' authority.
cafile {folder}/{CA_NAME}
certfile {folder}/{CERT_NAME}
keyfile {folder}/{KEY_NAME}
# If this list is missing at a reload, revoked certificates are accepted: replace it whole, then run bsfg broker check.
crlfile {folder}/{CRL_NAME}
tls_version tlsv1.3
require_certificate true
allow_anonymous false

# The common name of the certificate is the user name in the access list.
use_identity_as_username true
acl_file {folder}/{ACL_NAME}

# A relay without storage: unconfirmed facts stay at the node that recorded them.
persistence false
retain_available false
# No client may read $SYS, so nothing is published there.
sys_interval 0

# Without it a page waits for a delayed acknowledgement: 88 ms instead of 0.4 ms.
set_tcp_nodelay true

# Limits. Announced in CONNACK: the packet size, and the number of unacknowledged packets (ReceiveMaximum).
max_packet_size {limits.packet_bytes_max}
max_inflight_messages {limits.inflight_messages_max}
# Queue of one reader that does not read; further messages are dropped, and the reader requests them again. At QoS 0
# only messages are counted, so the first line bounds memory: {SMALL_PACKETS} small ones, {PACKETS_IN_FLIGHT} pages for
# each link of the busiest zone.
max_queued_messages {queued}
max_queued_bytes {queued * limits.packet_bytes_max}
# In total. Beyond it a client that sends is disconnected and reconnects; without it the kernel would kill the broker.
memory_limit {limits.memory_bytes_max}
# A dead client is detected after one and a half times this, in seconds.
max_keepalive {limits.keepalive_s_max}
# {CONNECTIONS_PER_ZONE} connections for each zone: its node, a second one while a new identity is tried, commands of
# operators.
max_connections {connections}

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


def _checked(links: Iterable[PeerLink]) -> list[PeerLink]:
    """The links, sorted and without duplicates. Raises TopologyError for none, too many, or an invalid zone name."""
    links = sorted(set(links))
    if not links:
        raise TopologyError("no links; name at least one SERVING:ASKING")
    if len(links) > LINKS_MAX:
        raise TopologyError(f"{len(links)} links, at most {LINKS_MAX}")
    for link in links:
        parse_link(f"{link.serving}:{link.asking}")
    return links


def _check_plan(plan: BrokerPlan) -> None:
    """Refuse values that could add a second line or a comment to the file. Raises TopologyError."""
    if not plan.folder.startswith("/") or len(plan.folder) > PATH_CHARACTERS_MAX:
        raise TopologyError(f"{plan.folder[:80]!r} is not an absolute path")
    for what, value in (("folder", plan.folder), ("host", plan.host), ("user", plan.user)):
        if any(not character.isprintable() for character in value) or value != value.strip():
            raise TopologyError(f"{what} {value[:80]!r} contains characters that cannot stand in one line")
    for what, value in (("host", plan.host), ("user", plan.user)):
        if " " in value:
            raise TopologyError(f"{what} {value[:80]!r} contains a space")
    if not plan.user:
        raise TopologyError("user is empty; name the user that runs the broker, usually mosquitto")
    if not 1 <= plan.port <= 65535:
        raise TopologyError(f"port {plan.port} is not in 1..65535")
    for name, (lowest, highest) in _LIMIT_RANGES.items():
        value = getattr(plan.limits, name)
        if value is not None and not lowest <= value <= highest:
            raise TopologyError(f"{name} {value} is not in {lowest}..{highest}")
