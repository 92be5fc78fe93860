"""Which facts a table has, by stream, zone, epoch and sequence, as ranges. Core: no IO.

Needed only where a table may have facts that come again at other offsets: several checkpoints that write one table, and
a store that was restored and is read once more.
"""

from __future__ import annotations

import json
from bisect import bisect_right
from collections.abc import Iterable, Sequence

Spans = list[tuple[int, int]]
Origin = tuple[str, str, str]
"""Stream, zone, epoch."""


class Identities:
    """Sequences by stream, zone and epoch (hex)."""

    def __init__(self) -> None:
        self._spans: dict[Origin, Spans] = {}

    def __bool__(self) -> bool:
        return bool(self._spans)

    def add(self, origin: Origin, sequences: Iterable[int]) -> None:
        """Take sequences of one stream and origin, in any order."""
        spans = self._spans.setdefault(origin, [])
        for sequence in sequences:
            if spans and spans[-1][0] <= sequence <= spans[-1][1] + 1:
                spans[-1] = (spans[-1][0], max(spans[-1][1], sequence))
            else:
                spans.append((sequence, sequence))

    def sealed(self) -> Identities:
        """The same, with ranges in order and joined: call it after `add`, before `has`."""
        for origin, spans in self._spans.items():
            joined: Spans = []
            for first, last in sorted(spans):
                if joined and first <= joined[-1][1] + 1:
                    joined[-1] = (joined[-1][0], max(joined[-1][1], last))
                else:
                    joined.append((first, last))
            self._spans[origin] = joined
        return self

    def has(
        self, streams: Sequence[str], zones: Sequence[str], epochs: Sequence[str], sequences: Sequence[int]
    ) -> list[bool]:
        """Of each fact, whether it is here."""
        return [
            self._has((stream, zone, epoch), sequence)
            for stream, zone, epoch, sequence in zip(streams, zones, epochs, sequences, strict=True)
        ]

    def to_json(self) -> str:
        """As an option of a write."""
        return json.dumps([[*origin, spans] for origin, spans in self._spans.items()])

    @classmethod
    def of(cls, text: str) -> Identities:
        """From `to_json`."""
        found = cls()
        for stream, zone, epoch, spans in json.loads(text):
            found._spans[stream, zone, epoch] = [(first, last) for first, last in spans]
        return found

    def _has(self, origin: Origin, sequence: int) -> bool:
        spans = self._spans.get(origin, [])
        place = bisect_right(spans, (sequence, 2**63)) - 1
        return place >= 0 and sequence <= spans[place][1]
