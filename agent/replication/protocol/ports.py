"""The ports through which replication uses a fact store.

`ServingStore` is what a serving node reads from, `ReceivingStore` what a pulling node writes to; `FactStore` satisfies
both. What the ports demand of it:

- Methods that return a `Future` return at once; the result is set when the change is durable. They may be called from
  the event loop's thread; the shells await them with `asyncio.wrap_future`.
- `read` and `definitions` touch the disk; the shells call them in reader threads of their own, two at once. Everything
  else that returns a plain value reads memory only, and is called from the event loop.
- A definition is stored only together with a batch whose digest covers it; what no batch of the page needs is ignored.
- Errors are raised, directly or through the future, as exceptions of the store's own (given to the shells as
  `store_errors`), whose attribute `retryable` says whether the same call may succeed later: a full or busy store is, a
  forked history or a malformed batch is not.  After an exception nothing has changed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future  # tidy: a type in signatures, nothing runs
from typing import Literal, Protocol

from agent.append_contract import AppendOutcome, Precondition
from agent.batch import Batch, Origin
from agent.lease import Lease, LeaseClaim
from agent.message import Message
from agent.pages import (
    ArtifactProgress,
    ArtifactReference,
    BatchEnd,
    Consumer,
    HeldRange,
    OriginRange,
    Page,
    PeerPosition,
    PutResult,
    ReceivedDefinition,
    RepairedRange,
)


class StreamBounds(Protocol):
    """A stream's name and the offsets it holds."""

    @property
    def name(self) -> str: ...
    @property
    def first_offset(self) -> int: ...
    @property
    def end_offset(self) -> int: ...


class ComparedStore(Protocol):
    """What comparing two stores needs of either of them."""

    def held(self, stream: str) -> Mapping[Origin, Sequence[HeldRange]]:
        """The ranges held of each origin in a stream, in order and apart. From memory."""
        ...

    def batch_ends(self, stream: str, origin: Origin, sequences: Sequence[int]) -> Sequence[BatchEnd]:
        """The batches that hold these sequences and are still here: ends and digests, in order, each once."""
        ...

    def read_sequences(
        self, stream: str, origin: Origin, first_sequence: int, last_sequence: int, facts_max: int, bytes_max: int
    ) -> Page:
        """As `read`, whole batches of one origin by its sequences: places in the page are sequences."""
        ...


class Artifacts(Protocol):
    """What both sides need of the artifacts of a store. Everything touches the disk, and raises the store's errors."""

    def streams(self, digest: str) -> Sequence[str]:
        """The streams with a held fact that refers to it."""
        ...

    def read_chunk(self, digest: str, offset: int, length: int) -> tuple[int, bytes]:
        """Size of the whole, and bytes of it."""
        ...

    def put_chunk(self, digest: str, size: int, offset: int, data: bytes) -> ArtifactProgress:
        """Store the next bytes; with empty `data` only report how many are here."""
        ...

    def absent(self, stream: str) -> Sequence[str]:
        """Digests of artifacts to which held facts of a stream refer and that are not here."""
        ...

    def missing(self, batches: Sequence[Batch]) -> Sequence[ArtifactReference]:
        """The artifacts to which the facts of batches refer and that are not here; those that are here stay at least
        until the facts are stored."""
        ...

    def unavailable(self, peer: str, digest: str, why: str) -> None:
        """Record an incident: an artifact to which a peer's fact refers is unavailable."""
        ...


class Consumers(Protocol):
    """The registered consumers of a serving store, and how far each zone was served."""

    def get(self, name: str) -> Consumer | None:
        """A registered consumer, or None."""
        ...

    def all(self) -> Sequence[Consumer]:
        """All registered consumers."""
        ...

    def register(self, name: str, zone: str, stream: str, start: Literal["oldest", "end"] | int) -> Future[Consumer]:
        """Register a consumer, durably, at the oldest fact, the end, or what was recorded from a time on (milliseconds
        since 1970); the same registration again changes nothing."""
        ...

    def hold_lease(self, consumer: str, shown: LeaseClaim) -> Future[Lease]:
        """The lease in force after an instance has presented its own, durable; an exception for a fenced instance."""
        ...

    def confirm(
        self, consumer: str, last_offset: int, first_offset: int | None = None, *, shown: LeaseClaim | None = None
    ) -> Future[int]:
        """Merge a confirmed range; returns the frontier after it, durable. An instance with an old lease confirms
        nothing."""
        ...

    def seen(self, consumer: str, *, is_at_end: bool, waits_ms: int = 0) -> None:
        """Note that a fetch of this consumer is answered with a page that reaches the end of the log or not, or waits
        there for `waits_ms`. Returns at once and never raises. Not needed for confirmations."""
        ...

    def begin_serving(self, stream: str, zone: str) -> Future[None] | None:
        """Record, before the first facts of a stream are sent to a zone since the store was opened, that it is served;
        durable when the future is done. None if it is recorded already."""
        ...

    def record_served(self, stream: str, zone: str, last_offset: int, end: tuple[int, bytes] | None = None) -> None:
        """Note that a zone is about to be served a stream up to an offset; `end`: where the last batch of the page
        ends, and its digest. Returns at once."""
        ...

    def has_served(self, stream: str, zone: str, end: tuple[int, bytes]) -> bool:
        """Whether one of the last pages served to a zone ended with this batch. From memory."""
        ...

    def why_not_served(self, stream: str, zone: str, offset: int) -> str | None:
        """Why this store cannot have served a zone everything up to an offset of this epoch, as text; None where it can
        have. From memory."""
        ...


