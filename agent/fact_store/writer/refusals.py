"""What the writer refuses for want of room: by stream, and by zone that has used up its share. The log names the first
refusal, and the end.

Belongs to the writer's thread; others read the two mappings.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Any

from agent.errors import StoreError, StoreFull
from agent.fact_store.append import AppendMessages, AppendSamples, Work
from agent.fact_store.core import AppendRefusal, ShareFull

log = logging.getLogger(__name__)

REFUSED_NS = 5_000_000_000  # after a refusal, until room on the disk counts: it may be gone with the next append
SHARE_REFUSED_NS = 15_000_000_000  # after the last refusal of a zone: its next try comes within five seconds


class Refusals:
    """Refusals that last."""

    def __init__(self) -> None:
        self.streams: dict[str, AppendRefusal] = {}
        """Why the last append to a stream was refused. A stream whose last append was stored is not in it."""
        self.zones: dict[str, AppendRefusal] = {}
        """Why facts of a zone are refused."""

    def note_outcome(self, work: Work, outcome: Any, now_ns: int) -> None:
        """Note the outcome of a piece of work."""
        zone = "" if isinstance(work, AppendSamples) else work.zone
        if isinstance(outcome, ShareFull):
            if _add(self.zones, zone, outcome, now_ns):
                log.warning("share_used_up", extra={"peer": zone, "reason": outcome.why, "hint": outcome.hint})
            return
        is_stored = not isinstance(outcome, StoreError)
        if is_stored:
            self._end_share(zone)
        if isinstance(work, AppendSamples | AppendMessages):
            stream = work.stream
            if isinstance(outcome, StoreFull):
                if _add(self.streams, stream, outcome, now_ns):
                    log.warning(
                        "appends_refused", extra={"stream": stream, "reason": outcome.why, "hint": outcome.hint}
                    )
            elif is_stored:
                self._end_refusal(stream)

    def look(self, now_ns: int, is_full: Callable[[str], bool]) -> None:
        """End refusals of streams that have room again, and of zones that have not tried for a while."""
        for stream, refusal in [*self.streams.items()]:
            if now_ns - refusal.last_ns >= REFUSED_NS and not is_full(stream):
                self._end_refusal(stream)
        for zone, refusal in [*self.zones.items()]:
            if now_ns - refusal.last_ns >= SHARE_REFUSED_NS:
                self._end_share(zone)

    def _end_refusal(self, stream: str) -> None:
        if (refusal := self.streams.pop(stream, None)) is not None:
            log.info("appends_stored_again", extra={"stream": stream, "refused": refusal.appends})

    def _end_share(self, zone: str) -> None:
        if (refusal := self.zones.pop(zone, None)) is not None:
            log.info("share_free", extra={"peer": zone, "refused": refusal.appends})


def _add(refused: dict[str, AppendRefusal], name: str, error: StoreFull, now_ns: int) -> bool:
    """Add a refusal; whether it is the first."""
    before = refused.get(name)
    since_ms = time.time_ns() // 1_000_000 if before is None else before.since_unix_ms
    refused[name] = AppendRefusal(error.why, error.hint, since_ms, now_ns, 1 if before is None else before.appends + 1)
    return before is None
