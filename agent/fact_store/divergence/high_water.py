"""Two high-water marks of what has left the store: the highest offset read in this life, and the highest offset served
to each zone.

    ReadHighWater       per stream, in this life of the process, by any reader. No reader has got the facts above it, so
                        they can be resealed under a new epoch (reseal.py)
    ServedHighWater     per stream and zone, over all lives of this epoch. A zone that has read further than it was
                        served has read a later state of this store: this one was restored from an old copy

Both are kept in memory and cost no commit. Programs that open the file themselves are counted by neither.
"""

from __future__ import annotations

import threading  # tidy: for locks around a few numbers; nothing here starts a thread
from collections import deque
from collections.abc import Mapping

from agent.fact_store.divergence.history_check import End
from agent.fact_store.log import EpochChanging

PAGE_ENDS = 8
"""Ends of pages remembered for each zone: more than a receiver requests ahead."""


class ReadHighWater:
    """The highest offset of each stream that any reader has got in this life. Thread-safe.

    Facts that were in the store when it was opened count as read, because reads of earlier lives are not recorded.
    """

    def __init__(self, ends: Mapping[str, int]) -> None:
        """`ends`: where each stream ended when the store was opened."""
        self._offsets = dict(ends)
        self._is_frozen = False
        self._lock = threading.Lock()
        self.generation = 0
        """Which epoch of this life it is. A reader takes it before it reads, and shows it to `record`."""

    def record(self, stream: str, last_offset: int, generation: int) -> None:
        """Record that facts up to an offset, read in a generation, are about to be returned. Raises EpochChanging
        while frozen, or if that generation is over: facts that were read before it ended may be resealed."""
        with self._lock:
            if self._is_frozen or generation != self.generation:
                raise EpochChanging("the store begins a new epoch at this moment")
            self._offsets[stream] = max(last_offset, self._offsets.get(stream, 0))

    def freeze(self) -> dict[str, int]:
        """Refuse all further reads; returns the highest offset read of each stream. Facts above it stay unread
        (decision 0041)."""
        with self._lock:
            self._is_frozen = True
            return dict(self._offsets)

    def thaw(self) -> None:
        """Allow reads again: the new epoch is durable, or was not begun. Pages that are being read are dropped."""
        with self._lock:
            self._is_frozen = False
            self.generation += 1


class ServedHighWater:
    """The highest offset of each stream that was served to each zone under this epoch. Thread-safe.

    Promised: a mark is never lower than what the zone was served in all lives, and in this life it is exact. While a
    zone reads, its row in the table says only so, and no page costs a commit; the next opening sets such a row to the
    end that the stream had then. An old copy therefore has marks no higher than the end of the log it was copied from,
    however often it is opened.
    """

    def __init__(self, stored: Mapping[tuple[str, str], int | None]) -> None:
        """`stored`: the rows of the table, by stream and zone; None while the zone reads in this life."""
        self._offsets = {key: offset for key, offset in stored.items() if offset is not None}
        self._page_ends: dict[tuple[str, str], deque[End]] = {}
        self._lock = threading.Lock()

    def record(self, stream: str, zone: str, last_offset: int, end: End | None = None) -> None:
        """Record that a zone is about to be served facts, or holes of expired ones, up to an offset.

        `end`: where the last batch of the page ends, also when that batch was left out of it.
        """
        with self._lock:
            self._offsets[stream, zone] = max(last_offset, self._offsets.get((stream, zone), 0))
            if end is not None:
                self._page_ends.setdefault((stream, zone), deque(maxlen=PAGE_ENDS)).append(end)

    def is_recent_page_end(self, stream: str, zone: str, end: End) -> bool:
        """Whether one of the last pages served to a zone ended so. Then the zone's claim to have read it needs no
        look-up on disk."""
        with self._lock:
            return end in self._page_ends.get((stream, zone), ())

    def offset(self, stream: str, zone: str) -> int:
        """The highest offset of a stream that a zone may have been served; 0 for none."""
        with self._lock:
            return self._offsets.get((stream, zone), 0)