class Appends(Protocol):
    """What a serving store takes from the applications of other zones."""

    def append_messages(
        self,
        stream: str,
        messages: Sequence[Message],
        *,
        acks: Literal["none", "local", "quorum", "all"] | None = None,
        preconditions: Sequence[Precondition] = (),
    ) -> Future[list[AppendOutcome]]:
        """Append messages, each once by its id, all or none. The outcomes come when `acks` (the stream's, if None) is
        reached. Raises MessageError, at once, for a message or precondition that breaks a rule."""
        ...

    def acquire_lease(self, stream: str, producer: str) -> Future[int]:
        """A lease epoch higher than any before it, durable: appends of this producer with lower ones are fenced from
        now on."""
        ...

    def acquire_lease_after(self, stream: str, producer: str, epoch: int) -> Future[int | None]:
        """The same if that epoch is in force (0: none); None, and nothing has changed, where another is."""
        ...

    def lease_epoch(self, stream: str, producer: str) -> int:
        """The lease epoch of a producer that is in force, 0 for none. From memory."""
        ...


class ServingStore(ComparedStore, Protocol):
    """What the serving side needs."""

    @property
    def artifacts(self) -> Artifacts: ...
    @property
    def appends(self) -> Appends: ...
    @property
    def consumers(self) -> Consumers: ...

    @property
    def zone(self) -> str: ...
    @property
    def epoch(self) -> bytes: ...

    def streams(self) -> Sequence[StreamBounds]:
        """All streams, in any order."""
        ...

    def end_offset(self, stream: str) -> int:
        """Last committed offset of a stream, 0 for one that holds nothing or does not exist. From memory."""
        ...

    def peer_is_ahead(self, peer: str, why: str) -> None:
        """Note that a peer names facts of this epoch that were never written here. Returns at once and never raises."""
        ...

    def contradiction(
        self, stream: str, last_batch: tuple[int, bytes] | None, origin_head: tuple[int, bytes] | None
    ) -> str | None:
        """How a peer's claims about a stream contradict this store; None where they do not. The claims: the last offset
        of a batch that it took and the batch's digest; the last sequence of this epoch that it holds, with the digest.
        Reads the disk."""
        ...

    def read(
        self, stream: str, after_offset: int, facts_max: int, bytes_max: int, *, until_offset: int | None = None
    ) -> Page:
        """Whole batches from the one holding `after_offset + 1`: at least one if there is one, then within both limits;
        with `until_offset` none that begins beyond it."""
        ...

    def definitions(self, origin: Origin, after_number: int, until_number: int) -> Sequence[bytes]:
        """Definitions `after_number + 1` to `until_number` of an origin as canonical JSON, fewer if fewer are held."""
        ...

    def on_commit(self, callback: Callable[[Mapping[str, int]], None]) -> Callable[[], None]:
        """Call back, in the store's writer thread, after each commit with {stream: end_offset}; returns the way to
        stop."""
        ...


class Inbound(Protocol):
    """What a receiving store takes from its peers."""

    def peer_position(self, peer: str, stream: str) -> PeerPosition | None:
        """The position stored with the last page of this peer's stream; None when nothing was ever stored."""
        ...

    def put_batches(
        self,
        peer: str,
        stream: str,
        batches: Sequence[Batch],
        definitions: Sequence[ReceivedDefinition],
        position: PeerPosition,
        *,
        holes: Sequence[tuple[int, int, str]] = (),
        is_backlog: bool = False,
    ) -> Future[PutResult]:
        """Store definitions, batches (if absent), the holes that the peer reports, and the position in one transaction,
        or nothing at all.

        The caller has parsed and verified each batch. `is_backlog`: a backlog, which does not count as inflow.
        """
        ...

    def damaged(self, stream: str) -> Future[list[OriginRange]]:
        """The batches that are known to be damaged here."""
        ...

    def repair(self, stream: str, peer: str, batches: Sequence[Batch]) -> Future[list[RepairedRange]]:
        """Put damaged batches back at their offsets; returns the ranges that were."""
        ...

    def damaged_definition(self, stream: str, origin: Origin, last_sequence: int) -> int | None:
        """The number of the first damaged tag definition of those that the batch with a sequence needs; None where none
        is."""
        ...

    def repair_definitions(
        self, stream: str, peer: str, batch: Batch, received: Sequence[ReceivedDefinition]
    ) -> Future[int]:
        """Put damaged tag definitions back that a held batch's digest covers; returns how many were."""
        ...

    def note(self, kind: str, stream: str, peer: str, why: str) -> Future[None]:
        """Record an incident about a peer's stream: `fork`, it holds another history; `pull_stands`, the pull is
        blocked until an operator acts."""
        ...


class ReceivingStore(ComparedStore, Protocol):
    """What the pulling side needs."""

    @property
    def artifacts(self) -> Artifacts: ...
    @property
    def inbound(self) -> Inbound: ...

    @property
    def zone(self) -> str: ...

    def definition_counts(self) -> Mapping[Origin, int]:
        """How many definitions (numbered from 1 without holes) are held of each origin."""
        ...

    def end_offset(self, stream: str) -> int:
        """Last committed offset of a stream. From memory."""
        ...

    def read(self, stream: str, after_offset: int, facts_max: int, bytes_max: int) -> Page:
        """As the serving store's; what is damaged is noted on the way."""
        ...
