"""The root of the exception tree, for callers such as the command line that catch all errors of the product.

    BsfgError               an operator, a peer or a disk did something that this program cannot accept
        ConfigError             node.toml cannot be used                                     (agent.config)
        MessageError            a message, sample or definition breaks a rule               (agent.message)
        BatchError              bytes are not a batch                                        (agent.columns)
        StoreError              the fact store refused or failed                             (agent.fact_store)
        ReplicationError        a peer or the connection to it failed                        (agent.replication)
        IngestError             a source or its tag map cannot be used                       (agent.ingest.errors)

Each package lists its own branch. Programming errors are not in the tree: they are assertions and end the process.
"""

from __future__ import annotations


class BsfgError(Exception):
    """Root of the tree; never raised itself. `hint` says what the operator can do, if the text does not."""

    hint: str = ""
