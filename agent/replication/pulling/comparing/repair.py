"""Fetches from a peer what a comparison has found to be missing or damaged here.

Fetched batches are checked like any page: missing ones are appended at the end of the log; damaged ones are put back at
their offsets, if the store still has their digests. A fork is recorded as an incident and is not repaired.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, replace

from agent.batch import Definitions, Origin
from agent.columns import BatchError
from agent.errors import StoreError
from agent.pages import Declined, DefinitionChain, LackingDefinitions, ReceivedPage
from agent.pages import Span as Sequences
from agent.replication.protocol.errors import DefinitionsUnavailable
from agent.replication.protocol.messages import BYTES_MAX_DEFAULT, FetchSequences, SequencesAnswer
from agent.replication.protocol.ports import ReceivingStore
from agent.replication.pulling.artifact_pull import ArtifactPull
from agent.replication.pulling.comparing.comparison import ComparedZones, Comparison
from agent.replication.pulling.comparing.peer_log import PeerLog
from agent.replication.pulling.definition_pull import DefinitionPull
from agent.replication.pulling.page_check import PageRefused, check_sequences
from agent.replication.pulling.page_judge import PageJudge
from agent.signing.chains import Offered

PAGE_FACTS_MAX = 65_536
HOLE_PAGES_MAX = 64
"""Pages without batches for one range, with 2,048 holes each. A peer could invent them without end."""


@dataclass(frozen=True, slots=True)
class RepairTools:
    """What repairs with one peer share: they check a page, and fetch what it refers to."""

    judge: PageJudge
    artifacts: ArtifactPull
    definitions: DefinitionPull


class Repair:
    """The repair of what one comparison found."""

    def __init__(
        self, peer: PeerLog, store: ReceivingStore, zones: ComparedZones, found: Comparison, tools: RepairTools
    ) -> None:
        self._peer, self._store, self._zones, self._found, self._tools = peer, store, zones, found, tools

    async def run(self, *, is_commanded: bool) -> None:
        """Repair. `is_commanded`: a person vouches for the peer, so facts of unknown lives of the own zone are taken
        without a signature. Raises as the search does."""
        found = self._found
        for zone, wanted in found.damaged_definitions:
            await self._fetch_definitions(zone, wanted)
        unknown = set[Origin]() if is_commanded else self._unknown()
        await self._fetch_all_missing([(origin, span) for origin, span in found.missing if origin not in unknown])
        for origin, span in found.damaged:
            await self._fetch_damaged(origin, span)
        found.repaired_artifacts, found.missing_artifacts = await self._tools.artifacts.fetch_absent(found.stream)

    # --------------------------------------------------------------------------------------------------------- internal

    def _unknown(self) -> set[Origin]:
        """Missing own facts that could be inventions of the peer: no key signs this zone's facts, and the life is not
        in the table of lives, or is the present one. They are fetched by command only."""
        if self._store.signer is not None:
            return set()
        known = self._store.own_lives() - {self._store.life}
        missing = self._found.missing
        unknown = {origin for origin, _ in missing if origin.zone in self._zones.own and origin.life not in known}
        if unknown:
            facts = sum(last - first + 1 for origin, (first, last) in missing if origin in unknown)
            self._found.refuse(
                f"{facts:,} facts of this zone in {len(unknown):,} lives that this store does not know: if it was put"
                f" back or begun anew, fetch them with `bsfg peer compare {self._peer.peer_node} --repair`"
            )
        return unknown

    def _refuse(self, error: Exception) -> None:
        """Record why one thing was not repaired, so that the others still are. Raises an error that passes by itself:
        the whole comparison is repeated."""
        if getattr(error, "retryable", False):
            raise error
        self._found.refuse(str(error))

    async def _fetch_definitions(self, zone: str, wanted: Definitions) -> None:
        """Fetch all definitions up to these, which repairs the damaged ones."""
        put_back = 0

        async def repair(chains: list[DefinitionChain]) -> None:
            nonlocal put_back
            for chain in chains:
                repairing = self._store.inbound.repair_definitions(self._found.stream, self._peer.peer_node, chain)
                put_back += await asyncio.wrap_future(repairing)

        try:
            await self._tools.definitions.get([LackingDefinitions(zone, wanted)], repair)
        except (DefinitionsUnavailable, StoreError, BatchError) as error:
            self._refuse(error)
        self._found.repaired_definitions += put_back
        self._found.repaired_ranges += put_back > 0

    async def _fetch_all_missing(self, wanted: Sequence[tuple[Origin, Sequences]]) -> None:
        """Fetch missing batches. What is declined may be proven by what is stored after it, of this life or a later
        one: it is fetched once more, the last first."""
        repaired, asked = set[int](), list(enumerate(wanted))
        for is_last in (False, True):
            declined = list[tuple[int, tuple[Origin, Sequences]]]()
            for at, (origin, span) in asked:
                stored, left = await self._fetch_missing(origin, span, is_last=is_last)
                repaired |= {at} if stored else set()
                declined += [(at, (origin, (run.facts.first_sequence, run.facts.last_sequence))) for run in left]
            asked = declined[::-1]
        self._found.repaired_ranges += len(repaired)

    async def _fetch_missing(self, origin: Origin, span: Sequences, *, is_last: bool) -> tuple[int, list[Declined]]:
        """Fetch missing batches and append them: how many facts, and what is declined, which is reported if this is the
        last attempt."""
        found, peer, stored, declined = self._found, self._peer.peer_node, 0, list[Declined]()
        is_own = origin.zone in self._zones.own
        if not is_own and not self._store.inbound.trail(peer, found.stream):
            return 0, []  # nothing has been pulled yet: the pull will fetch everything
        if is_own and self._store.is_nearly_full(found.stream):
            found.refuse(f"{origin}: own facts stay at {peer}, because the store is nearly full")
            return 0, []
        async for _, judged in self._pages(origin, span):
            is_whole = await self._tools.artifacts.fetch(judged.batches)
            # Without a position, which the pull moves.
            page = replace(judged, is_backlog=True, declined=judged.declined if is_last else ())
            stored += (await self._tools.definitions.put_page(page)).stored_facts
            declined += judged.declined
            for run in judged.declined if is_last else ():
                sequences = f"{run.facts.first_sequence} to {run.facts.last_sequence}"
                found.refuse(f"{origin}: {sequences} declined: {run.reason}")
            if not is_whole:
                await self._tools.artifacts.fetch(judged.batches)
            if is_own and self._store.is_nearly_full(found.stream):
                break  # the rest is fetched by another comparison
        found.repaired_facts += stored
        return stored, declined

    async def _fetch_damaged(self, origin: Origin, span: Sequences) -> None:
        """Put damaged batches back at their offsets. If one is refused, the others are still repaired."""
        facts = 0
        async for offered, _ in self._pages(origin, span):
            for batch in (offer.batch for offer in offered if not offer.unreadable):
                # The digest, which is kept here, proves the copy; the signature was verified when the batch was stored.
                repairing = self._store.inbound.repair(self._found.stream, self._peer.peer_node, [batch])
                try:
                    put_back = await asyncio.wrap_future(repairing)
                except (StoreError, BatchError) as error:
                    self._refuse(error)
                else:
                    facts += batch.header.count if put_back else 0
        self._found.repaired_facts += facts
        self._found.repaired_ranges += facts > 0

    async def _pages(self, origin: Origin, span: Sequences) -> AsyncIterator[tuple[list[Offered], ReceivedPage]]:
        """Fetch the batches of a span, checked and judged."""
        peer, stream, judge = self._peer.peer_node, self._found.stream, self._tools.judge
        first, last = span
        hole_pages = 0
        while first <= last:
            request = FetchSequences(
                stream=stream,
                origin=str(origin),
                first_sequence=first,
                last_sequence=last,
                limit=PAGE_FACTS_MAX,
                bytes_max=self._peer.page_bytes(BYTES_MAX_DEFAULT),
                signers_known=judge.signers_known(),
            )
            reply = await self._peer.ask(request)
            offered, content = await asyncio.to_thread(
                check_sequences, reply.answer, reply.batches, peer, request, self._zones.allowed
            )
            judged = await asyncio.to_thread(judge.judge, peer, stream, offered, content.signers)
            assert isinstance(reply.answer, SequencesAnswer)
            self._found.unavailable_facts += sum(end - start + 1 for start, end, _ in reply.answer.holes)
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
