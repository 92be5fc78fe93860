"""The values and decisions of the log: records, errors, the catalog, and the rules for offsets, sequences and consumer
states.

It uses no SQLite and no threads. All other folders of the store build on these modules.
"""

from agent.fact_store.core.artifact_reference import (
    CHUNK_BYTES_MAX,
    ArtifactLimits,
    FinishArtifact,
    SkipChunk,
    artifact_room_lacking,
    check_artifact_quota,
    check_artifact_room,
    check_digest,
    checked_references,
    decide_chunk,
    digests_in,
    messages_in,
    quota_charge,
    references_in,
)
from agent.fact_store.core.catalog import Catalog, OwnDefinitions, StoreNames, StreamState, TailCache, Tip
from agent.fact_store.core.errors import (
    AcksRefused,
    ArtifactMismatch,
    ArtifactMissing,
    ArtifactRefused,
    ArtifactsFull,
    ConsumerFenced,
    ConsumerInUse,
    ConsumerNotYours,
    ConsumerStreamMismatch,
    DefinitionsMissing,
    FactsRefused,
    ForkError,
    LeaseUnknown,
    Refused,
    ShareFull,
    StoreClosed,
    StoreDamaged,
    StoreFailed,
    StoreForbidden,
    StoreForeign,
    StoreLocked,
    StoreMissing,
    StoreTooNew,
    StoreUnusable,
    StreamIsLocal,
    TermRefused,
    TooManyConsumers,
    UnknownConsumer,
    copy_error,
)
from agent.fact_store.core.frontier import Confirmed, confirm_range, skip_released
from agent.fact_store.core.held_ranges import (
    Branch,
    Duplicate,
    Insert,
    LifeRefused,
    MissingSequences,
    decide_insert,
    find_division,
    find_predecessor,
    is_followed,
)
from agent.fact_store.core.lifecycle import (
    ACTIVE_STATES,
    TRANSITIONS,
    ConsumerEvent,
    Lifecycle,
    next_state,
    next_timeout,
)
from agent.fact_store.core.operational_facts import operational_fact
from agent.fact_store.core.page_assembly import PageAssembly, PageRow, parse_row
from agent.fact_store.core.records import (
    NO_CONSUMER,
    Appended,
    AppendRefusal,
    BatchSummary,
    ConsumerState,
    Histogram,
    Incident,
    Integrity,
    StoreStatistics,
    StreamInfo,
)
from agent.fact_store.core.store_age import (
    HOUR_MS,
    MARK_EVERY_MS,
    NEVER_NS,
    AgeClock,
    WallClock,
    is_mark_due,
    last_offset_before,
)
from agent.fact_store.core.store_limits import StoreLimits
