"""Tracks how far each origin has signed its history, from the newest signed ends that any peer has forwarded.

A relay can withhold facts, which looks like an outage. But an origin signs the end of its chain again whenever a peer
asks (`GetHeads`), and nodes forward the newest ends. An end that is far ahead of the facts held shows that the peer
which delivers the facts withholds some, and an old end shows that no peer has received a newer one of the zone. Two
ends of one origin with the same sequence and different digests prove that the zone has signed two histories. Core: no
IO.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from agent.batch import Origin
from agent.pages import HeldRange

STALE_AFTER_MS = 15 * 60_000
"""Fifteen times the interval at which nodes ask; in three intervals an end passes three nodes."""
WITHHELD_AFTER_MS = 10 * 60_000
"""How long facts may lag behind the newest known end without any progress. A pull that drains a backlog takes hours,
but makes progress."""
ORIGINS_MAX = 1000
"""Origins of all streams. Beyond this, the zone with the most origins loses the one that was signed longest ago. A zone
may sign ends of any number of epochs, which must not displace the ends of another zone."""


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
    """What is known of the signatures of one zone's stream. `signed_at_ms`: the time of its newest end. `behind`: the
    number of signed facts that are not held here. `is_withheld`: facts have been behind for a long time without
    progress."""

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
        """Record an end whose signature was verified. Returns the end known before if the two contradict each other:
        then the zone has signed two histories."""
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
        """The ends of a stream: the most recently signed one of each zone, then the second of each, and so on. Callers
        forward only the first ones."""
        found = sorted(
            (end for end in self._ends.values() if end.stream == stream), key=lambda end: end.signed_at_ms, reverse=True
        )
        seen, turns = Counter[str](), list[tuple[int, SignedEnd]]()
        for end in found:
            turns.append((seen[end.origin.zone], end))
            seen[end.origin.zone] += 1
        return [end for _, end in sorted(turns, key=lambda one: one[0])]

    def views(self, held: Mapping[str, Mapping[Origin, Sequence[HeldRange]]], now_ms: int) -> list[OriginView]:
        """A view for each zone and stream; `held`: by stream and origin. Must be called about every minute, because
        delays are measured between calls."""
        found: dict[tuple[str, str], OriginView] = {}
        for (stream, origin), end in self._ends.items():
            ranges = held.get(stream, {}).get(origin, ())
            last = ranges[-1].last_sequence if ranges else 0
            behind = max(0, end.last_sequence - last)
            is_withheld = self._is_withheld((stream, origin), behind, last, now_ms)
            other = found.get((origin.zone, stream))
            signed_at_ms = max(end.signed_at_ms, other.signed_at_ms if other else 0)  # an ended epoch gets no new ends
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
