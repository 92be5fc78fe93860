"""The identities of the facts in a table: ranges of sequences by stream, zone and life. Core: no IO.

Needed only if facts may come again at other offsets: if several checkpoints write one table, or a restored store is
read again.
"""

from __future__ import annotations

import json
from bisect import bisect_right
from collections.abc import Iterable, Sequence

Spans = list[tuple[int, int]]
Origin = tuple[str, str, str]
"""Stream, zone, life."""


class Identities:
    """Sequences by stream, zone and life (hex)."""

    def __init__(self) -> None:
        self._spans: dict[Origin, Spans] = {}

    def __bool__(self) -> bool:
        return bool(self._spans)

    def add(self, origin: Origin, sequences: Iterable[int]) -> None:
        """Add sequences of one stream and origin, in any order."""
        spans = self._spans.setdefault(origin, [])
        for sequence in sequences:
            if spans and spans[-1][0] <= sequence <= spans[-1][1] + 1:
                spans[-1] = (spans[-1][0], max(spans[-1][1], sequence))
            else:
                spans.append((sequence, sequence))

    def sealed(self) -> Identities:
        """Sort and join the ranges. Call it after `add` and before `has`."""
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
        self, streams: Sequence[str], zones: Sequence[str], lives: Sequence[str], sequences: Sequence[int]
    ) -> list[bool]:
        """Whether each fact is in the table."""
        return [
            self._has((stream, zone, life), sequence)
            for stream, zone, life, sequence in zip(streams, zones, lives, sequences, strict=True)
        ]

    def to_json(self) -> str:
        """The identities as the text of an option."""
        return json.dumps([[*origin, spans] for origin, spans in self._spans.items()])

    @classmethod
    def of(cls, text: str) -> Identities:
        """The identities from the text of `to_json`."""
        found = cls()
        for stream, zone, life, spans in json.loads(text):
            found._spans[stream, zone, life] = [(first, last) for first, last in spans]
        return found

    def _has(self, origin: Origin, sequence: int) -> bool:
        spans = self._spans.get(origin, [])
        place = bisect_right(spans, (sequence, 2**63)) - 1
        return place >= 0 and sequence <= spans[place][1]
