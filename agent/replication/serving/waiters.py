"""Parked fetches: who waits for which stream to grow.  Belongs to the event loop's thread.

One wait per consumer: whoever asks again with the same consumer has given the earlier request up, which then ends without
an answer.  How many may wait in all is decided in `sender`.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Mapping
from enum import Enum


class _Reason(Enum):
    GROWN = "the stream has grown"
    OVER = "the wait is over"
    SUPERSEDED = "a newer fetch of the same consumer came"


_Key = tuple[str, str]


class Waiters:
    """Futures by stream, and by (zone, consumer)."""

    def __init__(self) -> None:
        self._by_stream: dict[str, dict[_Key, asyncio.Future[_Reason]]] = {}
        self._by_key: dict[_Key, asyncio.Future[_Reason]] = {}
        self._by_zone: Counter[str] = Counter()

    def count(self, zone: str | None = None) -> int:
        """How many wait, in all or of one zone."""
        return len(self._by_key) if zone is None else self._by_zone[zone]

    def anybody(self) -> bool:
        """Whether anybody waits; may be asked from any thread."""
        return bool(self._by_key)

    def wake(self, ends: Mapping[str, int]) -> None:
        """These streams have grown."""
        for stream in ends:
            for future in self._by_stream.get(stream, {}).values():
                _finish(future, _Reason.GROWN)

    async def wait(self, key: _Key, stream: str, wait_s: float, has_grown: Callable[[], bool]) -> bool:
        """Until the stream grows or `wait_s` are over; True when a newer wait of the same consumer took the place.

        `has_grown` is asked once more after the place is taken: the log may have grown since the caller looked, and its
        writer may not have seen anybody to wake.
        """
        loop = asyncio.get_running_loop()
        self.supersede(key)
        future: asyncio.Future[_Reason] = loop.create_future()
        self._by_key[key] = future
        self._by_stream.setdefault(stream, {})[key] = future
        self._by_zone[key[0]] += 1
        if has_grown():
            _finish(future, _Reason.GROWN)
        over = loop.call_later(max(wait_s, 0.0), _finish, future, _Reason.OVER)
        try:
            return await future is _Reason.SUPERSEDED
        finally:
            over.cancel()
            if self._by_key.get(key) is future:
                self._leave(key)

    def supersede(self, key: _Key) -> None:
        """Whoever waits for this consumer waits in vain: a newer request or another instance has come."""
        earlier = self._by_key.get(key)
        if earlier is not None:
            _finish(earlier, _Reason.SUPERSEDED)
            self._leave(key)

    def _leave(self, key: _Key) -> None:
        del self._by_key[key]
        self._by_zone[key[0]] -= 1
        for waiting in self._by_stream.values():
            waiting.pop(key, None)


def _finish(future: asyncio.Future[_Reason], reason: _Reason) -> None:
    if not future.done():
        future.set_result(reason)
