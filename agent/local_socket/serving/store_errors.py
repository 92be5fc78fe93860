"""Maps the store's exceptions for replication: the types that servers, pulls and comparisons catch, and the protocol's
error code for each.

The store and the protocol do not import each other, so the table that joins them is here. A server checks a request
before it calls the store; the codes about consumers and streams are therefore for races, such as a consumer that was
removed meanwhile.
"""

from __future__ import annotations

from collections.abc import Mapping

from agent.columns import BatchError
from agent.fact_store import (
    AcksRefused,
    ArtifactMismatch,
    ArtifactMissing,
    ArtifactQuota,
    ArtifactRefused,
    ArtifactsFull,
    ArtifactTooLarge,
    ConfirmRefused,
    ConsumerFenced,
    ConsumerNotYours,
    ConsumerStreamMismatch,
    FactsRefused,
    LeaseUnknown,
    ShareFull,
    StoreError,
    StoreFull,
    StreamIsLocal,
    TooManyConsumers,
    UnknownConsumer,
)

STORE_ERRORS: tuple[type[StoreError]] = (StoreError,)
"""What a server and a pull catch of the store."""
COMPARISON_ERRORS: tuple[type[StoreError], type[BatchError]] = (StoreError, BatchError)
"""What a comparison catches: it also opens batches itself."""

REFUSAL_CODES: Mapping[type[Exception], str] = {
    AcksRefused: "bad_request",
    ArtifactMismatch: "artifact_mismatch",
    ArtifactMissing: "unknown_artifact",
    ArtifactRefused: "bad_request",
    ArtifactTooLarge: "artifact_too_large",
    FactsRefused: "bad_request",
    StoreFull: "store_full",
    ShareFull: "store_full",
    ArtifactsFull: "artifacts_full",
    ArtifactQuota: "artifact_quota",
    UnknownConsumer: "unknown_consumer",
    ConsumerFenced: "fenced",
    LeaseUnknown: "lease_unknown",
    TooManyConsumers: "too_many_consumers",
    ConsumerNotYours: "consumer_not_yours",
    ConsumerStreamMismatch: "consumer_stream_mismatch",
    StreamIsLocal: "stream_not_exported",
    ConfirmRefused: "bad_request",
}
