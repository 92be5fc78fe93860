"""What a pull names as held of zones that another pull brings, too, and whether a page left out just that.

The peer leaves out the batches within the named ranges, by their sequences. Sequences prove nothing: after a memory was
put back, the peer may have another batch under one of them. So the page names each run that it left out with the digest
of its last batch. A digest covers all batches before it in its run, and a range held here is one run. Where the same
batch, by its digest, ends a part of one range here, everything left out is held here. Otherwise the page does not
count, because the position would pass facts that this store may lack. Nothing is named then until the end of the peer's
log is reached: the store finds the fork, or a duplicate that it has released.

A peer that lies can name a true digest and leave out more than it stands for. It gains nothing: it can as well hide the
end of its log, or call facts released. For a false digest the facts cross the link once more.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from agent.batch import Origin
from agent.errors import StoreError
from agent.pages import BatchEnd
from agent.replication.protocol.messages import HELD_MAX, HeldRun, HeldSpan
from agent.replication.protocol.ports import StoredFacts

NEWEST_LIFE = b"\xff" * 16
"""Above every life."""
RANGES_OF_ZONE = 2
"""Named of each zone, the newest. What is not named comes once more, and is a duplicate."""


class SharedZones:
    """The zones of one stream of which a peer need not send all. If the store cannot be read, nothing is named and
    nothing is proven."""

    def __init__(self, store: StoredFacts, stream: str, zones: Sequence[str]) -> None:
        self._store, self._stream = store, stream
        self._zones = zones[: HELD_MAX // RANGES_OF_ZONE]
        self._is_doubted = False

    def held(self) -> list[HeldSpan]:
        """The newest ranges of each zone, as a request names them."""
        if self._is_doubted:
            return []
        found = list[HeldSpan]()
        try:
            for zone in self._zones:
                lives = self._store.earlier_lives(self._stream, zone, NEWEST_LIFE, RANGES_OF_ZONE)
                newest = [(origin.life.hex(), span) for origin, ranges in lives.items() for span in reversed(ranges)]
                found += [
                    (zone, life, span.first_sequence, span.last_sequence) for life, span in newest[:RANGES_OF_ZONE]
                ]
        except StoreError:
            return []
        return found

    def find_unproven(self, runs: Iterable[HeldRun], *, more: bool) -> str:
        """Why what a page left out is not proven to be held here; "" if it is. `more`: the peer's log goes on."""
        try:
            why = next((why for run in runs if (why := self._doubt(run))), "")
        except StoreError as error:
            why = f"{type(error).__name__}: {error}"
        self._is_doubted = bool(why) or (self._is_doubted and more)
        return why

    def _doubt(self, run: HeldRun) -> str:
        zone, life, first, last, digest = run
        origin, end = Origin(zone, bytes.fromhex(life)), BatchEnd(last, bytes.fromhex(digest))
        # Two ranges of a life may meet where their digests do not: the end of a run across both proves only a part.
        ranges = self._store.held_of(self._stream, origin)
        is_within = any(held.first_sequence <= first and last <= held.last_sequence for held in ranges)
        if is_within and end in self._store.batch_ends(self._stream, origin, [last]):
            return ""
        return f"{first} to {last} of {origin} were left out, and are not known here to end with {digest}"
