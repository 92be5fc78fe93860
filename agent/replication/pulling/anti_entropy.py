"""Anti-entropy with one peer: compares digests (`protocol.digest_diff` finds the differences), and fetches what is
missing or damaged here.

Only digests are exchanged for equal facts. Fetched batches are checked like any page: missing ones are appended at the
end of the log; damaged ones are put back at their offsets, if the store still has their digests. A fork is recorded as
an incident and is not repaired.

Facts of this node's own zone are left out of pages and come home here, because a restore or a lost disk may have taken
them: all that its key has signed; without a key, those of lives in its own table, and any other by command. They are
fetched only while there is room. A node compares soon after each start, and at once when a peer shows that its store
was put back.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import AsyncIterator, Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby

import msgspec

from agent.batch import SEQUENCE_MAX, Definitions, Origin
from agent.pages import (
    ComparedSums,
    Declined,
    DefinitionChain,
    HeldRange,
    HeldSum,
    LackingDefinitions,
    ReceivedPage,
)
from agent.pages import Span as Sequences
from agent.positions import NOTHING_READ, Position
from agent.replication.mqtt import Reply
from agent.replication.protocol.digest_diff import Forked, Interval, known_end, missing, narrow, shared
from agent.replication.protocol.errors import DefinitionsUnavailable, PeerRefused, ReplicationError
from agent.replication.protocol.messages import (
    BYTES_MAX_DEFAULT,
    ENDS_DEFAULT,
    DigestsAnswer,
    FetchSequences,
    GetDigests,
    LogPosition,
    SequencesAnswer,
    origin_named,
)
from agent.replication.protocol.ports import ReceivingStore
from agent.replication.pulling.artifact_pull import ArtifactPull
from agent.replication.pulling.definition_pull import DefinitionPull
from agent.replication.pulling.page_check import (
    PageRefused,
    check_digests,
    check_sequences,
)
from agent.replication.pulling.page_judge import PageJudge
from agent.replication.pulling.throttled_requester import ThrottledRequester
from agent.signing.chains import Offered
from agent.telemetry import Side, Span, Telemetry

ANSWER_S = 10.0
LIMIT = 65_536
SCAN_BYTES = 8 * 1024 * 1024
HOUR_S = 3600.0
ZONES_MAX, RANGES_KEPT_MAX = 100_000, 200_000
"""Zones in a peer's stream, and ranges that are kept in memory (600 bytes each) of those whose facts it may send. An
honest store has at most 20,000 ranges of one zone, and lists those of all its lives only after a great loss."""
HOLE_PAGES_MAX = 64
"""Pages without batches for one range, with 2,048 holes each. A peer could invent them without end."""
REFUSED_MAX = 100
"""Refusals that one comparison reports, of which the last says that there are others; and forks that it reports."""
RESTORED_CHECK_S = 60.0
"""Between two checks whether a peer has shown that the store was put back: what that lost is fetched at once."""
RETRY_S = 600.0
"""Wait after such a comparison has failed."""
OPENING_S = 60.0, 600.0
"""The first comparison begins so long after a start, at random: nodes that start together do not compare together."""
NARROWINGS_MAX = 64
"""Each exchange leaves a 64th of the rest, and sequences have 63 bits: a peer that needs more is inventing batches."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class AntiEntropySettings:
    """What to compare with which peer. `origins` are the zones whose facts this peer may send. `begun_late` are streams
    whose pull did not begin at the oldest fact, so that earlier facts do not count as missing. `every_hours` 0: only on
    request."""

    peer_node: str
    streams: tuple[str, ...]
    origins: frozenset[str]
    begun_late: frozenset[str] = frozenset()
    every_hours: float = 24.0
    pair_zones: frozenset[str] = frozenset()
    """Zones whose facts another peer brings, too."""


@dataclass(frozen=True, slots=True)
class _Task:
    """What `compare` was called with."""

    stream: str
    is_repaired: bool
    is_scanned: bool
    is_commanded: bool


class OtherCopy(PageRefused):
    """The peer answered from another copy of its log than at the start of the comparison."""


