"""The health of a node: its status as one snapshot, a verdict on it, and both shown to operators, Prometheus and
systemd.

The node fills in the `NodeSnapshot`; this package judges and shows it and never changes anything. DESIGN.md has the
reasons. Import the modules: `bsfg status` needs only `problems`, and must not wait for the Prometheus
library that `metrics` loads.
"""
