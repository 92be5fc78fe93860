"""The ports through which replication uses a fact store.

`ServingStore` is what a serving node reads from, `ReceivingStore` what a pulling node writes to; `FactStore` satisfies
both, and describes each method. In addition:

- Methods that return a `Future` return at once; the result is set when the change is durable. They may be called from
  the event loop's thread; the shells await them with `asyncio.wrap_future`.
- `read` and `definitions` touch the disk; the shells call them in reader threads of their own, two at once, or for a
  small page in the event loop's. Every other method that returns a plain value reads memory only, and is called from
  the event loop.
- A page is stored only when the tag definitions of its batches are: the error for a page that lacks some has an
  attribute `lacking`, which names them (`put_definitions`).
- Errors are raised, directly or through the future, as StoreError (agent/errors.py). `retryable` says whether the same
  call may succeed later: true for a full or busy store, false for a malformed batch. After an exception nothing has
  changed.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import Future  # tidy: a type in signatures, nothing runs
from typing import Literal, Protocol

from agent.append_contract import AppendOutcome, Precondition
from agent.batch import Batch, Definitions, Origin
from agent.lease import Lease, LeaseClaim
from agent.message import Message
from agent.pages import (
    ArtifactProgress,
    ArtifactReference,
    BatchEnd,
    ComparedSums,
    Consumer,
    DefinitionChain,
    HeldRange,
    HeldSum,
    OriginRange,
    Page,
    PutResult,
    ReceivedPage,
    RepairedRange,
    ZoneHeld,
)
from agent.positions import LogLives, Position, Resolved, Trail
from agent.signing.records import RecordSigner


class StreamBounds(Protocol):
    """A stream's name and the offsets it holds."""

    @property
    def name(self) -> str: ...
    @property
    def first_offset(self) -> int: ...
    @property
    def end_offset(self) -> int: ...


class StoredFacts(Protocol):
    """What is stored and held. All of it touches the disk, in the calling thread."""

    def zones_held(self, stream: str, after_zone: str, limit: int) -> Sequence[ZoneHeld]: ...

    def earlier_lives(
        self, stream: str, zone: str, below: bytes, ranges_max: int, down_to: bytes = b""
    ) -> Mapping[Origin, Sequence[HeldRange]]: ...

    def held_below(self, stream: str, zone: str, life: bytes) -> tuple[HeldSum, int]: ...

    def batch_ends(self, stream: str, origin: Origin, sequences: Sequence[int]) -> Sequence[BatchEnd]: ...

    def read_sequences(
        self,
        stream: str,
        origin: Origin,
        first_sequence: int,
        last_sequence: int,
        facts_max: int,
        bytes_max: int,
    ) -> Page: ...

    def signers(self, key_ids: Iterable[bytes]) -> Sequence[bytes]: ...

    def zone_held(self, stream: str, zone: str) -> ZoneHeld | None: ...

    def lowest_sequence(self, stream: str, zone: str) -> int | None: ...

    def forgotten(self, zone: str) -> bytes: ...

    def compared(self, peer: str, stream: str, zone: str) -> ComparedSums | None: ...

    def held_of(self, stream: str, origin: Origin) -> Sequence[HeldRange]: ...

    def range_starts(self, stream: str, zone: str) -> Mapping[tuple[int, bytes], Sequence[bytes]]: ...

    def is_proven(self, stream: str, origin: Origin, sequence: int) -> bool: ...

    def definitions(self, zone: str, digest: bytes, held: Collection[bytes] = ()) -> DefinitionChain | None: ...


class Artifacts(Protocol):
    """What both sides need of the artifacts of a store. Everything touches the disk, and raises the store's errors."""

    def streams(self, digest: str) -> Sequence[str]: ...

    def read_chunk(self, digest: str, offset: int, length: int) -> tuple[int, bytes]: ...

    def put_chunk(self, zone: str, digest: str, size: int, offset: int, data: bytes) -> ArtifactProgress: ...

    def absent(self, stream: str, after: str = "") -> tuple[Sequence[str], str | None]: ...

    def missing(self, batches: Sequence[Batch]) -> Sequence[ArtifactReference]: ...

    def unavailable(self, peer: str, digest: str, why: str) -> None: ...


