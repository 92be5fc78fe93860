"""Runs this node as one of two that record for its zone: asks the other one and the witness who leads, and lets the
store and the sources begin and end to record as `agent.pair.leadership` decides.

Nothing here waits for a device. A question has a third of a lease, so that a silent peer delays no other. The lead
begins with a commit of the store, before a source is asked for a value; its term is durable with its first fact.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial

from agent.concurrency import TaskGroup, timeout
from agent.errors import BsfgError, StoreBusy, StoreError, StoreFull
from agent.fact_store import FactStore, TermRefused
from agent.health.snapshot import PairRefusal, PairSnapshot
from agent.health.verdict import HEARD_MS
from agent.ingest import Ingest
from agent.local_socket import PairSwitched
from agent.message import HEALTH_STREAM
from agent.node.pairing.lead_desk import LeadDesk, claim_of, entry_of
from agent.pair import LEASE_MS, Begin, Claim, ClaimState, Leadership, PairNames, PartnerWord, Role, Stop, WitnessWord
from agent.replication.mqtt import Requester
from agent.replication.protocol.errors import (
    MalformedMessage,
    NotAuthorized,
    PeerRefused,
    ReplicationError,
    UnprovenAnswer,
)
from agent.replication.protocol.messages import ClaimLead, LeadAnswer
from agent.settings.node import NodeSettings

MS = 1_000_000
ASK_S = LEASE_MS / 5_000
"""Between two questions to one node; five fit into a lease."""
ANSWER_S = LEASE_MS / 3_000
STEP_S = 0.1
_REFUSALS = (StoreBusy, StoreFull, TermRefused)  # of the store, for now
HEARD_OUT_S = 10.0
"""At a planned switch: time for the other node to pull what this one has recorded, and then to begin."""
ZONE_PART = ""
"""Under this name, which no source has, the store keeps up to when the whole zone is complete here."""
COMPLETE_NS = 5_000 * MS
"""Between two times that it keeps."""

log = logging.getLogger(__name__)


class SwitchRefused(BsfgError):
    """The lead was not handed over; the text says why, and this node records on."""


@dataclass(frozen=True, slots=True)
class PairPorts:
    """What the pair needs of the node. `requester_of`: to a node, None while its broker is being replaced. `accepts`:
    whether the store takes facts. `ends`: of the streams here. `lacks`: why the other node does not hold the facts up
    to these ends, empty if it does."""

    store: FactStore
    sources: Ingest
    requester_of: Callable[[str], Requester | None]
    accepts: Callable[[], bool]
    ends: Callable[[], Mapping[str, int]]
    lacks: Callable[[Mapping[str, int]], str]
    unseen_s: Callable[[], float] = lambda: 0.0
    """How old a fact of the other node may be that is not here, known or not."""
    zone_term: int = 0
    """The number of the newest life of the zone that is held here."""


class PairRunner:
    """One node of a pair. It begins as a follower."""

    def __init__(self, settings: NodeSettings, ports: PairPorts, desk: LeadDesk) -> None:
        self._pair, self._ports = settings.pair, ports
        names = PairNames(settings.node.name, ports.store.life.hex(), settings.pair.partner)
        self._leadership = Leadership(names, time.monotonic_ns(), highest_term=ports.zone_term)
        with contextlib.suppress(StoreError):  # the store itself says what is wrong with it
            if (stored := ports.store.reader.completeness(ZONE_PART).get(ZONE_PART)) is not None:
                self._leadership.complete_ns = time.monotonic_ns() - max(time.time_ns() - stored[0], 0)
        self._complete_due_ns = 0
        self._refusals: dict[str, tuple[PairRefusal, int]] = {}
        self._heard = asyncio.Event()
        self._acting = asyncio.Lock()
        self._partner_ahead_ms: int | None = None
        self._shown: tuple[Role, str] = (Role.FOLLOWS, "")
        self._since_unix_ms = time.time_ns() // MS
        desk.hear_partner, desk.own_claim = self._hear_partner, self._own_claim

    async def run(self) -> None:
        """Run until cancelled."""
        async with TaskGroup() as group:
            start = partial(group.create_permanent, until=asyncio.Event())
            start(self._ask_repeatedly(self._pair.partner, self._hear_answer_of_partner), name="ask partner")
            if self._pair.witness:
                start(self._ask_repeatedly(self._pair.witness, self._hear_witness), name="ask witness")
            while True:
                await self._step()
                self._heard.clear()
                try:
                    async with timeout(STEP_S):
                        await self._heard.wait()
                except TimeoutError:
                    pass

    # --------------------------------------------------------------------------------------------------------- questions

    async def _ask_repeatedly(self, node: str, hear: Callable[[LeadAnswer, int], None]) -> None:
        while True:
            asked_ns = time.monotonic_ns()
            answer = await self._ask(node)
            if answer is not None:
                hear(answer, asked_ns)
                self._heard.set()
            await asyncio.sleep(max(0.0, ASK_S - (time.monotonic_ns() - asked_ns) / 1e9))

    async def _ask(self, node: str) -> LeadAnswer | None:
        requester, now_ns, leadership = self._ports.requester_of(node), time.monotonic_ns(), self._leadership
        if requester is None:
            return None
        is_witness = node == self._pair.witness
        claim = leadership.claim_for_witness(now_ns) if is_witness else leadership.claim_for_partner(now_ns)
        request = ClaimLead(
            zone=self._ports.store.zone, claim=entry_of(claim), witness_says=leadership.witness_says(now_ns)
        )
        try:
            answer = (await requester.ask(request, ANSWER_S)).answer
        except (ReplicationError, MalformedMessage) as error:
            log.debug("lead_not_answered", extra={"peer": node, "why": str(error)})
            if (refusal := _refusal_of(node, error)) is not None:
                self._refusals[node] = refusal, time.monotonic_ns()
            return None
        self._refusals.pop(node, None)
        return answer if isinstance(answer, LeadAnswer) else None

    def _hear_witness(self, answer: LeadAnswer, asked_ns: int) -> None:
        # It counts from the question: the witness's lease ends by its own clock, never before this node's.
        other = None if answer.other is None else claim_of(answer.other)
        word = WitnessWord(answer.leader, answer.term, answer.highest, answer.remaining_ms * MS, asked_ns, other)
        self._leadership.hear_witness(word)

    def _hear_answer_of_partner(self, answer: LeadAnswer, asked_ns: int) -> None:
        if answer.other is not None and answer.other.node == self._pair.partner:
            self._leadership.hear_partner(PartnerWord(claim_of(answer.other), answer.witness_says, asked_ns))
            if answer.unix_ms is not None:  # as it was half an answer's time ago
                way_ms = (time.monotonic_ns() - asked_ns) // (2 * MS)
                self._partner_ahead_ms = answer.unix_ms + way_ms - time.time_ns() // MS

    def _hear_partner(self, word: PartnerWord) -> None:
        self._leadership.hear_partner(word)
        self._heard.set()

    def _own_claim(self) -> tuple[Claim, str | None]:
        now_ns = time.monotonic_ns()
        return self._leadership.claim_for_partner(now_ns), self._leadership.witness_says(now_ns)

    # --------------------------------------------------------------------------------------------------------- decisions

    async def _step(self) -> None:
        async with self._acting:
            ports = self._ports
            if not self._leadership.is_recording:
                self._note_complete()
            fitness = ports.sources.fitness() if ports.accepts() else -1
            was_recording = self._leadership.is_recording
            now_ns, unix_ms = time.monotonic_ns(), time.time_ns() // MS
            least, gaps_stored = ports.store.next_life_number, ports.sources.gaps_stored()
            decision = self._leadership.step(now_ns, fitness, least, unix_ms, gaps_stored=gaps_stored)
            match decision:
                case Begin():
                    if not await self._begin_lead(decision) and was_recording:
                        await ports.sources.end_recording()
                case Stop(why):
                    self._note_ended(why)
                    await ports.sources.end_recording()
        self._note_role()

    async def _begin_lead(self, decision: Begin) -> bool:
        """Whether the lead has begun."""
        ports = self._ports
        try:
            await asyncio.wrap_future(ports.store.take_lead(decision.term))
        except _REFUSALS as error:
            log.warning("lead_not_begun", extra={"zone": ports.store.zone, "why": str(error)})
            self._leadership.release(time.monotonic_ns())
            return False
        # What the other node had recorded and this one has not pulled may be lost with it: it is in the gap, too.
        ports.sources.begin_recording(self._complete_unix_ns())
        log.warning("lead_begun", extra={"zone": ports.store.zone, "term": decision.term, "why": decision.why})
        self._note_lead(f"{self._shown[1] or 'none'} to {ports.store.node}", decision.why)
        return True

    def _complete_unix_ns(self) -> int | None:
        """Up to when all that the other node has recorded is here, or declared."""
        now_ns, unix_ns = time.monotonic_ns(), time.time_ns()
        self._leadership.note_level(now_ns - round(self._ports.unseen_s() * 1e9))
        complete_ns = self._leadership.complete_ns
        return None if complete_ns is None else unix_ns - (now_ns - complete_ns)

    def _note_complete(self) -> None:
        """Store it now and then, for the next process."""
        if (now_ns := time.monotonic_ns()) < self._complete_due_ns:
            return
        self._complete_due_ns = now_ns + COMPLETE_NS
        if (complete_ns := self._complete_unix_ns()) is not None:
            with contextlib.suppress(*_REFUSALS):
                self._ports.store.appends.set_completeness(ZONE_PART, {ZONE_PART: (complete_ns, None)})

    def _note_ended(self, why: str) -> None:
        zone = self._ports.store.zone
        log.warning("lead_ended", extra={"zone": zone, "why": why})
        self._note_lead(f"{self._ports.store.node} to {self._pair.partner}", why)

    def _note_lead(self, subject: str, why: str) -> None:
        """An incident; a store that takes none now is no reason to end."""
        with contextlib.suppress(*_REFUSALS):
            self._ports.store.note_incident("lead", subject, why)

    def _note_role(self) -> None:
        shown = self._leadership.role, self._leadership.leader(time.monotonic_ns())
        if shown == self._shown:
            return
        self._shown, self._since_unix_ms = shown, time.time_ns() // MS
        role, leader = shown
        log.info("pair_role", extra={"role": role.value, "leader": leader})

    async def switch(self) -> PairSwitched:
        """Hand the lead over to the other node, as planned. Raises SwitchRefused."""
        leadership, partner = self._leadership, self._pair.partner
        if not leadership.is_recording:
            raise SwitchRefused(f"this node follows; run it on {leadership.leader(time.monotonic_ns()) or partner}")
        word = leadership.partner_word(time.monotonic_ns())
        if word is None:
            raise SwitchRefused(f"{partner} does not answer, so no node would record: bsfg pair status there")
        if word.claim.fitness < 0:
            raise SwitchRefused(f"the store of {partner} takes no facts: bsfg status there")
        if word.claim.state is not ClaimState.FOLLOWS:
            leads = word.claim.state is ClaimState.LEADS
            why = "leads, too" if leads else "has just led, or has fewer sources connected, so it would not begin"
            raise SwitchRefused(f"{partner} {why}: bsfg pair status there")
        # Before anything stops: while the other node is behind, no node would record until it has pulled the rest.
        if lacks := await self._pulled():
            raise SwitchRefused(f"{partner} {lacks}")
        async with self._acting:
            if not leadership.is_recording:
                raise SwitchRefused(f"this node has just ended to lead: bsfg pair status on {partner}")
            await self._ports.sources.end_recording()
            await self._pulled()
            leadership.release(time.monotonic_ns())
        self._note_ended("bsfg pair switch")
        await _until(lambda: leadership.leader(time.monotonic_ns()) == partner)
        now_leads = leadership.leader(time.monotonic_ns())
        if now_leads != partner:
            why = "this node leads again" if now_leads else "no node leads"
            raise SwitchRefused(f"{partner} has not begun within {HEARD_OUT_S:.0f} s, {why}: bsfg pair status on both")
        return PairSwitched(now_leads)

    async def _pulled(self) -> str:
        """Wait until the other node holds what is stored here now; why it does not within HEARD_OUT_S, empty if it
        does. It never holds the newest fact of a source that delivers all the time."""
        ends = self._ports.ends()
        await _until(lambda: not self._ports.lacks(ends))
        return self._ports.lacks(ends)

    async def leave(self) -> None:
        """Give back the lead at the end of the node, when `run` was cancelled and the sources have ended: the other
        node need not wait for the end of the lease."""
        if not self._leadership.is_recording:
            return
        self._leadership.release(time.monotonic_ns())
        self._note_ended("the node stops")
        async with TaskGroup() as group:
            for node in self._pair.nodes:
                group.create_task(self._ask(node), name=f"tell {node}")

    # ------------------------------------------------------------------------------------------------------------ figures

    def snapshot(self) -> PairSnapshot:
        """The pair as this node knows it."""
        now_ns, leadership = time.monotonic_ns(), self._leadership
        partner, witness = leadership.partner, leadership.witness
        return PairSnapshot(
            zone=self._ports.store.zone,
            role=leadership.role.value,
            term=leadership.term if leadership.is_recording else 0 if partner is None else partner.claim.term,
            leader=leadership.leader(now_ns),
            partner=self._pair.partner,
            since_unix_ms=self._since_unix_ms,
            partner_state="" if partner is None else partner.claim.state.value,
            partner_heard_ms=None if partner is None else (now_ns - partner.heard_ns) // MS,
            witness=self._pair.witness,
            witness_heard_ms=None if witness is None else (now_ns - witness.heard_ns) // MS,
            partner_clock_ahead_ms=self._partner_ahead_ms,
            refusals=tuple(refusal for refusal, at_ns in self._refusals.values() if now_ns - at_ns < HEARD_MS * MS),
        )


def partner_lacks(partner: str, exports: Iterable[str], ends: Mapping[str, int], frontiers: Mapping[str, int]) -> str:
    """Why the partner does not hold the facts of the streams that it may pull, empty if it does. `ends`: up to which
    offsets; `frontiers`: what its consumers have confirmed, by their names. Its copy of the health of this node does
    not matter."""
    pulled = {stream: frontiers.get(f"{partner}.{stream}") for stream in exports if stream != HEALTH_STREAM}
    filled = {stream: frontier for stream, frontier in pulled.items() if ends.get(stream)}
    if never := [stream for stream, frontier in filled.items() if frontier is None]:
        return f"has never pulled {', '.join(never)}: is it in pulls of the [[peer]] there? bsfg status there"
    if behind := [stream for stream, frontier in filled.items() if (frontier or 0) < ends[stream]]:
        return f"is behind with pulling {', '.join(behind)}: bsfg consumer list here says how far"
    return ""


def _refusal_of(node: str, error: ReplicationError) -> PairRefusal | None:
    """An error that does not pass by itself: what the other side says, and what to do."""
    match error:
        case PeerRefused(retryable=False):
            return PairRefusal(node, error.code, error.message, error.hint)
        case NotAuthorized() | UnprovenAnswer():
            return PairRefusal(node, "", error.why, error.hint)
        case MalformedMessage():
            return PairRefusal(node, error.code, error.why, error.hint)
    return None


async def _until(condition: Callable[[], bool]) -> bool:
    """Return True when the condition holds, False after HEARD_OUT_S."""
    deadline = time.monotonic() + HEARD_OUT_S
    while not (holds := condition()) and time.monotonic() < deadline:  # noqa: ASYNC110 store and peers set no event
        await asyncio.sleep(STEP_S / 2)
    return holds
