"""Replication in simulation: `pair`, the two cores against models that forgive nothing, and `network`, nodes with real
stores."""
