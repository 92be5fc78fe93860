"""Supervision: each source is run, lost, waited for and rebuilt by itself, and what it missed is declared.

`ingest` starts, changes and stops all sources of a node; `supervisor` runs one of them; `outages` declares what it may
have missed; `lead_change` decides, without IO, what another gateway of the zone has recorded.
"""

from agent.ingest.supervision.ingest import Ingest
from agent.ingest.supervision.statistics import EventStatistics, SourceStatistics
