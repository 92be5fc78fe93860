"""bsfg: a store-and-forward agent for the boundary between plant and enterprise.

The packages are layers, and imports go downwards only: message and batch at the bottom, above them fact_store, ingest,
replication and health side by side, then node (the only place where the parts are assembled), then cli. ARCHITECTURE.md
describes them.
"""

__version__ = "0.1.0"
