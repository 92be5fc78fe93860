"""The root of what can go wrong, so that the face of the product meets one tree.

    BsfgError               anything an operator, a peer or a disk did that this program could not accept
        ConfigError             node.toml cannot be used                                     (agent.config)
        MessageError            a message, sample or definition breaks a rule               (agent.message)
        BatchError              bytes are not a batch                                        (agent.batch)
        StoreError              the fact store refused or failed                             (agent.fact_store.log.errors)
        ReplicationError        a peer, or the way to it                                     (agent.replication.protocol.errors)
        IngestError             a source or its tag map                                      (agent.ingest.errors)

Each package draws its own branch. Our own mistakes are not here: they are assertions, and end the process.
"""

from __future__ import annotations


class BsfgError(Exception):
    """Root of the tree; never raised itself. `hint` says what to do where the text alone does not."""

    hint: str = ""
