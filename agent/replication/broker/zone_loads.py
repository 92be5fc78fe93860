"""Who uses a broker: the open sessions of each certificate, and what they send. Core: texts in, values out.

The broker's log says which certificate has connected from which address and port, and `ss` (iproute2) which of these
connections are open and how many bytes came over each. Mosquitto itself counts neither for a certificate, and has no
limit for its sessions.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

UNKNOWN = "?"
"""The zone of a connection whose begin is not in the log, or that has not said CONNECT yet."""
SESSIONS_MAX = 32
"""Of a zone. Its node has one, or two while its certificate changes, and each command and Spark task has one."""
CORES_MAX = 0.8
"""Of the one thread of a broker, over the time of a look: beyond it, other zones wait."""
_CONNECTED = re.compile(r"New client connected from (\S+) as .* \(.*u'([a-z0-9-]{1,32})'")
_OPEN = re.compile(r"(?m)^\d+ +\d+ +\S+ +(\S+) *\n?[^\n]*?bytes_received:(\d+)")


class ZoneLoad(NamedTuple):
    """What a certificate uses of a broker."""

    zone: str
    sessions: int
    bytes_per_s: int


class ZoneAbuse(NamedTuple):
    """A certificate that uses more of a broker than a zone does."""

    zone: str
    why: str
    sessions: int


def abuses(loads: Sequence[ZoneLoad], cores: float) -> list[ZoneAbuse]:
    """The zones that have too many sessions, and the one that sends most while the broker is busy. `loads`: the one
    that sends most first."""
    busiest = loads[0].zone if loads and cores > CORES_MAX else UNKNOWN
    return [
        ZoneAbuse(zone, f"has {number:,} sessions at the broker and sends {bytes_per_s / 1000:,.0f} kB/s", number)
        for zone, number, bytes_per_s in loads
        if zone != UNKNOWN and (number > SESSIONS_MAX or zone == busiest)
    ]


def zones_by_address(log: Iterable[str]) -> dict[str, str]:
    """The zone that connected last from each address and port."""
    found = (_CONNECTED.search(line) for line in log)
    return {_address(match[1]): match[2] for match in found if match is not None}


def received_bytes(listed: str) -> dict[str, int]:
    """The bytes received over each open connection, by the other side's address and port; `listed` by
    `ss -Htni state established`."""
    return {_address(address): int(count) for address, count in _OPEN.findall(listed)}


def zone_loads(
    zones: Mapping[str, str], before: Mapping[str, int], after: Mapping[str, int], seconds: float
) -> list[ZoneLoad]:
    """What each zone uses, between two looks; the one that sends most first."""
    sessions, received = Counter[str](), Counter[str]()
    for address, count in after.items():
        zone = zones.get(address, UNKNOWN)
        sessions[zone] += 1
        received[zone] += count - before.get(address, 0)
    found = [ZoneLoad(zone, number, int(received[zone] / seconds)) for zone, number in sessions.items()]
    return sorted(found, key=lambda load: (-load.bytes_per_s, -load.sessions, load.zone))


def _address(text: str) -> str:
    """An address and port as both programs write it."""
    return text.replace("[", "").replace("]", "").removeprefix("::ffff:")
