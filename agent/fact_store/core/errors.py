"""The error tree of the store. Each error names the thing it is about and ends with what to do.

    StoreError                      anything below; never raised itself (a BsfgError)
        StoreUnusable               this file cannot be opened as this node's store; nothing was changed
            StoreMissing            the file or folder does not exist
            StoreLocked             another process has it open
            StoreForeign            another zone's store, or no fact store at all
            StoreTooNew             written by a newer version of this program
            StoreDamaged            the file is broken, or its tables contradict each other
        StoreUnavailable            the store is open but cannot accept this now (try again if `retryable`)
            StoreBusy               too much work waits for the disk; slow the source
            StoreFull               no space left, or a size limit reached; the transaction was rolled back
                ArtifactsFull       all artifacts together are at their limit, or the disk has too little space for one
                ArtifactQuota       a zone has sent too many bytes to which no fact refers
            StoreFailed             the disk failed a commit; this process must be restarted
            StoreClosed             closed by its owner
        Refused                     the caller's arguments break a rule; nothing was stored (final)
            FactsRefused            samples, messages or definitions that cannot be sealed
            TermRefused             a term that is not above the store's own lives (also a ValueError)
            ForkError               a copy for a repair is another batch
            DefinitionsMissing      a batch needs tag definitions that are not held
            UnknownConsumer         no consumer of this name is registered
            ConsumerNotYours        the name was registered by another zone
            ConsumerStreamMismatch  the name is bound to another stream
            ConsumerInUse           it is active, and its removal was not forced
            ConsumerFenced          a newer instance under its name holds the lease
            LeaseUnknown            it presents a lease that was never granted here
            TooManyConsumers        the zone has registered as many as it may
            StreamIsLocal           the stream's write class keeps it from other zones
            AcksRefused             acks that the stream's write class forbids
            ArtifactRefused         an invalid digest, size or chunk
                ArtifactMissing     it is not stored here, or not complete
                ArtifactMismatch    the bytes do not have the digest
                ArtifactTooLarge    larger than this node's limit
            ConfirmRefused          an invalid range
                ConfirmBeyondLog    it names an offset that was never written here

A `code` is that of the protocol's error table for a peer; the root's stands where a class names none.

Bytes that are not a batch raise `agent.batch.BatchError`, a message that breaks the rules `agent.message.MessageError`.
"""

from __future__ import annotations

from collections.abc import Sequence

from agent.errors import StoreError, StoreFull, StoreUnavailable
from agent.pages import LackingDefinitions


def copy_error(error: StoreError) -> StoreError:
    """A copy of an error for one more caller, so that the tracebacks of several callers do not mix."""
    copy = type(error)(error.why, error.hint)
    copy.__cause__ = error.__cause__
    return copy


class StoreUnusable(StoreError):
    """This file cannot be opened as this node's store; nothing was changed."""


class StoreForbidden(StoreUnusable):
    """This user may not read the store."""

    hint = "run as a member of the node's group (usermod -aG bsfg USER), or: runuser -u bsfg -- bsfg ..."


class StoreMissing(StoreUnusable):
    """The file or folder does not exist."""


class StoreLocked(StoreUnusable):
    """Another process has the store open."""

    hint = "one process writes a store; stop the other one (systemctl status 'bsfg@*') and try again"


class StoreForeign(StoreUnusable):
    """Another zone's store, or no fact store at all."""


class StoreTooNew(StoreUnusable):
    """Written by a newer version of this program."""

    hint = "install that version again, or start with a fresh state_dir; this file was not touched"


class StoreDamaged(StoreUnusable):
    """The file is broken, or its tables contradict each other."""

    hint = "keep the file for examination, move it aside and start again; peers still hold what they confirmed"


class ShareFull(StoreFull):
    """A zone has used up its share of the room, and the rest is kept for the others."""

    hint = "see which reader of its streams is behind (bsfg consumer list), or give the zone more (share_bytes)"


class ArtifactsFull(StoreFull):
    """All artifacts together are at their limit, or the disk has too little space for one. Facts are still stored."""

    code = "artifacts_full"
    hint = "raise [store] artifacts_total_bytes_max, or keep the facts that refer to artifacts for less time"


