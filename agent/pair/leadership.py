"""Whether this node records for its zone, or the other node of the pair does. Core: no IO.

The rule in one sentence: a node stays quiet only while it hears that the other one leads. So one of them always
records, and both do only while they do not hear each other. What was heard counts for one lease. By rank:

1. What the witness says. It lends the lead to one of them, with a term above all before.
2. What the other node says, while the witness is silent or knows no leader. Of two that record, the one that the
   witness confirms stays, else the one with the higher term. If neither records, the fitter one begins, else the first
   by name.
3. The clock. A node that has heard of no leader for its patience begins by itself, also one that is not fit.

A node whose store begins empty leaves the lead to its partner while both start, unless that is empty, too: it has no
history to continue. A leader whose partner has been fitter for a while releases the lead, and waits until the partner
has had its turn. A leader that has heard of a higher term takes a new one: of two leaders of a zone the later one has
the higher term.

Times are those of this node's monotonic clock, in ns. The shell asks with what `claim_for_witness` and
`claim_for_partner` say, passes on what it hears, and carries out what `step` decides.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import Enum

from agent.pair.claims import Claim, ClaimState, Granter, next_term
from agent.pair.witness import LEASE_MS

MS = 1_000_000
GAPS_STORED_MAX = 100  # claims: those of ten seconds, of both nodes and the witness
DOUBLINGS_MAX = 10  # of five seconds: one and a half hours


class Role(Enum):
    """ALONE: it records, and hears neither the partner nor the witness."""

    FOLLOWS = "follows"
    LEADS = "leads"
    ALONE = "alone"


class RoleEvent(Enum):
    """What changes a role."""

    BEGIN = "begin"
    END = "end"
    HEARD = "heard"
    UNHEARD = "unheard"


TRANSITIONS: Mapping[tuple[Role, RoleEvent], Role] = {
    (Role.FOLLOWS, RoleEvent.BEGIN): Role.LEADS,
    (Role.LEADS, RoleEvent.BEGIN): Role.LEADS,  # with a new term
    (Role.ALONE, RoleEvent.BEGIN): Role.LEADS,
    (Role.LEADS, RoleEvent.UNHEARD): Role.ALONE,
    (Role.ALONE, RoleEvent.HEARD): Role.LEADS,
    (Role.LEADS, RoleEvent.END): Role.FOLLOWS,
    (Role.ALONE, RoleEvent.END): Role.FOLLOWS,
}


@dataclass(frozen=True, slots=True)
class PairNames:
    """This node, its process, its partner."""

    node: str
    instance: str
    partner: str

    @property
    def granter(self) -> Granter:
        """This node as the granter of its own terms."""
        return Granter.FIRST if self.node < self.partner else Granter.SECOND


@dataclass(frozen=True, slots=True)
class LeadTimes:
    """`lease_ns`: how long a word counts. `patience_ns`: how long after it none may lead; `start_patience_ns`: after
    a start, while the connections are made. `fitter_ns`: how long the partner must have been fitter, and `unfit_ns` if
    this node has no source or no store; each time twice as long, if the last one was less than about `repeated_ns`
    ago: a partner that is fitter only while it follows, because its device accepts connections and gives no value, is
    not worth a switch every few seconds."""

    lease_ns: int = LEASE_MS * MS
    patience_ns: int = LEASE_MS * MS
    start_patience_ns: int = 10_000 * MS
    fitter_ns: int = 5_000 * MS
    unfit_ns: int = 1_000 * MS
    repeated_ns: int = 600_000 * MS


@dataclass(frozen=True, slots=True)
class WitnessWord:
    """What the witness said: who leads with which term (empty: none, or it does not know yet), for how long; that no
    leader had a term above `highest`; and what the other node last told it, if that was within a lease."""

    leader: str
    term: int
    highest: int
    remaining_ns: int
    heard_ns: int
    other: Claim | None = None


@dataclass(frozen=True, slots=True)
class PartnerWord:
    """What the partner claimed, and whom the witness names as leader to it; None if it does not hear the witness."""

    claim: Claim
    witness_says: str | None
    heard_ns: int

    @property
    def leads(self) -> bool:
        """Whether it records."""
        return self.claim.state is ClaimState.LEADS


@dataclass(frozen=True, slots=True)
class Begin:
    """Record with this term from now on."""

    term: int
    why: str


@dataclass(frozen=True, slots=True)
class Stop:
    """Stop recording; `why` says what was heard."""

    why: str


@dataclass(slots=True)
class _Condition:
    """How fit this node is, the least term that its store takes, and the one that it asks for."""

    fitness: int = 0
    least_term: int = 1
    fresh_term: int = 1
    gaps_stored: bool = False


@dataclass(slots=True)
class _PartnerLead:
    """The last lead of the partner that was heard of, and the first times since `complete_ns` at which all gaps were
    stored there."""

    term: int = 0
    gaps_stored_ns: list[int] = field(default_factory=list)


@dataclass(slots=True)
class _Waits:
    """Since when, or until when, something is waited for."""

    leaderless_ns: int
    """Since when no leader was heard of; at the start in the future, by what its patience is longer."""
    hold_ns: int = 0
    """Until then the lead is left to the partner."""
    empty_ns: int = 0
    """Until then, too, by a node whose store held no fact of the zone at its start: its partner may be starting."""
    fitter_ns: int | None = None
    """Since when the partner has been fitter."""
    released_ns: int = 0
    """When the lead was last left to it for that."""
    doublings: int = 0
    """How often the time for which it must be fitter has doubled."""


@dataclass(slots=True)
class Leadership:
    """The state of one node of a pair. Begins as a follower at `began_ns`, with the newest life of the zone that its
    store holds as `highest_term`."""

    names: PairNames
    began_ns: int
    times: LeadTimes = field(default_factory=LeadTimes)
    role: Role = Role.FOLLOWS
    term: int = 0
    """With which it records, or has last recorded."""
    highest_term: int = 0
    """Of all leaders that were heard of."""
    complete_ns: int | None = None
    """Up to when all that the partner has recorded is here, or declared missing by facts that are here; None: not
    known."""
    witness: WitnessWord | None = None
    partner: PartnerWord | None = None
    _condition: _Condition = field(default_factory=_Condition)
    _waits: _Waits = field(init=False)
    _partner_lead: _PartnerLead = field(default_factory=_PartnerLead)

    def __post_init__(self) -> None:
        longer_ns = self.times.start_patience_ns - self.times.patience_ns
        empty_ns = 0 if self.highest_term else self.began_ns + self.times.start_patience_ns
        self._waits = _Waits(self.began_ns + longer_ns, empty_ns=empty_ns)

    # ------------------------------------------------------------------------------------------------------------ heard

    def hear_witness(self, word: WitnessWord) -> None:
        """Take in an answer of the witness."""
        self.witness = word
        self.highest_term = max(self.highest_term, word.highest)
        if word.leader == self.names.partner and word.other is not None:
            self._note_led(word.other, word.heard_ns - max(self.times.lease_ns - word.remaining_ns, 0))

    def hear_partner(self, word: PartnerWord) -> None:
        """Take in what the partner has asked or answered."""
        self.partner = word
        self.highest_term = max(self.highest_term, word.claim.highest)
        if self.highest_term == 0:  # it holds no fact either. A witness may know none where one gateway has recorded
            self._waits.empty_ns = 0
        self._note_led(word.claim, word.heard_ns)

    def _note_led(self, claim: Claim, at_ns: int) -> None:
        lead = self._partner_lead
        # A store that refuses records nothing, whoever leads.
        if claim.state is not ClaimState.LEADS or claim.fitness < 0 or claim.term < lead.term:
            return
        if claim.term > lead.term:
            lead.term, lead.gaps_stored_ns = claim.term, []
        if claim.gaps_stored and len(lead.gaps_stored_ns) < GAPS_STORED_MAX:
            lead.gaps_stored_ns.append(at_ns)

    def note_level(self, level_ns: int) -> None:
        """What the partner had stored then is here. That counts up to where it had stored all facts of what was
        missing: a leader that dies takes the others with it."""
        told_ns = self._partner_lead.gaps_stored_ns
        # What is heard of an answer's time is when it was asked for, at most a lease before.
        while told_ns and told_ns[0] + self.times.lease_ns <= level_ns:
            self.complete_ns = max(told_ns.pop(0), self.complete_ns or 0)

    def witness_word(self, now_ns: int) -> WitnessWord | None:
        """What the witness said within the last lease."""
        return self.witness if self.witness and now_ns - self.witness.heard_ns < self.times.lease_ns else None

    def partner_word(self, now_ns: int) -> PartnerWord | None:
        """What the partner said within the last lease."""
        return self.partner if self.partner and now_ns - self.partner.heard_ns < self.times.lease_ns else None

    # ------------------------------------------------------------------------------------------------------------- told

    @property
    def is_recording(self) -> bool:
        """Whether this node records."""
        return self.role is not Role.FOLLOWS

    def claim_for_witness(self, now_ns: int) -> Claim:
        """What to ask the witness now."""
        claim, partner = self.claim_for_partner(now_ns), self.partner_word(now_ns)
        if claim.state is ClaimState.FOLLOWS and partner is not None and partner.leads:
            # A leader that the witness does not hear keeps the lead while its partner hears it.
            return replace(claim, state=ClaimState.RELEASES)
        return claim

    def claim_for_partner(self, now_ns: int) -> Claim:
        """What to tell the partner now."""
        state, term = ClaimState.LEADS, self.term
        if not self.is_recording:
            state = ClaimState.FOLLOWS if self._is_willing(now_ns) else ClaimState.RELEASES
            term = self._least_term
        highest = self._outdating_term if self.is_recording else self.highest_term
        condition, names = self._condition, self.names
        gaps_stored = self.is_recording and condition.gaps_stored
        return Claim(names.node, names.instance, state, term, highest, condition.fitness, gaps_stored)

    def witness_says(self, now_ns: int) -> str | None:
        """Whom the witness names as leader, for the partner; None if it is not heard."""
        word = self.witness_word(now_ns)
        return None if word is None else word.leader

    def leader(self, now_ns: int) -> str:
        """The node that leads, by what this one knows; empty if none does."""
        if self.is_recording:
            return self.names.node
        return self.names.partner if self._partner_leads(now_ns) else ""

    @property
    def _outdating_term(self) -> int:
        """The highest term of a leader, or the life that the store has begun by itself: a leader with a lower term
        takes a new one."""
        return max(self.highest_term, self._condition.least_term - 1)

    @property
    def _least_term(self) -> int:
        return max(self._condition.least_term, self._condition.fresh_term, self.highest_term + 1)

    # ---------------------------------------------------------------------------------------------------------- decided

    def step(
        self, now_ns: int, fitness: int, least_term: int, fresh_term: int = 1, *, gaps_stored: bool = True
    ) -> Begin | Stop | None:
        """What to do now. `least_term`: the least one that the store takes; `fresh_term`: one to ask for if no leader
        had a higher one, the time, because a term is the number of a life. `gaps_stored`: of all sources, if this node
        records."""
        self._condition = _Condition(fitness, least_term, fresh_term, gaps_stored)
        if self.is_recording:
            self._waits.leaderless_ns = now_ns
            decision = self._step_recording(now_ns)
        else:
            decision = self._step_following(now_ns)
        if isinstance(decision, Stop):
            self._become(RoleEvent.END)
            self._waits.fitter_ns = None
        elif isinstance(decision, Begin):
            self.term = self.highest_term = decision.term
            self._condition.gaps_stored &= self.is_recording
            self._become(RoleEvent.BEGIN)
        is_heard = self.witness_word(now_ns) is not None or self.partner_word(now_ns) is not None
        if (self.role is Role.LEADS and not is_heard) or (self.role is Role.ALONE and is_heard):
            self._become(RoleEvent.HEARD if is_heard else RoleEvent.UNHEARD)
        return decision

    def release(self, now_ns: int) -> None:
        """Leave the lead to the partner, after this node has stopped to record for a planned switch."""
        self._become(RoleEvent.END)
        self._hold(now_ns)

    def _become(self, event: RoleEvent) -> None:
        self.role = TRANSITIONS[self.role, event]
        if event is RoleEvent.END and self.witness is not None and self.witness.leader == self.names.node:
            self.witness = replace(self.witness, leader="")  # said before this node has given back the lead

    def _hold(self, now_ns: int) -> None:
        self._waits.hold_ns = now_ns + self.times.patience_ns
        self._waits.leaderless_ns = now_ns

    def _partner_leads(self, now_ns: int) -> bool:
        witness, partner = self.witness_word(now_ns), self.partner_word(now_ns)
        if witness is not None and witness.leader:
            return witness.leader == self.names.partner
        return partner is not None and partner.leads

    def _step_recording(self, now_ns: int) -> Begin | Stop | None:
        witness, partner, names = self.witness_word(now_ns), self.partner_word(now_ns), self.names
        if witness is not None and witness.leader == names.partner:
            return Stop("the witness says that the partner leads")
        if witness is not None and witness.leader == names.node:
            is_new = witness.term > self.term and witness.term >= self._condition.least_term
            if is_new:
                return Begin(witness.term, "the witness has granted a new term")
        elif partner is not None and partner.leads:
            is_later = (partner.claim.term, names.partner) > (self.term, names.node)
            if partner.witness_says == names.partner or (is_later and partner.witness_says != names.node):
                return Stop("the partner leads")
        elif witness is None and self.term < self._outdating_term:
            return Begin(self._own_term(), "there was a higher term")
        if self._must_release(now_ns):
            self._waits.doublings, self._waits.released_ns = min(self._waits.doublings + 1, DOUBLINGS_MAX), now_ns
            self._hold(now_ns)
            return Stop("the partner is fitter")
        return None

    def _must_release(self, now_ns: int) -> bool:
        claim = self._partner_claim(now_ns)
        if claim is None or claim.state is not ClaimState.FOLLOWS or claim.fitness <= self._condition.fitness:
            self._waits.fitter_ns = None
            return False
        if self._waits.fitter_ns is None:
            self._waits.fitter_ns = now_ns
        times, waits = self.times, self._waits
        patience_ns = times.unfit_ns if self._condition.fitness <= 0 else times.fitter_ns
        longer_ns = patience_ns << waits.doublings
        if now_ns - waits.released_ns >= times.repeated_ns + 4 * longer_ns:
            waits.doublings, longer_ns = 0, patience_ns
        return now_ns - self._waits.fitter_ns >= longer_ns

    def _step_following(self, now_ns: int) -> Begin | None:
        if self._partner_leads(now_ns):
            self._waits.leaderless_ns = max(now_ns, self._waits.empty_ns - self.times.patience_ns)
            self._waits.hold_ns = 0  # it has had its turn
            return None
        witness, partner = self.witness_word(now_ns), self.partner_word(now_ns)
        if witness is not None and witness.leader == self.names.node:
            if witness.term >= self._condition.least_term and self._is_willing(now_ns):
                return Begin(witness.term, "the witness has granted the lead")
        elif witness is None and partner is not None:
            if partner.witness_says == self.names.node:
                return Begin(self._own_term(), "the witness lends the lead, says the partner")
            if partner.witness_says is None and self._is_preferred(partner, now_ns):
                return Begin(self._own_term(), "neither node leads, and this one is the fitter or first")
        # A witness that is heard gets the time to answer a claim.
        patience_ns = self.times.patience_ns * (1 if witness is None else 2)
        if now_ns - self._waits.leaderless_ns >= patience_ns:
            return Begin(self._own_term(), "no leader was heard of")
        return None

    def _own_term(self) -> int:
        return next_term(self._least_term, self.names.granter)

    def _is_preferred(self, partner: PartnerWord, now_ns: int) -> bool:
        """Whether this node begins, and not its partner, where neither records and the witness is not heard."""
        if not self._is_willing(now_ns):
            return False
        if partner.claim.state is ClaimState.RELEASES:
            return True
        own, partners = self._condition.fitness, partner.claim.fitness
        return own > partners or (own == partners and self.names.granter is Granter.FIRST)

    def _is_willing(self, now_ns: int) -> bool:
        """Whether this node would take the lead: not just after it has released it, nor while a fitter partner
        would, nor as an empty one just after its start."""
        if now_ns < self._waits.empty_ns:
            return False
        claim, fitness = self._partner_claim(now_ns), self._condition.fitness
        is_fitter = claim is not None and claim.state is not ClaimState.RELEASES and claim.fitness > fitness
        return now_ns >= self._waits.hold_ns and not is_fitter

    def _partner_claim(self, now_ns: int) -> Claim | None:
        """What the partner claims, as it says itself, or else as it told the witness."""
        if (partner := self.partner_word(now_ns)) is not None:
            return partner.claim
        witness = self.witness_word(now_ns)
        return None if witness is None else witness.other