class Consumers(Protocol):
    """The registered consumers of a serving store."""

    def get(self, name: str) -> Consumer | None: ...

    def register(
        self, name: str, zone: str, stream: str, start: Literal["oldest", "end"] | int, *, zone_max: int | None = None
    ) -> Future[Consumer]: ...

    def unregister(self, name: str, zone: str, claim: LeaseClaim) -> Future[bool]: ...

    def hold_lease(self, consumer: str, claim: LeaseClaim) -> Future[Lease]: ...

    def confirm(
        self,
        consumer: str,
        last_offset: int,
        first_offset: int | None = None,
        *,
        claim: LeaseClaim | None = None,
        life: bytes | None = None,
        digest: bytes = b"",
        is_awaited: bool = True,
    ) -> Future[int]: ...

    def commit_deferred(self) -> None: ...

    def seen(self, consumer: str, *, is_at_end: bool, waits_ms: int = 0) -> None: ...


class Appends(Protocol):
    """What a serving store takes from the applications of other zones."""

    def append_messages(
        self,
        stream: str,
        messages: Sequence[Message],
        *,
        acks: Literal["none", "local", "quorum", "all"] | None = None,
        preconditions: Sequence[Precondition] = (),
    ) -> Future[list[AppendOutcome]]: ...

    def acquire_lease(self, stream: str, producer: str) -> Future[int]: ...

    def acquire_lease_after(self, stream: str, producer: str, epoch: int) -> Future[int | None]: ...

    def lease_epoch(self, stream: str, producer: str) -> int: ...


class Store(Protocol):
    """What both sides need."""

    @property
    def reader(self) -> StoredFacts: ...
    @property
    def artifacts(self) -> Artifacts: ...
    @property
    def zone(self) -> str: ...
    @property
    def node(self) -> str: ...
    @property
    def life(self) -> bytes: ...
    @property
    def signer(self) -> RecordSigner | None: ...

    def end_offset(self, stream: str) -> int: ...

    def read(
        self, stream: str, after_offset: int, facts_max: int, bytes_max: int, *, until_offset: int | None = None
    ) -> Page: ...


class ServingStore(Store, Protocol):
    """What the serving side needs."""

    @property
    def appends(self) -> Appends: ...
    @property
    def consumers(self) -> Consumers: ...

    def streams(self) -> Sequence[StreamBounds]: ...

    def log(self, stream: str) -> LogLives: ...

    def is_in_memory(self, stream: str, after_offset: int) -> bool: ...

    def resolve(self, stream: str, position: Position) -> Resolved: ...

    def peer_reads_more(self, peer: str, why: str) -> None: ...

    def on_commit(self, callback: Callable[[Mapping[str, int]], None]) -> Callable[[], None]: ...


class Inbound(Protocol):
    """What a receiving store takes from its peers."""

    def trail(self, peer: str, stream: str) -> Trail: ...

    def put_page(self, page: ReceivedPage) -> Future[PutResult]: ...

    def damaged(self, stream: str) -> Future[list[OriginRange]]: ...

    def repair(self, stream: str, peer: str, batches: Sequence[Batch]) -> Future[list[RepairedRange]]: ...

    def put_definitions(self, peer: str, chains: Sequence[DefinitionChain]) -> Future[int]: ...

    def damaged_definitions(self, stream: str, origin: Origin, last_sequence: int) -> Definitions | None: ...

    def repair_definitions(self, stream: str, peer: str, chain: DefinitionChain) -> Future[int]: ...

    def note_compared(self, peer: str, stream: str, sums: Mapping[str, ComparedSums]) -> Future[None]: ...

    def note_incident(self, kind: str, stream: str, peer: str, why: str) -> Future[None]: ...


class ReceivingStore(Store, Protocol):
    """What the pulling side needs."""

    @property
    def inbound(self) -> Inbound: ...

    @property
    def own_zones(self) -> frozenset[str]: ...

    def own_lives(self) -> frozenset[bytes]: ...

    @property
    def times_restored(self) -> int: ...

    def is_nearly_full(self, stream: str) -> bool: ...

    def signers(self, key_ids: Iterable[bytes]) -> Sequence[bytes]: ...

    def signed_zones(self) -> frozenset[str]: ...
