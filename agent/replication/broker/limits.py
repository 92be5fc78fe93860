"""Core: the limits of one broker process, and the proof that together they stay below its memory limit.

Mosquitto counts the packets that wait for a client, not their bytes, and its memory limit is one for all clients: at
the limit it disconnects honest clients too. So the limit must never be reached. The number of connections, the queue of
each and the largest packet are chosen first; `heap_bytes_max` is what they can occupy at worst, and the memory limit is
that and a reserve. The same function judges a configuration that was changed by hand.
"""

from __future__ import annotations

from dataclasses import dataclass

PACKET_BYTES_MAX = 1_048_576
"""One page with its header. Without a limit Mosquitto 2.0 accepts 256 MB from any client with a certificate."""

PACKETS_IN_FLIGHT = 8
"""Packets that may wait for one reader on one link: for each of four streams the page being sent and the page read
ahead."""

SMALL_PACKETS = 8
"""In addition: receipts, requests about streams and cursors, and requests to this zone."""

QUEUED_MIN = SMALL_PACKETS + PACKETS_IN_FLIGHT
"""Packets of one link. A process with many links queues fewer than all of them could send; pages that do not fit are
requested again."""

INFLIGHT_MESSAGES_MAX = 16
"""Unacknowledged packets of one client; announced in CONNACK."""

QOS_1_BYTES_MAX = PACKET_BYTES_MAX
"""QoS 1 messages in flight to one client, and as much again that waits. Nodes subscribe at QoS 0 and need neither."""

CONNECTIONS_PER_ZONE = 6
"""A node, its second connection while a new identity is tried, two commands of operators, two Spark tasks."""

CONNECTIONS_MAX = 512
NEW_CONNECTIONS_PER_MINUTE = 60
"""From one source address. A node tries at most every quarter of a second, on average every few seconds."""
NEW_CONNECTIONS_BURST = 30

RESERVE_BYTES = 32 * 1024 * 1024
"""The broker itself, subscriptions, sessions."""

MEMORY_BYTES_MAX = 4 * 1024 * 1024 * 1024
"""Of one process. A process that would need more carries too many links."""

KERNEL_BYTES_PER_CONNECTION = 6 * 1024 * 1024
"""Socket buffers and OpenSSL, which Mosquitto's own limit does not count and the service manager's does."""

FILES_BESIDE_CONNECTIONS = 12
"""Descriptors of a broker without clients: standard streams, listeners, epoll, a spare one, the log."""

_PACKETS_BESIDE_QUEUE = 5
"""Per connection: the packet being written, the packet being read and its copy in the message store, and one packet
beyond each of the two limits in bytes, which are checked before a packet is added."""
_CONNECTION_BYTES = 64 * 1024
_STEP_BYTES = 16 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits of one broker process. `heap_bytes` is what they can occupy at worst."""

    connections: int
    connections_per_source: int
    queued_messages: int
    heap_bytes: int

    @property
    def memory_bytes(self) -> int:
        """Mosquitto's own limit of its heap."""
        return -(-(self.heap_bytes + RESERVE_BYTES) // _STEP_BYTES) * _STEP_BYTES

    @property
    def service_bytes(self) -> int:
        """Of the process with its socket buffers, for the service manager."""
        return self.memory_bytes + self.connections * KERNEL_BYTES_PER_CONNECTION + RESERVE_BYTES

    @property
    def files(self) -> int:
        """Open files; a second limit of connections, for a Mosquitto that miscounts them."""
        return self.connections + FILES_BESIDE_CONNECTIONS


def limits_of(zones: int, links_of_busiest: int, connections: int = 0) -> Limits:
    """The limits for a process that carries the links of `zones` zones, the busiest of which is part of
    `links_of_busiest`. `connections` replaces the computed number unless it is 0."""
    assert zones >= 2
    assert links_of_busiest >= 1
    connections = connections or CONNECTIONS_PER_ZONE * zones
    each = (MEMORY_BYTES_MAX - RESERVE_BYTES - _STEP_BYTES) // connections - _CONNECTION_BYTES - 2 * QOS_1_BYTES_MAX
    fits = each // PACKET_BYTES_MAX - _PACKETS_BESIDE_QUEUE
    wanted = SMALL_PACKETS + PACKETS_IN_FLIGHT * links_of_busiest
    queued = max(QUEUED_MIN, min(wanted, fits))
    heap = heap_bytes_max(connections, queued, PACKET_BYTES_MAX, QOS_1_BYTES_MAX, QOS_1_BYTES_MAX)
    # Two thirds: one address cannot take every connection.
    return Limits(connections, max(CONNECTIONS_PER_ZONE, connections * 2 // 3), queued, heap)


def heap_bytes_max(
    connections: int, queued_messages: int, packet_bytes: int, inflight_bytes: int, queued_bytes: int
) -> int:
    """What clients that do not read can occupy at worst: each connection has a full queue of the largest packets."""
    each = (queued_messages + _PACKETS_BESIDE_QUEUE) * packet_bytes + inflight_bytes + queued_bytes
    return connections * (each + _CONNECTION_BYTES)
