"""Core: facts of a zone that its own health names and that do not come: a relay withholds them.

Each health of a node names the last sequence of its own facts in each stream. Health may pass a relay that holds back
another stream, so the end that a zone has named is compared with what is held here. A stream of which no fact is here
is not read here and not judged; one that catches up is not judged while its facts come.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from agent.health.samples import folders
from agent.page import words

WAIT_MS = 600_000
"""Without a fact for so long, a named end is missing."""

Reached = Callable[[str, str, bytes], int | None]
"""reached(zone, stream, life): the last sequence of that life held here, 0 if none is; None if no fact of the zone is
held in that stream."""


@dataclass(frozen=True, slots=True)
class _Wait:
    life: bytes
    here: int
    since_ms: int


class NamedEnds:
    """What zones have named, and since when nothing of it has come."""

    def __init__(self) -> None:
        self._waits: dict[tuple[str, str], _Wait] = {}

    def look(self, zone: str, values: Mapping[str, object], reached: Reached, now_ms: int) -> str:
        """What is missing of a zone by its newest health, in words; empty if nothing is."""
        missing = ""
        for (stream, *_), found in sorted(folders(values, "stream")):
            life, sequence = _end(found.get("own_end"))
            here = reached(zone, stream, life) if sequence else None
            wait = self._waits.get((zone, stream))
            if here is None or here >= sequence:
                self._waits.pop((zone, stream), None)
            elif wait is None or (wait.life, wait.here) != (life, here):
                self._waits[zone, stream] = _Wait(life, here, now_ms)
            elif now_ms - wait.since_ms >= WAIT_MS:
                missing = missing or (
                    f"{stream}: its health names sequence {sequence:,} of life {life.hex()}, here are {here:,} of it, and"
                    f" no fact has come for {words.age((now_ms - wait.since_ms) / 1000)}"
                )
        return missing


def _end(value: object) -> tuple[bytes, int]:
    """Life and last sequence, as `StreamStatus.own_end` has them; 0 if the value is another."""
    life, _, sequence = value.partition(":") if isinstance(value, str) else ("", "", "")
    try:
        return bytes.fromhex(life), int(sequence) if sequence.isascii() and sequence.isdecimal() else 0
    except ValueError:
        return b"", 0