class ArtifactQuota(StoreFull):
    """A zone's artifacts to which no fact refers would exceed its limit. Nothing was written."""

    code = "artifact_quota"
    waits_for_facts = True
    """For a pull: store the facts first, then fetch what they refer to."""
    hint = (
        "append the facts that refer to them; others are removed after artifact_orphan_hours; or raise [store] "
        "artifact_unreferenced_bytes_max"
    )


class StoreFailed(StoreUnavailable):
    """The disk failed a commit. The kernel may have dropped the pages, so this connection is not used again."""

    retryable = False
    hint = "restart the node: it reopens the store from the disk; check the disk if it happens again"


class StoreClosed(StoreUnavailable):
    """The store was closed."""

    retryable = False


class Refused(StoreError):
    """The caller's arguments break a rule; nothing was stored."""


class FactsRefused(Refused):
    """Samples, messages or definitions that cannot be sealed."""

    code = "bad_request"


class TermRefused(Refused, ValueError):
    """A term that is not above the numbers of the store's own lives."""


class AcksRefused(Refused):
    """Acks that the write class of the stream forbids."""

    code = "bad_request"


class ForkError(Refused):
    """A copy that is to repair a damaged batch is another batch than the one that was damaged."""


class DefinitionsMissing(Refused):
    """Batches need tag definitions that are not held: those of `lacking`."""

    hint = "fetch them first"

    def __init__(self, why: str, lacking: Sequence[LackingDefinitions]) -> None:
        super().__init__(why)
        self.lacking = lacking


class UnknownConsumer(Refused):
    """No consumer of this name is registered."""

    code = "unknown_consumer"
    hint = "a first fetch registers it; or correct the name (bsfg consumer list)"


class ConsumerNotYours(Refused):
    """The name was registered by another zone."""

    code = "consumer_not_yours"
    hint = "use a consumer name of your own, usually <your zone>.<stream>"


class ConsumerStreamMismatch(Refused):
    """The name is bound to another stream."""

    code = "consumer_stream_mismatch"
    hint = "use one consumer name for each stream, or remove the consumer first (bsfg consumer remove)"


class ConsumerInUse(Refused):
    """The consumer has fetched or confirmed recently, so it is in use."""

    hint = "stop it first, or use --force: facts that it has not confirmed may then be released"


class ConsumerFenced(Refused):
    """A newer instance of this consumer holds the lease."""

    code = "fenced"
    hint = "stop one of the two; the one that was started last continues"


class LeaseUnknown(Refused):
    """An instance of this consumer presents a lease that this store has not granted: the store is new or was restored,
    or the consumer was removed meanwhile."""

    code = "lease_unknown"
    hint = "request a lease again (0)"


class TooManyConsumers(Refused):
    """The zone has registered as many consumers as it may. Each consumer holds back facts from being released."""

    code = "too_many_consumers"
    hint = "unregister one that is not needed, or raise consumers_max of this peer in node.toml"


class StreamIsLocal(Refused):
    """A stream of write class local never leaves its node."""

    code = "stream_not_exported"
    hint = "read it on the node itself, or give the stream another write_class"


class ArtifactRefused(Refused):
    """An invalid digest, size or chunk of an artifact."""

    code = "bad_request"


class ArtifactMissing(ArtifactRefused):
    """The artifact is not stored here, or not complete."""

    code = "unknown_artifact"
    hint = "put it first (bsfg object put), then append the fact that refers to it"


class ArtifactMismatch(ArtifactRefused):
    """The bytes do not have the digest."""

    code = "artifact_mismatch"
    hint = "send them again from the beginning"


class ArtifactTooLarge(ArtifactRefused):
    """The artifact is larger than this node's limit."""

    code = "artifact_too_large"
    hint = "raise [store] artifact_bytes_max"


class ConfirmRefused(Refused):
    """A confirmation of an invalid range."""

    code = "bad_request"


class ConfirmBeyondLog(ConfirmRefused):
    """A confirmation names an offset that was never written here."""

    hint = "correct the offset; if this store was restored from a backup, name the life, too"