@dataclass(slots=True)
class Comparison:
    """The result of comparing one stream with one peer: what was found, and what was repaired. `bytes` counts the
    answers."""

    stream: str
    position: LogPosition | None = None
    """The end of the peer's log in its first answer: all others must be of that log."""
    compared_facts: int = 0
    exchanges: int = 0
    bytes: int = 0
    missing: list[tuple[Origin, Sequences]] = field(default_factory=list)
    damaged: list[tuple[Origin, Sequences]] = field(default_factory=list)
    forks: list[tuple[Origin, str]] = field(default_factory=list)
    sums: dict[str, ComparedSums] = field(default_factory=dict)
    """By zone, sums of lives that were listed because they differ."""
    damaged_definitions: list[tuple[str, Definitions]] = field(default_factory=list)
    """Zone, and the definitions of a batch of which some are damaged."""
    repaired_definitions: int = 0
    repaired_ranges: int = 0
    repaired_facts: int = 0
    unavailable_facts: int = 0
    refused: list[str] = field(default_factory=list)
    """Why something was not repaired: at most REFUSED_MAX reasons."""
    missing_artifacts: int = 0
    """Artifacts to which held facts refer and that are not here; after a repair, those that the peer lacks too."""
    repaired_artifacts: int = 0

    @property
    def divergent_ranges(self) -> int:
        """The number of differences."""
        return len(self.missing) + len(self.damaged) + len(self.damaged_definitions) + len(self.forks)

    def refuse(self, why: str) -> None:
        """Record why something was not repaired."""
        if len(self.refused) < REFUSED_MAX:
            self.refused.append(why if len(self.refused) < REFUSED_MAX - 1 else f"{why}; and others")


@dataclass(frozen=True, slots=True)
class AntiEntropyStatistics:
    """Counters since the start, for one stream of one peer."""

    peer_node: str
    stream: str
    comparisons: int = 0
    failures: int = 0
    divergent_ranges: int = 0
    repaired_ranges: int = 0
    repaired_facts: int = 0
    last_unix_ms: int | None = None
    is_equal: bool | None = None
    """Whether nothing differed after the last comparison and its repairs."""


