"""The fact store: an append-only log of sealed batches in one SQLite file, with consumer cursors. Every result is
durable before it is returned.

DESIGN.md has the reasons. `FactStore` is for the process that owns the store, `StoreReader` for every other reader.
"""

from agent.fact_store.append import is_in_sync
from agent.fact_store.artifacts import ARTIFACTS_FOLDER, ArtifactFiles
from agent.fact_store.core import (
    CHUNK_BYTES_MAX,
    ArtifactMismatch,
    ArtifactRefused,
    BatchSummary,
    ConsumerState,
    Incident,
    ShareFull,
    StoreDamaged,
    StoreForeign,
    StoreLocked,
    StoreTooNew,
    TermRefused,
    UnknownConsumer,
    check_digest,
)
from agent.fact_store.divergence import migrate_store
from agent.fact_store.integrity import Damage, VerifyCounts, verify_store
from agent.fact_store.read import INCIDENTS_MAX, ConsumerSpace, StoreReader, StoreSpace, Verified, open_copy
from agent.fact_store.sqlite import FILES, check_known, connect_reader, named_statements, private_files
from agent.fact_store.store import FactStore
