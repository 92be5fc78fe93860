"""How far each zone was handed the log of a stream: what an old copy of this store cannot know, and a peer that has read on tells.

A store that was put back to an old copy, together with its witness, looks perfect to itself, and once it has grown it has other facts
where its reader has read on. Digests tell that as long as those places are there (shown.py). Where a full stream has dropped them, this
tells: nobody can have read further than he was handed.

Promised: `until` is never less than what the store has handed out under its epoch, in all its lives, and in this life it is exactly that. While
a zone reads, its row of the table `handed` says so and no more, so no page costs a commit; opening gives every such row the end that the
stream had then. So a copy knows at most the end of the log it was copied from, and goes on knowing it, however often it is opened again.
"""

from __future__ import annotations

import threading  # tidy: for a lock around some numbers; nothing here starts a thread
from collections import deque
from collections.abc import Mapping

from agent.fact_store.divergence.history_check import End

PAGE_ENDS = 8
"""Pages of a zone whose ends are remembered: more than are asked for ahead."""
EVERYBODY = ""
"""Stands for every zone without a row of its own, in streams older than the table."""


class Handed:
    """Used from any thread."""

    def __init__(self, known: Mapping[tuple[str, str], int | None]) -> None:
        """`known` goes by stream and zone."""
        self._until = {key: until for key, until in known.items() if until is not None}
        self._ends: dict[tuple[str, str], deque[End]] = {}
        self._lock = threading.Lock()

    def note(self, stream: str, zone: str, last_offset: int, end: End | None = None) -> None:
        """Facts up to an offset are about to be handed to a zone, or it is about to be told that they are gone. `end`: of the last batch of
        the page, also of one that is left out."""
        with self._lock:
            self._until[stream, zone] = max(last_offset, self._find(stream, zone))
            if end is not None:
                self._ends.setdefault((stream, zone), deque(maxlen=PAGE_ENDS)).append(end)

    def knows(self, stream: str, zone: str, end: End) -> bool:
        """Whether a page that was lately handed to a zone ended so: then nothing has to be looked up to believe that it took it."""
        with self._lock:
            return end in self._ends.get((stream, zone), ())

    def until(self, stream: str, zone: str) -> int:
        """Up to which offset a zone may have been handed a stream."""
        with self._lock:
            return self._find(stream, zone)

    def _find(self, stream: str, zone: str) -> int:
        found = self._until.get((stream, zone))
        return self._until.get((stream, EVERYBODY), 0) if found is None else found
