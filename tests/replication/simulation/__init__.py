"""Replication in simulation: `pair`, the two cores against strict models, and `network`, nodes with real stores."""
