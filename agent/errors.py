"""The root of the exception tree, for callers such as the command line that catch all errors of the product.

    BsfgError               an operator, a peer or a disk did something that this program cannot accept
        ConfigError             node.toml cannot be used                                     (agent.config)
        MessageError            a message, sample or definition breaks a rule               (agent.message)
        BatchError              bytes are not a batch                                        (agent.columns)
        StoreError              the fact store refused or failed                             (agent.fact_store)
            StoreUnavailable    it cannot accept this now
                StoreBusy       too much work waits for the disk
                StoreFull       no space left, or a size limit reached
        ReplicationError        a peer or the connection to it failed                        (agent.replication)
        IngestError             a source or its tag map cannot be used                       (agent.ingest.errors)

Each package lists its own branch; these of the store stand here for the packages beside it, which do not import it.
Programming errors are not in the tree: they are assertions and end the process.
"""

from __future__ import annotations


class BsfgError(Exception):
    """Root of the tree; never raised itself. `hint` says what the operator can do, if the text does not."""

    hint: str = ""


class StoreError(BsfgError):
    """The fact store refused or failed; never raised itself. The text says what happened; `hint`, at its end, says what
    to do. `retryable`: the same call may succeed later. `code`: that of the protocol's error table for a peer."""

    retryable = False
    code = "store_unavailable"

    def __init__(self, why: str, hint: str | None = None) -> None:
        super().__init__(why)
        self.why = why
        if hint is not None:
            self.hint = hint

    def __str__(self) -> str:
        return f"{self.why}; {self.hint}" if self.hint else self.why


class StoreUnavailable(StoreError):
    """The store is open but cannot accept this now."""

    retryable = True


class StoreBusy(StoreUnavailable):
    """The queue of the writer is full."""

    hint = "slow the source and try again when earlier appends are done"


class StoreFull(StoreUnavailable):
    """No space left, or a size limit reached; the transaction was rolled back."""

    code = "store_full"
    hint = "free disk space or raise the limit; nothing that was acknowledged is affected"
