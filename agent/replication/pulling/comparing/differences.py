"""Finds what differs between the store and a peer's log of one stream. Of equal facts only digests are exchanged."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import groupby

from agent.batch import SEQUENCE_MAX, Origin
from agent.columns import BatchError
from agent.errors import StoreError
from agent.pages import ComparedSums, HeldRange, HeldSum
from agent.pages import Span as Sequences
from agent.positions import NOTHING_READ, Position
from agent.replication.protocol.digest_diff import Forked, Interval, known_end, missing, narrow, shared
from agent.replication.protocol.messages import ENDS_DEFAULT, DigestsAnswer, GetDigests, origin_named
from agent.replication.protocol.ports import ReceivingStore
from agent.replication.pulling.comparing.comparison import ComparedZones, Comparison
from agent.replication.pulling.comparing.peer_log import PeerLog
from agent.replication.pulling.page_check import PageRefused

ZONES_MAX, RANGES_KEPT_MAX = 100_000, 200_000
"""Zones in a peer's stream, and ranges that are kept in memory (600 bytes each) of those whose facts it may send. An
honest store has at most 20,000 ranges of one zone, and lists those of all its lives only after a great loss."""
NARROWINGS_MAX = 64
"""Each exchange leaves a 64th of the rest, and sequences have 63 bits: a peer that needs more is inventing batches."""


class DifferenceSearch:
    """One search. What it finds is added to `found`."""

    def __init__(
        self,
        peer: PeerLog,
        store: ReceivingStore,
        zones: ComparedZones,
        found: Comparison,
        *,
        is_begun_late: bool,
    ) -> None:
        """`is_begun_late`: the pull did not begin at the oldest fact, so that earlier facts do not count as missing."""
        self._peer, self._store, self._zones, self._found = peer, store, zones, found
        self._stream = found.stream
        self._is_begun_late = is_begun_late
        self._is_level = False  # whether everything in the peer's log at the first answer has been pulled
        self._theirs: dict[Origin, list[HeldRange]] = {}
        """What the peer holds of each zone that it may send: the ranges of its newest life, and of the lives before it
        for as long as count and sum of the rest differ from those here."""

    async def run(self) -> None:
        """Search. Raises PageRefused, MalformedMessage, TransportError, PeerRefused, or an error of the store."""
        await self._list_differing()
        for origin, theirs in self._theirs.items():
            ours = self._store.reader.held_of(self._stream, origin)
            for span in shared(ours, theirs):
                await self._compare_span(origin, span, ours, theirs)
            await self._check_definitions(origin, ours, theirs)
        await self._find_all_missing()
        for damage in await asyncio.wrap_future(self._store.inbound.damaged(self._stream)):
            origin, span = Origin(damage.zone, damage.life), (damage.first_sequence, damage.last_sequence)
            is_new = (origin, span) not in self._found.damaged and damage.zone in self._zones.allowed
            if is_new and await self._peer.batch_ends(origin, span, 1):
                self._found.damaged.append((origin, span))

    def equal_sums(self) -> dict[str, ComparedSums]:
        """The sums of zones without a difference, to be noted as compared. While the pull is not level, lives from our
        newest on are under way, and not yet known to be held. Reads the store, in a thread."""
        differing = {origin.zone for origin, _ in [*self._found.missing, *self._found.damaged]}
        return {
            zone: compared
            for zone, compared in self._found.sums.items()
            if zone not in differing and (self._is_level or compared.floor <= self._newest_life(zone))
        }

    # --------------------------------------------------------------------------------------------------------- internal

    async def _list_differing(self) -> None:
        """List what the peer holds, as far as it differs."""
        after, more = None, True
        before, end, zones = dict[str, HeldSum](), NOTHING_READ, 0
        peer, allowed = self._peer.peer_node, self._zones.allowed
        while more:
            answer = await self._peer.digests(GetDigests(stream=self._stream, after_zone=after))
            zones += len(answer.before)
            if zones > ZONES_MAX:
                raise PageRefused(f"{peer} names more than {ZONES_MAX} zones of {self._stream}")
            self._keep(answer, allowed)
            before |= {
                zone: HeldSum(ranges, int(total, 16)) for zone, ranges, total in answer.before if zone in allowed
            }
            end = Position(bytes.fromhex(answer.end_life), answer.end_offset)
            more = answer.more and bool(answer.before)
            after = answer.before[-1][0] if answer.before else None
        newest = {origin.zone: origin.life for origin in sorted(self._theirs, reverse=True)}
        for zone, rest in before.items():
            await self._list_earlier(zone, newest.get(zone, b""), rest)
        trail = self._store.inbound.trail(peer, self._stream)
        self._is_level = any(position.life == end.life and position.offset >= end.offset for position in trail)

    async def _list_earlier(self, zone: str, floor: bytes, rest: HeldSum) -> None:
        """Ask for the lives of a zone before `floor`, the newest first, until what is before those is the same here, or
        is the same as when nothing was to be fetched."""
        peer, stream, reader = self._peer.peer_node, self._stream, self._store.reader
        known, forgotten = reader.compared(peer, stream, zone), reader.forgotten(zone)
        while rest.ranges and floor > forgotten:
            ours, facts = await asyncio.to_thread(reader.held_below, stream, zone, floor)
            if ours == rest:
                self._found.compared_facts += facts
                return
            if known is not None and (ours, rest) == known[1:]:
                return
            self._found.sums.setdefault(zone, ComparedSums(floor, ours, rest))
            down_to = known.floor.hex() if known is not None and known.floor < floor else None
            request = GetDigests(stream=stream, zone=zone, below=floor.hex(), down_to=down_to)
            answer = await self._peer.digests(request)
            self._keep(answer, {zone})
            if not answer.ranges:
                if down_to is None:
                    raise PageRefused(f"{peer} names {rest.ranges} ranges of {zone} and lists none")
                known = None  # what was compared is no longer there
                continue
            floor = min(origin_named(name).life for name, *_ in answer.ranges)
            ((_, ranges, total),) = answer.before
            rest = HeldSum(ranges, int(total, 16))

    def _keep(self, answer: DigestsAnswer, zones: Collection[str]) -> None:
        """Add the ranges of an answer that are of these zones."""
        for name, first, last, before, digest in answer.ranges:
            if (origin := origin_named(name)).zone in zones:
                kept = HeldRange(first, last, bytes.fromhex(before), bytes.fromhex(digest))
                self._theirs.setdefault(origin, []).append(kept)
        if sum(map(len, self._theirs.values())) > RANGES_KEPT_MAX:
            what = f"more than {RANGES_KEPT_MAX} ranges of {self._stream} whose facts it may send"
            raise PageRefused(f"{self._peer.peer_node} names {what}")

    def _newest_life(self, zone: str) -> bytes:
        held = self._store.reader.zone_held(self._stream, zone)
        return held.newest.life if held is not None else b""

    async def _find_all_missing(self) -> None:
        """Find what the peer holds and this store does not, the lowest lives of each zone first. What the peer lists
        and has released since is unavailable."""
        for zone, origins in groupby(sorted(self._theirs), key=lambda origin: origin.zone):
            theirs = {origin: self._theirs[origin] for origin in origins}
            for origin, span in await asyncio.to_thread(self._missing_of, zone, theirs):
                if await self._peer.batch_ends(origin, span, ENDS_DEFAULT):
                    self._found.missing.append((origin, span))
                else:
                    self._found.unavailable_facts += span[1] - span[0] + 1

    def _missing_of(self, zone: str, theirs: Mapping[Origin, list[HeldRange]]) -> list[tuple[Origin, Sequences]]:
        """Spans of a zone that the peer holds and this store does not. Reads the store, in a thread."""
        reader, is_own = self._store.reader, zone in self._zones.own
        forgotten, newest, lowest = reader.forgotten(zone), self._newest_life(zone), 1
        if self._is_begun_late and not is_own:
            lowest = reader.lowest_sequence(self._stream, zone) or SEQUENCE_MAX
        # Own facts are in no page of this peer, so they are under way only from our partner.
        none_under_way = self._is_level or (is_own and zone not in self._zones.in_pair)
        return [
            (origin, span)
            for origin, ranges in theirs.items()
            if origin.life > forgotten
            for span in missing(
                reader.held_of(self._stream, origin),
                ranges,
                lowest,
                is_complete=none_under_way or origin.life < newest,
            )
        ]

    async def _compare_span(
        self, origin: Origin, span: Sequences, ours: Sequence[HeldRange], theirs: Sequence[HeldRange]
    ) -> None:
        """Compare a span that both hold. If the last digests differ, find the first batch that differs."""
        first, last = span
        mine = known_end(ours, last) or (await self._our_ends(origin, [last])).get(last)
        their_end = known_end(theirs, last) or (await self._peer.batch_ends(origin, (last, last), 1)).get(last)
        if mine is None or their_end is None:
            return  # released on one side: it can neither be compared nor fetched
        self._found.compared_facts += last - first + 1
        if mine == their_end:
            return
        interval: Interval | Forked = Interval(first - 1, last)
        for _ in range(NARROWINGS_MAX):
            if isinstance(interval, Forked):
                break
            left = interval.equal + 1, interval.different
            there = await self._peer.batch_ends(origin, left, ENDS_DEFAULT)
            here = await self._our_ends(origin, there)
            interval = narrow(interval, here, {sequence: there[sequence] for sequence in there if sequence in here})
        if isinstance(interval, Interval):
            what = f"between {interval.equal} and {interval.different}"
            raise PageRefused(f"{self._peer.peer_node} names ever more batches {what}")
        at = interval.first_sequence, interval.last_sequence
        page = await asyncio.to_thread(self._store.reader.read_sequences, self._stream, origin, *at, 1, 1)
        if any(hole.reason == "damaged" for hole in page.holes):  # the disk is damaged; the history is the same
            self._found.damaged.append((origin, at))
        else:
            why = f"{at[0]} to {at[1]} is another batch at {self._peer.peer_node} than here"
            self._found.forks.append((origin, why))

    async def _our_ends(self, origin: Origin, sequences: Iterable[int]) -> dict[int, bytes]:
        """By sequence, the digest of the batch here that ends with it; empty bytes, which equal no digest, if a batch
        holds the sequence and does not end there."""

        def read() -> dict[int, bytes]:
            ends = dict[int, bytes]()
            for sequence in sequences:
                for batch in self._store.reader.batch_ends(self._stream, origin, [sequence]):
                    ends[sequence] = batch.digest if batch.last_sequence == sequence else b""
            return ends

        return await asyncio.to_thread(read)

    async def _check_definitions(self, origin: Origin, ours: Sequence[HeldRange], theirs: Sequence[HeldRange]) -> None:
        """Look for damaged tag definitions, because they are sent only once. Reads the definitions that the last batch
        held by both sides needs."""
        common = shared(ours, theirs)
        if not common:
            return
        sequence = common[-1][1]
        try:
            damaged = await asyncio.to_thread(self._store.inbound.damaged_definitions, self._stream, origin, sequence)
        except (StoreError, BatchError) as error:  # the table cannot be read
            self._found.refuse(str(error))
            return
        if damaged is not None and (origin.zone, damaged) not in self._found.damaged_definitions:
            self._found.damaged_definitions.append((origin.zone, damaged))
