"""Core: facts of a zone that its own health names and that do not come: a relay withholds them.

Each health of a node names the last sequence of its own facts in each stream: of its zone, if it records for it, and of
what it says of itself. Health may pass a relay that holds back
another stream, so the end that a zone has named is compared with what is held here. A stream of which no fact is here
is not read here and not judged; one that catches up is not judged while its facts come.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import NamedTuple

from agent.health.samples import folders
from agent.page import words

WAIT_MS = 600_000
"""Without a fact for so long, a named end is missing."""
ZONES_MAX = 2
"""That a node records: its zone and itself. Whatever else it names is not looked up."""

Reached = Callable[[str, str, bytes], int | None]
"""reached(zone, stream, life): the last sequence of that life held here, 0 if none is; None if no fact of the zone is
held in that stream."""


class _End(NamedTuple):
    """The last sequence of a life that a node has recorded in a stream."""

    zone: str
    life: bytes
    sequence: int


@dataclass(frozen=True, slots=True)
class _Wait:
    life: bytes
    here: int
    since_ms: int


class NamedEnds:
    """What nodes have named, and since when nothing of it has come."""

    def __init__(self) -> None:
        self._waits: dict[str, dict[tuple[str, str], _Wait]] = {}

    def look(self, node: str, values: Mapping[str, object], reached: Reached, now_ms: int) -> str:
        """What is missing of a node by its newest health, in words; empty if nothing is. An end that it names no more,
        as a gateway that no longer records, is not waited for."""
        before, waits, missing = self._waits.get(node, {}), dict[tuple[str, str], _Wait](), ""
        for (stream, *_), found in sorted(folders(values, "stream")):
            for zone, life, sequence in _ends(found.get("own_end")):
                here = reached(zone, stream, life)
                if here is None or here >= sequence:
                    continue
                wait = before.get((zone, stream))
                if wait is None or (wait.life, wait.here) != (life, here):
                    wait = _Wait(life, here, now_ms)
                waits[zone, stream] = wait
                if now_ms - wait.since_ms >= WAIT_MS:
                    missing = missing or (
                        f"{stream}: its health names sequence {sequence:,} of life {life.hex()}, here are {here:,} of it,"
                        f" and no fact has come for {words.age((now_ms - wait.since_ms) / 1000)}"
                    )
        self._waits[node] = waits
        return missing


def _ends(value: object) -> Iterator[_End]:
    """The ends in a value of `StreamStatus.own_end`; none if it is another value."""
    for part in value.split(" ", ZONES_MAX)[:ZONES_MAX] if isinstance(value, str) else ():
        zone, _, end = part.partition(":")
        life, _, sequence = end.partition(":")
        with suppress(ValueError):
            number = int(sequence) if sequence.isascii() and sequence.isdecimal() else 0
            if number:
                yield _End(zone, bytes.fromhex(life), number)
