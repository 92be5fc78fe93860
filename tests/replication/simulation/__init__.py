"""Replication in simulation: `network`, nodes with real stores, and `test_twins`, two machines with one name."""
