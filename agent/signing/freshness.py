"""How far each origin has signed its history, from the newest signed ends that any peer has passed on.

A relay can withhold facts; that looks like an outage. But an origin signs the end of its chain afresh whenever a peer
asks (`GetHeads`), and nodes pass the newest ends on. An end that is far ahead of the facts held shows that the peer
which brings the facts holds some back, and an old end shows that no peer has received a newer one of the zone. Two ends
of one origin with the same sequence and different digests prove that the zone has signed two histories. Core: no IO.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from agent.batch import Origin
from agent.pages import HeldRange

STALE_AFTER_MS = 15 * 60_000
"""Fifteen times the interval at which nodes ask; an end passes three nodes in three of them."""
WITHHELD_AFTER_MS = 10 * 60_000
"""For so long facts may be behind the newest end that is known: a pull that drains a backlog takes hours, but gets
on."""
ORIGINS_MAX = 1000
"""Origins of all streams; beyond, the zone that has most of them loses the one that was signed longest ago. A zone may
sign ends of any number of epochs, and so must not displace the ends of another."""


class SignedEnd(NamedTuple):
    """The end of an origin's chain in a stream, the head that signs it, and the certificate (DER) of its key; the
    signature was verified here."""

    stream: str
    origin: Origin
    last_sequence: int
    digest: bytes
    head: bytes
    signed_at_ms: int
    certificate: bytes = b""


class OriginView(NamedTuple):
    """What is known of the signatures of one zone's stream. `signed_at_ms`: of its newest end; `behind`: how many facts
    it has signed that are not held here; `is_withheld`: so many for a long time, without getting on."""

    zone: str
    stream: str
    signed_at_ms: int
    behind: int
    is_stale: bool
    is_withheld: bool


@dataclass(slots=True)
class _Behind:
    """Since when facts have been behind the newest end while the last sequence held stayed the same."""

    last_sequence: int
    since_ms: int


@dataclass(slots=True)
class Freshness:
    """The newest signed end of each origin and stream."""

    _ends: dict[tuple[str, Origin], SignedEnd] = field(default_factory=dict)
    _behind: dict[tuple[str, Origin], _Behind] = field(default_factory=dict)

    def note(self, end: SignedEnd) -> SignedEnd | None:
        """Take an end whose signature was verified. Returns the one known before if it contradicts this one: the zone
        has signed two histories."""
        key = end.stream, end.origin
        known = self._ends.get(key)
        if known is not None and known.last_sequence == end.last_sequence and known.digest != end.digest:
            return known
        if known is None or (known.last_sequence, known.signed_at_ms) < (end.last_sequence, end.signed_at_ms):
            self._ends[key] = end
            if len(self._ends) > ORIGINS_MAX:
                self._forget_one()
        return None

    def _forget_one(self) -> None:
        counts = Counter(origin.zone for _, origin in self._ends)
        largest = max(counts, key=lambda zone: counts[zone])
        ends = [(end.signed_at_ms, key) for key, end in self._ends.items() if end.origin.zone == largest]
        _, oldest = min(ends, key=lambda one: one[0])
        del self._ends[oldest]
        self._behind.pop(oldest, None)

    def newest(self, stream: str) -> list[SignedEnd]:
        """The ends of a stream: the most recently signed one of each zone, then the second of each, and so on. Only the
        first ones are passed on."""
        found = sorted(
            (end for end in self._ends.values() if end.stream == stream), key=lambda end: end.signed_at_ms, reverse=True
        )
        seen, turns = Counter[str](), list[tuple[int, SignedEnd]]()
        for end in found:
            turns.append((seen[end.origin.zone], end))
            seen[end.origin.zone] += 1
        return [end for _, end in sorted(turns, key=lambda one: one[0])]

    def views(self, held: Mapping[str, Mapping[Origin, Sequence[HeldRange]]], now_ms: int) -> list[OriginView]:
        """One for each zone and stream; `held`: by stream and origin. To be called every minute or so, because a delay
        is measured between calls."""
        found: dict[tuple[str, str], OriginView] = {}
        for (stream, origin), end in self._ends.items():
            ranges = held.get(stream, {}).get(origin, ())
            last = ranges[-1].last_sequence if ranges else 0
            behind = max(0, end.last_sequence - last)
            is_withheld = self._is_withheld((stream, origin), behind, last, now_ms)
            other = found.get((origin.zone, stream))
            signed_at_ms = max(
                end.signed_at_ms, other.signed_at_ms if other else 0
            )  # an epoch that is over stays as it is
            found[origin.zone, stream] = OriginView(
                origin.zone,
                stream,
                signed_at_ms,
                behind + (other.behind if other else 0),
                now_ms - signed_at_ms > STALE_AFTER_MS,
                is_withheld or (other is not None and other.is_withheld),
            )
        return [found[key] for key in sorted(found)]

    def _is_withheld(self, key: tuple[str, Origin], behind: int, last: int, now_ms: int) -> bool:
        known = self._behind.get(key)
        if behind == 0:
            self._behind.pop(key, None)
            return False
        if known is None or known.last_sequence != last:
            known = self._behind[key] = _Behind(last, now_ms)
        return now_ms - known.since_ms > WITHHELD_AFTER_MS
