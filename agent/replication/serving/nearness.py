"""Whether a page is read at once, by the event loop itself, or in a thread. Core: no IO, no clock.

A small page that lies in the machine's memory is read in a third of the time that the way to a thread and back takes. Nobody says
beforehand whether it lies there, but a disk that has to be waited for shows it by one slow read: from then on threads wait for it,
and once in a while a read at once finds out whether that is still so. The loop then waits for the disk once in that while, never
for a page that is large.
"""

from __future__ import annotations

from dataclasses import dataclass

FACTS_MAX = 4096
"""Of a page that is read at once: some four batches of a busy node, all of an idle one's tail."""
SLOW_NS = 2_000_000
"""A read that took longer waited for the disk; from memory it takes 0.1 ms."""
AWAY_NS = 1_000_000_000
"""After a slow read, before the next one at once."""


@dataclass(slots=True)
class Nearness:
    """What the last reads at once have shown of one store's disk."""

    away_until_ns: int = 0

    def is_near(self, facts: int, now_ns: int) -> bool:
        """Whether a page of at most so many facts is read at once."""
        return facts <= FACTS_MAX and now_ns >= self.away_until_ns

    def took(self, began_ns: int, ended_ns: int) -> None:
        """A read at once is over."""
        if ended_ns - began_ns > SLOW_NS:
            self.away_until_ns = ended_ns + AWAY_NS
