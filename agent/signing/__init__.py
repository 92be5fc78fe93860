"""Signatures of facts: the records in batches, the keys that sign them, and the certificates that name a key's zone.

A zone signs its batches with an Ed25519 key that serves no other purpose. Receivers accept the key by a
signer certificate: issued by a facts authority that the operator trusts, or pinned by its fingerprint. A TLS
certificate is never accepted as a signer certificate, nor the other way round (DESIGN.md).

This file imports nothing: `records` is imported wherever batches are stored or read, also on Spark's executors, which
must not load the libraries that keys and certificates need.
"""
