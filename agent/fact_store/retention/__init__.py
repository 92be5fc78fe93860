"""What leaves the log, and when: retention, limits of size, the ballast file, and the housekeeping that carries it out."""

from agent.fact_store.retention.ballast import Ballast, disk_free
from agent.fact_store.retention.housekeeping import Housekeeping

__all__ = [
    "Ballast",
    "Housekeeping",
    "disk_free",
]
