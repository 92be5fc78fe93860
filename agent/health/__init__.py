"""How a node is: figures in, a verdict out, told to people, to Prometheus and to systemd.

This package reads and judges; it never changes anything. Everything it knows arrives as one frozen `NodeSnapshot` that
the node fills in. DESIGN.md beside this file says why.
"""
