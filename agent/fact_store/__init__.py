"""The fact store: an append-only log of sealed batches in one SQLite file, with cursors, durable before it answers.

DESIGN.md has the reasons. `FactStore` is for the process that owns the store, `StoreReader` for every other reader.
"""

from agent.fact_store.append import is_in_sync
from agent.fact_store.artifacts import ARTIFACTS_FOLDER, ArtifactFiles
from agent.fact_store.consumers import Start
from agent.fact_store.divergence import migrate_store
from agent.fact_store.integrity import Damage, VerifyCounts, verify_store
from agent.fact_store.log import (
    CHUNK_BYTES_MAX,
    Acks,
    AcksRefused,
    ArtifactMismatch,
    ArtifactMissing,
    ArtifactRefused,
    ArtifactsFull,
    ArtifactTooLarge,
    BatchHead,
    ConfirmBeyondLog,
    ConfirmRefused,
    ConsumerFenced,
    ConsumerNotYours,
    ConsumerState,
    ConsumerStreamMismatch,
    FactsRefused,
    Incident,
    StoreBusy,
    StoreDamaged,
    StoreError,
    StoreForeign,
    StoreFull,
    StoreSettings,
    StoreTooNew,
    StreamIsLocal,
    StreamSettings,
    UnknownConsumer,
    check_digest,
)
from agent.fact_store.producers import Producers
from agent.fact_store.read import INCIDENTS_MAX, ConsumerSpace, StoreReader, StoreSpace, Verified
from agent.fact_store.sqlite import FILES, check_known, connect_reader, named_statements
from agent.fact_store.store import FactStore
