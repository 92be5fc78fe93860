"""The high-water mark of reads: the highest offset of each stream that any reader has received in this life of the
store.

No reader has received the facts above it, so they can be resealed under a new epoch (reseal.py). It is kept in memory
and costs no commit. Programs that open the file themselves are not counted.
"""

from __future__ import annotations

import threading  # tidy: for locks around a few numbers; nothing here starts a thread
from collections.abc import Mapping

from agent.fact_store.log import EpochChanging


class ReadHighWater:
    """The highest offset of each stream that any reader has received in this life. Thread-safe.

    Facts that were in the store when it was opened count as read, because reads of earlier lives are not recorded.
    """

    def __init__(self, ends: Mapping[str, int]) -> None:
        """`ends`: where each stream ended when the store was opened."""
        self._offsets = dict(ends)
        self._is_frozen = False
        self._lock = threading.Lock()
        self.generation = 0
        """Incremented by `thaw`. A reader notes it before it reads, and passes it to
        `record`."""

    def record(self, stream: str, last_offset: int, generation: int) -> None:
        """Record that facts up to an offset, read in a generation, are about to be returned. Raises EpochChanging
        while frozen, or if that generation is over: facts read before its end may have been resealed."""
        with self._lock:
            if self._is_frozen or generation != self.generation:
                raise EpochChanging("the store is beginning a new epoch")
            self._offsets[stream] = max(last_offset, self._offsets.get(stream, 0))

    def freeze(self) -> dict[str, int]:
        """Refuse all further reads; returns the highest offset read of each stream. Facts above it stay unread
        (decision 0041)."""
        with self._lock:
            self._is_frozen = True
            return dict(self._offsets)

    def thaw(self) -> None:
        """Allow reads again: the new epoch is durable, or was not begun. Pages still being read are refused by
        `record`."""
        with self._lock:
            self._is_frozen = False
            self.generation += 1
