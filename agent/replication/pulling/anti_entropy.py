"""Anti-entropy with one peer: when its streams are compared with the store, and what is counted of it. `comparing` has
one comparison.

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
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from agent.columns import BatchError
from agent.errors import StoreError
from agent.replication.protocol.errors import ReplicationError
from agent.replication.protocol.ports import ReceivingStore
from agent.replication.pulling.artifact_pull import ArtifactPull
from agent.replication.pulling.comparing.comparison import REFUSED_MAX, ComparedZones, Comparison
from agent.replication.pulling.comparing.differences import DifferenceSearch
from agent.replication.pulling.comparing.peer_log import OtherCopy, PeerLog
from agent.replication.pulling.comparing.repair import Repair, RepairTools
from agent.replication.pulling.definition_pull import DefinitionPull
from agent.replication.pulling.page_judge import PageJudge
from agent.replication.pulling.throttled_requester import ThrottledRequester

SCAN_FACTS, SCAN_BYTES = 65_536, 8 * 1024 * 1024
HOUR_S = 3600.0
RESTORED_CHECK_S = 60.0
"""Between two checks whether a peer has shown that the store was put back: what that lost is fetched at once."""
RETRY_S = 600.0
"""Wait after such a comparison has failed."""
OPENING_S = 60.0, 600.0
"""The first comparison begins so long after a start, at random: nodes that start together do not compare together."""

_log = logging.getLogger(__name__)
_EXPECTED = (ReplicationError, StoreError, BatchError)


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
        *,
        chance: Callable[[], float] = random.random,
        judge: PageJudge | None = None,
    ) -> None:
        self._requester, self._store, self._settings = requester, store, settings
        self._chance = chance
        self._counted = {stream: AntiEntropyStatistics(settings.peer_node, stream) for stream in settings.streams}
        self._turn = asyncio.Lock()
        artifacts = ArtifactPull(requester, store.artifacts)
        definitions = DefinitionPull(requester, store.inbound)
        self._tools = RepairTools(judge or PageJudge(store), artifacts, definitions)

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
            except _EXPECTED as error:
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
            try:
                found = await self._compare_one_copy(_Task(stream, repair, scan, is_commanded))
            except _EXPECTED:
                before = self._counted[stream]
                self._counted[stream] = replace(before, failures=before.failures + 1)
                raise
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
        stream, inbound = task.stream, self._store.inbound
        found = Comparison(stream)
        if task.is_scanned:
            await asyncio.to_thread(self._scan, stream)
        peer, zones = PeerLog(self._requester, self._settings.peer_node, found), self._zones()
        late = stream in self._settings.begun_late
        search = DifferenceSearch(peer, self._store, zones, found, is_begun_late=late)
        await search.run()
        for origin, why in found.forks[:REFUSED_MAX]:  # each incident is a commit; of each life there is one
            await asyncio.wrap_future(
                inbound.note_incident("fork", f"{stream} of {origin}", self._settings.peer_node, why)
            )
        if not task.is_repaired:
            found.missing_artifacts = sum([len(some) async for some in self._tools.artifacts.absent(stream)])
            return found
        await Repair(peer, self._store, zones, found, self._tools).run(is_commanded=task.is_commanded)
        sums = await asyncio.to_thread(search.equal_sums)
        if sums and not found.forks:
            await asyncio.wrap_future(inbound.note_compared(self._settings.peer_node, stream, sums))
        return found

    def _zones(self) -> ComparedZones:
        own, pulled = self._store.own_zones, self._settings.origins
        return ComparedZones(own=own - pulled, allowed=own | pulled, in_pair=self._settings.pair_zones)

    def _scan(self, stream: str) -> None:
        """Read the whole stream, so that the store detects damage. Runs in a thread."""
        after, end_offset = 0, self._store.end_offset(stream)
        while after < end_offset:
            page = self._store.read(stream, after, SCAN_FACTS, SCAN_BYTES)
            places = [batch.last_offset for batch in page.batches] + [hole.last_offset for hole in page.holes]
            after = max(places, default=end_offset)

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
