"""Signatures of facts: heads of chains, the keys that sign them, and whom this node believes. DESIGN.md.

Without a face: `heads` is needed where batches are stored and read, also by Spark, and must not load the libraries that
keys and certificates need.
"""
