"""The witness: lends the lead of a zone to one of its two nodes, for a time that the node renews. Core: no IO.

    claim of a node   the lead is                            result
    ----------------  -------------------------------------  ---------------------------------------------------------
    releases          its own                                no node leads, and both may claim
    releases          another's, or free                     no change
    leads, follows    another's, and not run out             no change; a higher term that the node knows is remembered
    follows           no node's, just after the start        no change for one lease: a node may lead unheard
    leads             its own or free, the highest term      it keeps its term
    leads, follows    its own, with a term that it can take  the same term again: the answer was lost
    leads, follows    its own or free                        a new term above all that were heard of

The lease runs on the clock of the witness alone. A process that starts again is another holder than the one before.
After a restart of the witness the lease in its file runs anew, and no answer names it before its holder has renewed it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from agent.pair.claims import TERM_MAX, Claim, ClaimState, Granter, next_term

LEASE_MS = 1_500
"""Five times the 300 ms after which it is renewed."""


@dataclass(frozen=True, slots=True)
class Lead:
    """Who leads a zone: a process of a node, with this term, until `ends_ms`; no node: none leads. `highest`: no term
    above it was granted or heard of. `is_heard`: the holder has claimed since the witness started."""

    node: str = ""
    instance: str = ""
    term: int = 0
    highest: int = 0
    ends_ms: int = 0
    is_heard: bool = False

    @property
    def durable(self) -> tuple[str, str, int, int]:
        """What is stored before the answer."""
        return self.node, self.instance, self.term, self.highest

    def leader(self, asker: Claim, now_ms: int) -> str:
        """The node that leads, as told to a node; empty if none does or none was heard yet. A node is not told of its
        own earlier process, which leads no more."""
        is_earlier = self.node == asker.node and self.instance != asker.instance
        return self.node if now_ms < self.ends_ms and self.is_heard and not is_earlier else ""


def decide_lead(lead: Lead, claim: Claim, now_ms: int, lease_ms: int = LEASE_MS) -> Lead:
    """The lead after a claim, by the table above."""
    is_holder = (lead.node, lead.instance) == (claim.node, claim.instance)
    leads = claim.state is ClaimState.LEADS
    if (highest := max(claim.highest, claim.term if leads else 0)) > lead.highest:
        lead = replace(lead, highest=highest)
    if claim.state is ClaimState.RELEASES:
        return Lead(highest=lead.highest, ends_ms=now_ms) if is_holder else lead
    if not is_holder and now_ms < lead.ends_ms and (lead.node or not leads):
        return lead
    least = claim.term + 1 if leads else claim.term
    if leads and claim.term == lead.highest:
        term = claim.term
    elif is_holder and lead.term == lead.highest and lead.term >= least:
        term = lead.term
    else:
        term = next_term(max(lead.highest + 1, least), Granter.WITNESS)
    if term > TERM_MAX:
        return lead
    return Lead(claim.node, claim.instance, term, term, now_ms + lease_ms, is_heard=True)


class Witness:
    """The leads of all zones, and what their nodes last claimed."""

    def __init__(self, leads: Mapping[str, Lead], now_ms: int, lease_ms: int = LEASE_MS) -> None:
        """`leads`: as stored by an earlier process."""
        self._began_ms, self._lease_ms = now_ms, lease_ms
        self.leads = {zone: self._unheard(lead) for zone, lead in leads.items()}
        self._claims: dict[str, dict[str, tuple[Claim, int]]] = {}

    def claim(self, zone: str, claim: Claim, now_ms: int) -> bool:
        """Take in a claim of a node that may make it. Returns whether the lead must be stored before the answer."""
        before = self.leads.get(zone) or self._unheard(Lead())
        self._claims.setdefault(zone, {})[claim.node] = claim, now_ms
        self.leads[zone] = after = decide_lead(before, claim, now_ms, self._lease_ms)
        return before.durable != after.durable

    def _unheard(self, lead: Lead) -> Lead:
        """A lead whose holder has not been heard since the start."""
        return replace(lead, ends_ms=self._began_ms + self._lease_ms, is_heard=False)

    def other_claim(self, zone: str, node: str, now_ms: int) -> Claim | None:
        """What the other node of a zone has claimed within the last lease."""
        others = [known for by, known in self._claims.get(zone, {}).items() if by != node]
        return next((claim for claim, at_ms in others if now_ms - at_ms < self._lease_ms), None)
