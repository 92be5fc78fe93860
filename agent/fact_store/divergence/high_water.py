"""How far each stream was handed out in this life of the store: what lies behind has never left it.

Promised: what `freeze` returns as unseen is handed out by nobody afterwards, for whoever reads on gets StoreForked. What was there when
the store was opened counts as handed out; nobody remembers whether it was. Programs that open the file themselves are not seen.
"""

from __future__ import annotations

import threading  # tidy: for a lock around two numbers; nothing here starts a thread
from collections.abc import Mapping

from agent.fact_store.log import StoreForked


class Seen:
    """Used from any thread."""

    def __init__(self, ends: Mapping[str, int]) -> None:
        self._until = dict(ends)
        self._is_frozen = False
        self._lock = threading.Lock()

    def note(self, stream: str, last_offset: int) -> None:
        """Facts up to an offset are about to be handed out. Raises StoreForked where they may not be any more."""
        with self._lock:
            if self._is_frozen:
                raise StoreForked("the store goes on under a new epoch in a moment")
            self._until[stream] = max(last_offset, self._until.get(stream, 0))

    def freeze(self) -> dict[str, int]:
        """Hand out nothing more; up to where each stream may have been seen."""
        with self._lock:
            self._is_frozen = True
            return dict(self._until)

    def thaw(self) -> None:
        """There will be no new epoch after all."""
        with self._lock:
            self._is_frozen = False
