"""Parked fetches: which wait for which stream to grow. Belongs to one thread, that of the event loop.

A consumer waits once: a newer fetch takes the place of an earlier one, which then ends without an answer. How many
fetches may wait is decided in `admission`.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping

Key = tuple[str, str]
"""Zone and consumer."""


class Waiters:
    """The parked fetches of one server. The result of a wait is True where a newer fetch has taken its place."""

    def __init__(self) -> None:
        self._waits: dict[Key, tuple[str, asyncio.Future[bool]]] = {}
        self._by_zone: Counter[str] = Counter()

    def count(self, zone: str | None = None) -> int:
        """How many wait, in all or of one zone."""
        return len(self._waits) if zone is None else self._by_zone[zone]

    def has_any(self) -> bool:
        """Whether any fetch waits. May be called from any thread."""
        return bool(self._waits)

    def add(self, key: Key, stream: str, ended: asyncio.Future[bool]) -> None:
        """A consumer waits for a stream; `ended` is resolved when the wait is over."""
        self.supersede(key)
        self._waits[key] = stream, ended
        self._by_zone[key[0]] += 1

    def wake(self, ends: Mapping[str, int]) -> None:
        """These streams have grown."""
        for stream, ended in self._waits.values():
            if stream in ends:
                end_wait(ended)

    def supersede(self, key: Key) -> None:
        """A newer fetch of this consumer, or another instance, has come: an earlier wait ends without an answer."""
        if (wait := self._waits.get(key)) is not None:
            end_wait(wait[1], is_superseded=True)
            self.remove(key, wait[1])

    def remove(self, key: Key, ended: asyncio.Future[bool]) -> None:
        """Forget a wait, unless another has taken its place."""
        if key in self._waits and self._waits[key][1] is ended:
            del self._waits[key]
            self._by_zone[key[0]] -= 1


def end_wait(ended: asyncio.Future[bool], *, is_superseded: bool = False) -> None:
    """Resolve a wait once."""
    if not ended.done():
        ended.set_result(is_superseded)
