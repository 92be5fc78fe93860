"""Answers ClaimLead: as the witness of two nodes that record for one zone below, and as one of two such nodes itself.

The witness decides in `agent.pair.witness`. What it has lent is in a file of the state folder before it is answered, so
that after a restart no term is granted twice. A disk that refuses costs the answer: the two nodes decide by themselves.
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from agent.file_replace import write_file
from agent.message import LOCAL_ZONE
from agent.pair import Claim, ClaimState, Lead, PartnerWord, Witness
from agent.replication.protocol.messages import ClaimEntry, ClaimLead, LeadAnswer
from agent.replication.serving import Caller, Outcome, Refuse, Reply, StoreName

LEADS_FILE = "leads.json"
FILE_BYTES_MAX = 1024 * 1024  # ten thousand zones
MS = 1_000_000

log = logging.getLogger(__name__)


class LeadDesk:
    """`claimants`: the zone of each peer that may ask. `partner`: the other node of our own zone, empty if there is
    none; what it claims goes to `hear_partner`, and `own_claim` is the answer."""

    def __init__(
        self, claimants: Mapping[str, str], file: Path, store_name: Callable[[], StoreName], partner: str = ""
    ) -> None:
        self.claimants = claimants
        self._file, self._store_name, self._partner = file, store_name, partner
        self._stored = read_leads(file)
        self._witness = Witness(self._stored, _now_ms())
        self._storing = asyncio.Lock()
        self.hear_partner: Callable[[PartnerWord], None] = lambda _: None
        self.own_claim: Callable[[], tuple[Claim, str | None]] | None = None

    async def answer(self, caller: Caller, request: ClaimLead) -> Outcome:
        """What the asking node needs to know. A node claims for itself and its own zone alone."""
        zone, own = self.claimants.get(caller.node), self._store_name()
        own_node = own["store_node"] or own["store_zone"]
        if request.zone == own["store_zone"] and caller.node != self._partner:  # a node is no witness of its own zone
            why = f"[pair] of {own_node} names {self._partner}, not {caller.node}"
            if not self._partner:
                why = f"{own_node} has no [pair], or was not restarted since it was written"
            return Refuse("lead_not_yours", why)
        if zone != request.zone or request.claim.node != caller.node or caller.node == LOCAL_ZONE:
            why = f'{own_node}, of zone {own["store_zone"]}, has not two [[peer]] with zone = "{request.zone}"'
            return Refuse("lead_not_yours", f"{why}, {caller.node} one of them")
        claim = claim_of(request.claim)
        if caller.node == self._partner:
            return self._answer_partner(claim, request.witness_says)
        return await self._answer_as_witness(zone, claim)

    def _answer_partner(self, claim: Claim, witness_says: str | None) -> Outcome:
        self.hear_partner(PartnerWord(claim, witness_says, time.monotonic_ns()))
        if self.own_claim is None:
            return Refuse("store_unavailable", "this node is starting")
        own, says = self.own_claim()
        unix_ms = time.time_ns() // MS
        return Reply(LeadAnswer(**self._store_name(), other=entry_of(own), witness_says=says, unix_ms=unix_ms), [])

    async def _answer_as_witness(self, zone: str, claim: Claim) -> Outcome:
        async with self._storing:  # claims are answered in the order in which they are stored
            self._witness.claim(zone, claim, _now_ms())
            lead, known = self._witness.leads[zone], self._stored.get(zone)
            if known is None or known.durable != lead.durable:
                stored = {**self._stored, zone: lead}
                try:
                    await asyncio.to_thread(_write_leads, self._file, stored)
                except OSError:
                    log.exception("lead_not_stored", extra={"zone": zone})
                    return Refuse("store_unavailable", f"{LEADS_FILE} cannot be written")
                self._stored = stored
        now_ms = _now_ms()
        leader, other = lead.leader(claim, now_ms), self._witness.other_claim(zone, claim.node, now_ms)
        answer = LeadAnswer(
            **self._store_name(),
            leader=leader,
            term=lead.term if leader else 0,
            highest=lead.highest,
            remaining_ms=max(0, lead.ends_ms - now_ms) if leader else 0,
            other=None if other is None else entry_of(other),
        )
        return Reply(answer, [])


def claim_of(entry: ClaimEntry) -> Claim:
    """A claim as a message has it."""
    state = ClaimState(entry.state)
    return Claim(
        entry.node, entry.instance, state, entry.term, entry.highest, entry.fitness - 1, gaps_stored=entry.gaps_stored
    )


def entry_of(claim: Claim) -> ClaimEntry:
    """A claim for a message."""
    return ClaimEntry(
        node=claim.node,
        instance=claim.instance,
        state=claim.state.value,
        term=claim.term,
        highest=claim.highest,
        fitness=claim.fitness + 1,
        gaps_stored=claim.gaps_stored,
    )


def read_leads(file: Path) -> dict[str, Lead]:
    """The leads that an earlier process has lent, by zone. A file that cannot be read counts as none, which is logged:
    the nodes' own terms still rise."""
    try:
        with file.open("rb") as opened:
            found = json.loads(opened.read(FILE_BYTES_MAX))
        return {str(zone): _lead_of(*row) for zone, row in found.items()}
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, TypeError, AttributeError, RecursionError) as error:
        log.warning("leads_unreadable", extra={"file": str(file), "why": str(error)})
        return {}


def _lead_of(node: object, instance: object, term: int, highest: int) -> Lead:
    return Lead(str(node), str(instance), int(term), int(highest))


def _write_leads(file: Path, leads: Mapping[str, Lead]) -> None:
    write_file(file, json.dumps({zone: lead.durable for zone, lead in leads.items()}).encode())


def _now_ms() -> int:
    return time.monotonic_ns() // MS
