"""Two nodes of one zone: `lead_desk` answers who leads, `runner` asks and carries out. `agent.pair` decides."""

from agent.node.pairing.lead_desk import LEADS_FILE, LeadDesk
from agent.node.pairing.runner import PairPorts, PairRunner, partner_lacks
