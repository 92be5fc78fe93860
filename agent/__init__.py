"""bsfg: a store-and-forward agent for the boundary between plant and enterprise.

One floor above another, imports running downwards only: message, batch, then fact_store, ingest, replication and health
side by side, then node (the only place where the parts are put together), then cli. ARCHITECTURE.md has the map.
"""

__version__ = "0.1.0"
