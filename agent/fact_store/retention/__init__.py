"""Retention: which facts are released and when, the size limits, the ballast file, and the housekeeping that deletes
rows."""

from agent.fact_store.retention.ballast import Ballast
from agent.fact_store.retention.housekeeping import Housekeeping
