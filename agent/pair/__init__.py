"""Which of two nodes records for a zone: `leadership` decides at the two nodes, `witness` at the node above that lends
the lead, `claims` has what they tell each other."""

from agent.pair.claims import TERM_MAX, Claim, ClaimState, Granter, next_term
from agent.pair.leadership import (
    TRANSITIONS,
    Begin,
    Leadership,
    LeadTimes,
    PairNames,
    PartnerWord,
    Role,
    RoleEvent,
    Stop,
    WitnessWord,
)
from agent.pair.witness import LEASE_MS, Lead, Witness, decide_lead