class AntiEntropy:
    """Compares with one peer, one stream at a time. Must be created before the requester's link runs."""

    def __init__(
        self,
        requester: ThrottledRequester,
        store: ReceivingStore,
        settings: AntiEntropySettings,
        store_errors: tuple[type[Exception], ...],
        *,
        chance: Callable[[], float] = random.random,
        telemetry: Telemetry | None = None,
        judge: PageJudge | None = None,
    ) -> None:
        self._judge = judge or PageJudge(store)
        self._telemetry = telemetry or Telemetry()
        self._requester, self._store, self._settings, self._store_errors = requester, store, settings, store_errors
        self._expected: tuple[type[Exception], ...] = (ReplicationError, *store_errors)
        self._chance = chance
        self._counted = {stream: AntiEntropyStatistics(settings.peer_node, stream) for stream in settings.streams}
        self._turn = asyncio.Lock()
        self._artifacts = ArtifactPull(requester, store.artifacts, store_errors)
        self._definitions = DefinitionPull(requester, store.inbound, store_errors)

    @property
    def settings(self) -> AntiEntropySettings:
        return self._settings

    def statistics(self) -> list[AntiEntropyStatistics]:
        """One for each stream."""
        return list(self._counted.values())

    async def run(self) -> None:
        """Compare and repair soon after the start, and then every `every_hours`, until cancelled."""
        every_s = self._settings.every_hours * HOUR_S
        if not every_s:
            await asyncio.get_running_loop().create_future()  # until cancelled
        first_s, last_s = OPENING_S
        due_s = time.monotonic() + min(every_s, first_s + (last_s - first_s) * self._chance())
        wait_s, compared = RESTORED_CHECK_S * self._chance(), 0
        while True:
            await asyncio.sleep(max(0.0, min(wait_s, due_s - time.monotonic())))
            wait_s, restored = RESTORED_CHECK_S, self._store.times_restored
            if restored == compared and time.monotonic() < due_s:
                continue
            if await self._compare_all():
                compared = restored
            elif restored != compared:
                wait_s = RETRY_S
            due_s = time.monotonic() + every_s

    async def _compare_all(self) -> bool:
        """Compare and repair every stream; False if one failed."""
        failures = 0
        for stream in self._settings.streams:
            try:
                await self.compare(stream, repair=True)
            except self._expected as error:
                failures += 1
                _log.warning("comparison_failed", extra={**self._about(stream), "reason": str(error)})
        return not failures

    async def compare(self, stream: str, *, repair: bool, scan: bool = False, is_commanded: bool = False) -> Comparison:
        """Compare one stream. With `repair`, fetch what is missing or damaged here; with `scan`, first read the whole
        stream to find damage. `is_commanded`: a person vouches for the peer, so facts of unknown lives of the own zone
        are taken without a signature.

        Raises PeerRefused, MalformedMessage, PageRefused, TransportError, or an error of the store.
        """
        async with self._turn:
            span = self._telemetry.start(Span.ANTI_ENTROPY, Side.ASKING, "", **self._about(stream))
            try:
                found = await self._compare_one_copy(_Task(stream, repair, scan, is_commanded))
            except asyncio.CancelledError:
                self._telemetry.discard(span, "the node is being stopped")
                raise
            except self._expected as error:
                self._telemetry.fail(span, str(error))
                before = self._counted[stream]
                self._counted[stream] = replace(before, failures=before.failures + 1)
                raise
            self._telemetry.stop(span, divergent_ranges=found.divergent_ranges, repaired_facts=found.repaired_facts)
            self._count(stream, found)
            return found

    # --------------------------------------------------------------------------------------------------------- internal

    async def _compare_one_copy(self, task: _Task) -> Comparison:
        """Compare, and once more if the peer's log has been replaced meanwhile. If it is replaced again, two machines
        answer in turn, and the error says so."""
        try:
            return await self._compare(task)
        except OtherCopy as error:
            _log.warning("comparison_begins_anew", extra={**self._about(task.stream), "reason": str(error)})
            return await self._compare(replace(task, is_scanned=False))

    async def _compare(self, task: _Task) -> Comparison:
        stream = task.stream
        found = Comparison(stream)
        if task.is_scanned:
            await asyncio.to_thread(self._scan, stream)
        theirs, is_level = await self._differing(found)
        for origin, ranges in theirs.items():
            mine = self._store.reader.held_of(stream, origin)
            for span in shared(mine, ranges):
                await self._compare_span(found, origin, span, mine, ranges)
            await self._check_definitions(found, origin, mine, ranges)
        await self._note_all_missing(found, theirs, is_level=is_level)
        for one in await asyncio.wrap_future(self._store.inbound.damaged(stream)):
            origin, span = Origin(one.zone, one.life), (one.first_sequence, one.last_sequence)
            is_allowed = one.zone in self._allowed
            if (origin, span) not in found.damaged and is_allowed and await self._their_ends(found, origin, span, 1):
                found.damaged.append((origin, span))
        for origin, why in found.forks[:REFUSED_MAX]:  # each incident is a commit; of each life there is one
            noting = self._store.inbound.note("fork", f"{stream} of {origin}", self._settings.peer_node, why)
            await asyncio.wrap_future(noting)
        if task.is_repaired:
            for zone, wanted in found.damaged_definitions:
                await self._fetch_definitions(found, zone, wanted)
            unknown = set[Origin]() if task.is_commanded else self._unknown(found)
            await self._fetch_all_missing(found, [one for one in found.missing if one[0] not in unknown])
            for origin, span in found.damaged:
                await self._fetch_damaged(found, origin, span)
            found.repaired_artifacts, found.missing_artifacts = await self._artifacts.fetch_absent(stream)
            differing = {origin.zone for origin, _ in [*found.missing, *found.damaged]}
            sums = await asyncio.to_thread(self._sums_without, differing, found, is_level=is_level)
            if sums and not found.forks:
                await asyncio.wrap_future(self._store.inbound.note_compared(self._settings.peer_node, stream, sums))
        else:
            found.missing_artifacts = sum([len(some) async for some in self._artifacts.absent(stream)])
        return found

    @property
    def _own(self) -> frozenset[str]:
        """The zones whose facts were recorded here and are in no page of the peer. The other node of this zone records
        for it as well, and sends those facts."""
        return self._store.own_zones - self._settings.origins

    @property
    def _allowed(self) -> frozenset[str]:
        """The zones whose facts the peer may bring: those of its pulls, and what is brought home."""
        return self._store.own_zones | self._settings.origins

    def _unknown(self, found: Comparison) -> set[Origin]:
        """Missing own facts that could be inventions of the peer: no key signs this zone's facts, and the life is not
        in the table of lives, or is the present one. They are fetched by command only."""
        if self._store.signer is not None:
            return set()
        known = self._store.own_lives() - {self._store.life}
        unknown = {one for one, _ in found.missing if one.zone in self._own and one.life not in known}
        if unknown:
            facts = sum(last - first + 1 for origin, (first, last) in found.missing if origin in unknown)
            found.refuse(
                f"{facts:,} facts of this zone in {len(unknown):,} lives that this store does not know: if it was put"
                f" back or begun anew, fetch them with `bsfg peer compare {self._settings.peer_node} --repair`"
            )
        return unknown

    def _scan(self, stream: str) -> None:
        """Read the whole stream, so that the store detects damage. Runs in a thread."""
        after, end_offset = 0, self._store.end_offset(stream)
        while after < end_offset:
            page = self._store.read(stream, after, LIMIT, SCAN_BYTES)
            places = [one.last_offset for one in page.batches] + [one.last_offset for one in page.holes]
            after = max(places, default=end_offset)

    async def _differing(self, found: Comparison) -> tuple[dict[Origin, list[HeldRange]], bool]:
        """What the peer holds of each zone that it may send: the ranges of its newest life, and of the lives before it
        for as long as count and sum of the rest differ from those here. And whether everything in its log at that time
        has been pulled."""
        theirs, after, more = dict[Origin, list[HeldRange]](), None, True
        before, end, zones = dict[str, HeldSum](), NOTHING_READ, 0
        peer, allowed = self._settings.peer_node, self._allowed
        while more:
            answer = await self._digests(found, GetDigests(stream=found.stream, after_zone=after))
            zones += len(answer.before)
            if zones > ZONES_MAX:
                raise PageRefused(f"{peer} names more than {ZONES_MAX} zones of {found.stream}")
            self._keep(theirs, answer, allowed)
            before |= {
                zone: HeldSum(ranges, int(total, 16)) for zone, ranges, total in answer.before if zone in allowed
            }
            end = Position(bytes.fromhex(answer.end_life), answer.end_offset)
            more = answer.more and bool(answer.before)
            after = answer.before[-1][0] if answer.before else None
        newest = {one.zone: one.life for one in sorted(theirs, reverse=True)}
        for zone, rest in before.items():
            await self._list_earlier(found, theirs, zone, newest.get(zone, b""), rest)
        trail = self._store.inbound.trail(peer, found.stream)
        return theirs, any(one.life == end.life and one.offset >= end.offset for one in trail)

    def _newest_life(self, stream: str, zone: str) -> bytes:
        held = self._store.reader.zone_held(stream, zone)
        return held.newest.life if held is not None else b""

    def _sums_without(self, zones: Collection[str], found: Comparison, *, is_level: bool) -> dict[str, ComparedSums]:
        """The sums of other zones, to be noted as compared. While the pull is not level, lives from our newest on are
        under way, and not yet known to be held."""
        return {
            zone: compared
            for zone, compared in found.sums.items()
            if zone not in zones and (is_level or compared.floor <= self._newest_life(found.stream, zone))
        }

    async def _list_earlier(
        self, found: Comparison, theirs: dict[Origin, list[HeldRange]], zone: str, floor: bytes, rest: HeldSum
    ) -> None:
        """Ask for the lives of a zone before `floor`, the newest first, until what is before those is the same here, or
        is the same as when nothing was to be fetched."""
        peer, stream = self._settings.peer_node, found.stream
        known, forgotten = self._store.reader.compared(peer, stream, zone), self._store.reader.forgotten(zone)
        while rest.ranges and floor > forgotten:
            ours, facts = await asyncio.to_thread(self._store.reader.held_below, stream, zone, floor)
            if ours == rest:
                found.compared_facts += facts
                return
            if known is not None and (ours, rest) == known[1:]:
                return
            found.sums.setdefault(zone, ComparedSums(floor, ours, rest))
            down_to = known.floor.hex() if known is not None and known.floor < floor else None
            request = GetDigests(stream=stream, zone=zone, below=floor.hex(), down_to=down_to)
            answer = await self._digests(found, request)
            self._keep(theirs, answer, {zone})
            if not answer.ranges:
                if down_to is None:
                    raise PageRefused(f"{peer} names {rest.ranges} ranges of {zone} and lists none")
                known = None  # what was compared is no longer there
                continue
            floor = min(origin_named(one[0]).life for one in answer.ranges)
            ((_, ranges, total),) = answer.before
            rest = HeldSum(ranges, int(total, 16))

    def _keep(self, theirs: dict[Origin, list[HeldRange]], answer: DigestsAnswer, zones: Collection[str]) -> None:
        """Add the ranges of an answer that are of these zones."""
        for name, first, last, before, digest in answer.ranges:
            if (origin := origin_named(name)).zone in zones:
                kept = HeldRange(first, last, bytes.fromhex(before), bytes.fromhex(digest))
                theirs.setdefault(origin, []).append(kept)
        if sum(map(len, theirs.values())) > RANGES_KEPT_MAX:
            what = f"more than {RANGES_KEPT_MAX} ranges of {answer.stream} whose facts it may send"
            raise PageRefused(f"{self._settings.peer_node} names {what}")

    async def _note_all_missing(
        self, found: Comparison, theirs: Mapping[Origin, list[HeldRange]], *, is_level: bool
    ) -> None:
        """Note what the peer holds and this store does not, the lowest lives of each zone first."""
        for zone, origins in groupby(sorted(theirs), key=lambda one: one.zone):
            ranges = {one: theirs[one] for one in origins}
            spans = await asyncio.to_thread(self._missing_of, found.stream, zone, ranges, is_level=is_level)
            for origin, span in spans:
                await self._note_missing(found, origin, span)

    def _missing_of(
        self, stream: str, zone: str, theirs: Mapping[Origin, list[HeldRange]], *, is_level: bool
    ) -> list[tuple[Origin, Sequences]]:
        """Spans of a zone that the peer holds and this store does not. Reads the store, in a thread."""
        is_own, forgotten, newest = (
            zone in self._own,
            self._store.reader.forgotten(zone),
            self._newest_life(stream, zone),
        )
        lowest, pairs = 1, self._settings.pair_zones
        if stream in self._settings.begun_late and not is_own:
            lowest = self._store.reader.lowest_sequence(stream, zone) or SEQUENCE_MAX
        return [
            (origin, span)
            for origin, ranges in theirs.items()
            if origin.life > forgotten
            for span in missing(
                self._store.reader.held_of(stream, origin),
                ranges,
                lowest,
                # Own facts are in no page of this peer, so they are under way only from our partner.
                is_complete=is_level or (is_own and zone not in pairs) or origin.life < newest,
            )
        ]

    async def _compare_span(
        self,
        found: Comparison,
        origin: Origin,
        span: Sequences,
        ours: Sequence[HeldRange],
        theirs: Sequence[HeldRange],
    ) -> None:
        """Compare a span that both hold. If the last digests differ, find the first batch that differs."""
        first, last = span
        mine = known_end(ours, last) or (await self._our_ends(found.stream, origin, [last])).get(last)
        other = known_end(theirs, last) or (await self._their_ends(found, origin, (last, last), 1)).get(last)
        if mine is None or other is None:
            return  # released on one side: it can neither be compared nor fetched
        found.compared_facts += last - first + 1
        if mine == other:
            return
        interval: Interval | Forked = Interval(first - 1, last)
        for _ in range(NARROWINGS_MAX):
            if isinstance(interval, Forked):
                break
            left = interval.equal + 1, interval.different
            there = await self._their_ends(found, origin, left, ENDS_DEFAULT)
            here = await self._our_ends(found.stream, origin, there)
            interval = narrow(interval, here, {one: there[one] for one in there if one in here})
        if isinstance(interval, Interval):
            what = f"between {interval.equal} and {interval.different}"
            raise PageRefused(f"{self._settings.peer_node} names ever more batches {what}")
        at = interval.first_sequence, interval.last_sequence
        page = await asyncio.to_thread(self._store.reader.read_sequences, found.stream, origin, *at, 1, 1)
        if any(hole.reason == "damaged" for hole in page.holes):  # the disk is damaged; the history is the same
            found.damaged.append((origin, at))
        else:
            why = f"{at[0]} to {at[1]} is another batch at {self._settings.peer_node} than here"
            found.forks.append((origin, why))

    async def _check_definitions(
        self, found: Comparison, origin: Origin, ours: Sequence[HeldRange], theirs: Sequence[HeldRange]
    ) -> None:
        """Look for damaged tag definitions, because they are sent only once. Reads the definitions that the last batch
        held by both sides needs."""
        common = shared(ours, theirs)
        if not common:
            return
        sequence = common[-1][1]
        try:
            damaged = await asyncio.to_thread(self._store.inbound.damaged_definitions, found.stream, origin, sequence)
        except self._store_errors as error:  # the table cannot be read
            found.refuse(str(error))
            return
        if damaged is not None and (origin.zone, damaged) not in found.damaged_definitions:
            found.damaged_definitions.append((origin.zone, damaged))

    async def _fetch_definitions(self, found: Comparison, zone: str, wanted: Definitions) -> None:
        """Fetch all definitions up to these, which repairs the damaged ones."""
        put_back = 0
        unrepaired: tuple[type[Exception], ...] = (DefinitionsUnavailable, *self._store_errors)

        async def repair(chains: list[DefinitionChain]) -> None:
            nonlocal put_back
            for chain in chains:
                repairing = self._store.inbound.repair_definitions(found.stream, self._settings.peer_node, chain)
                put_back += await asyncio.wrap_future(repairing)

        try:
            await self._definitions.get([LackingDefinitions(zone, wanted)], repair)
        except unrepaired as error:
            if getattr(error, "retryable", False):
                raise
            found.refuse(str(error))
        found.repaired_definitions += put_back
        found.repaired_ranges += put_back > 0

    async def _note_missing(self, found: Comparison, origin: Origin, span: Sequences) -> None:
        """Record a span as missing if the peer still has its facts; if it has released them, as unavailable."""
        if await self._their_ends(found, origin, span, ENDS_DEFAULT):
            found.missing.append((origin, span))
        else:
            found.unavailable_facts += span[1] - span[0] + 1

    async def _their_ends(self, found: Comparison, origin: Origin, span: Sequences, ends_max: int) -> dict[int, bytes]:
        first, last = span
        request = GetDigests(
            stream=found.stream, origin=str(origin), first_sequence=first, last_sequence=last, ends_max=ends_max
        )
        return {last: bytes.fromhex(digest) for last, digest in (await self._digests(found, request)).ends}

    async def _our_ends(self, stream: str, origin: Origin, sequences: Iterable[int]) -> dict[int, bytes]:
        """By sequence, the digest of the batch here that ends with it; empty bytes, which equal no digest, if a batch
        holds the sequence and does not end there."""

        def read() -> dict[int, bytes]:
            ends = dict[int, bytes]()
            for sequence in sequences:
                for one in self._store.reader.batch_ends(stream, origin, [sequence]):
                    ends[sequence] = one.digest if one.last_sequence == sequence else b""
            return ends

        return await asyncio.to_thread(read)

    async def _digests(self, found: Comparison, request: GetDigests) -> DigestsAnswer:
        reply = await self._ask(found, request)
        return check_digests(reply.answer, self._settings.peer_node, request)

    async def _ask(self, found: Comparison, request: GetDigests | FetchSequences) -> Reply:
        peer = self._settings.peer_node
        if found.position is not None:
            request = msgspec.structs.replace(request, position=found.position)
        try:
            reply = await self._requester.ask(request, ANSWER_S)
        except PeerRefused as error:
            if error.code != "life_unknown":
                raise
            # Ranges of one copy of the log do not describe another copy.
            raise OtherCopy(f"{peer} was restored from a copy, or two machines answer in its name: {error}") from error
        answer = reply.answer
        if isinstance(answer, DigestsAnswer) and found.position is None:
            found.position = LogPosition(offset=answer.end_offset, life=answer.end_life)
        found.exchanges += 1
        found.bytes += reply.bytes
        return reply

    async def _fetch_all_missing(self, found: Comparison, wanted: Sequence[tuple[Origin, Sequences]]) -> None:
        """Fetch missing batches. What is declined may be proven by what is stored after it, of this life or a later
        one: it is fetched once more, the last first."""
        repaired, asked = set[int](), list(enumerate(wanted))
        for is_last in (False, True):
            declined = list[tuple[int, tuple[Origin, Sequences]]]()
            for at, (origin, span) in asked:
                stored, left = await self._fetch_missing(found, origin, span, is_last=is_last)
                repaired |= {at} if stored else set()
                declined += [(at, (origin, (one.facts.first_sequence, one.facts.last_sequence))) for one in left]
            asked = declined[::-1]
        found.repaired_ranges += len(repaired)

    async def _fetch_missing(
        self, found: Comparison, origin: Origin, span: Sequences, *, is_last: bool
    ) -> tuple[int, list[Declined]]:
        """Fetch missing batches and append them: how many facts, and what is declined, which is reported if this is the
        last attempt."""
        peer, stored, declined = self._settings.peer_node, 0, list[Declined]()
        is_own = origin.zone in self._own
        if not is_own and not self._store.inbound.trail(peer, found.stream):
            return 0, []  # nothing has been pulled yet: the pull will fetch everything
        if is_own and self._store.is_nearly_full(found.stream):
            found.refuse(f"{origin}: own facts stay at {peer}, because the store is nearly full")
            return 0, []
        async for _, judged in self._pages(found, origin, span):
            is_whole = await self._artifacts.fetch(judged.batches)
            # Without a position, which the pull moves.
            page = replace(judged, is_backlog=True, declined=judged.declined if is_last else ())
            stored += (await self._definitions.put_page(page)).stored_facts
            declined += judged.declined
            for one in judged.declined if is_last else ():
                span_text = f"{one.facts.first_sequence} to {one.facts.last_sequence}"
                found.refuse(f"{origin}: {span_text} declined: {one.reason}")
            if not is_whole:
                await self._artifacts.fetch(judged.batches)
            if is_own and self._store.is_nearly_full(found.stream):
                break  # the rest is fetched by another comparison
        found.repaired_facts += stored
        return stored, declined

    async def _fetch_damaged(self, found: Comparison, origin: Origin, span: Sequences) -> None:
        """Put damaged batches back at their offsets. If one is refused, the others are still repaired."""
        peer, facts = self._settings.peer_node, 0
        async for offered, _ in self._pages(found, origin, span):
            for batch in (one.batch for one in offered if not one.unreadable):
                # The digest, which is kept here, proves the copy; the signature was verified when the batch was stored.
                repairing = self._store.inbound.repair(found.stream, peer, [batch])
                try:
                    put_back = await asyncio.wrap_future(repairing)
                except self._store_errors as error:
                    if getattr(error, "retryable", False):
                        raise
                    found.refuse(str(error))
                else:
                    facts += batch.header.count if put_back else 0
        found.repaired_facts += facts
        found.repaired_ranges += facts > 0

    async def _pages(
        self, found: Comparison, origin: Origin, span: Sequences
    ) -> AsyncIterator[tuple[list[Offered], ReceivedPage]]:
        """Fetch the batches of a span, checked and judged."""
        first, last = span
        hole_pages = 0
        while first <= last:
            request = FetchSequences(
                stream=found.stream,
                origin=str(origin),
                first_sequence=first,
                last_sequence=last,
                limit=LIMIT,
                bytes_max=self._requester.page_bytes(BYTES_MAX_DEFAULT),
                signers_known=self._judge.signers_known(),
            )
            reply = await self._ask(found, request)
            peer, allowed = self._settings.peer_node, self._allowed
            offered, content = await asyncio.to_thread(
                check_sequences, reply.answer, reply.batches, peer, request, allowed
            )
            judged = await asyncio.to_thread(self._judge.judge, peer, found.stream, offered, content.signers)
            assert isinstance(reply.answer, SequencesAnswer)
            found.unavailable_facts += sum(end - start + 1 for start, end, _ in reply.answer.holes)
            covered = reply.answer.covered()
            if covered is not None and not (first <= covered[1] and covered[0] <= last):
                raise PageRefused(f"a page of {covered[0]} to {covered[1]}, asked for were {first} to {last}")
            if offered:
                yield offered, judged
            elif covered is not None:
                hole_pages += 1
                if hole_pages > HOLE_PAGES_MAX:
                    raise PageRefused(f"{peer} sent more than {HOLE_PAGES_MAX} pages of holes for {span}")
            if covered is None:
                return  # the peer holds nothing more of the span
            first = covered[1] + 1

    def _count(self, stream: str, found: Comparison) -> None:
        before = self._counted[stream]
        counts = {name: getattr(found, name) for name in ("divergent_ranges", "repaired_ranges", "repaired_facts")}
        self._counted[stream] = replace(
            before,
            comparisons=before.comparisons + 1,
            **{name: getattr(before, name) + count for name, count in counts.items()},
            last_unix_ms=time.time_ns() // 1_000_000,
            is_equal=found.repaired_ranges == found.divergent_ranges,
        )
        _log.log(
            logging.WARNING if found.divergent_ranges else logging.INFO,
            "compared",
            extra={**self._about(stream), "facts": found.compared_facts, **counts},
        )

    def _about(self, stream: str) -> Mapping[str, object]:
        return {"peer": self._settings.peer_node, "stream": stream}
