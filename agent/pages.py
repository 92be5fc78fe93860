"""The records of pages that the fact store and replication share: batches, the offsets and sequences they cover, and
what storing them did.

Frozen records without behaviour. An offset is a position in one store's stream, a sequence a position in the stream of
its origin; both begin at 1, and 0 means "nothing yet". Ranges include both ends. Core: no IO.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple, Protocol

from agent.batch import Header, Origin
from agent.lease import Lease
from agent.ranges import Span

# -------------------------------------------------------------------------------------------------------- what is read

BATCHES_MAX = 2048
"""Of one page; limits what is read for it, and its header, where batches hold single facts."""


@dataclass(frozen=True, slots=True)
class StoredBatch:
    """A sealed batch, its offsets in the stream, and how many tag definitions it needs."""

    first_offset: int
    last_offset: int
    sealed: bytes
    origin: Origin
    definition_count: int
    head: bytes = b""
    """The signature of the chain up to this batch (`agent.signing.heads`); empty where it has none."""


@dataclass(frozen=True, slots=True)
class Hole:
    """Offsets (or sequences, in a page of sequences) whose facts are not held."""

    first_offset: int
    last_offset: int
    reason: Literal["expired", "damaged", "absent"]
    """Released by retention; damaged by the disk; never held, which is possible for sequences only."""


@dataclass(frozen=True, slots=True)
class Page:
    """Whole batches in order, the holes between them, and the end of the stream when they were read.

    Batches and holes together cover every offset from the one asked for to the last of them.
    """

    batches: list[StoredBatch]
    end_offset: int
    holes: tuple[Hole, ...] = ()


# ----------------------------------------------------------------------------------------------------- what is received


@dataclass(frozen=True, slots=True)
class PeerPosition:
    """How far a peer's stream is stored here: an offset in one epoch of the peer, and the timeline on which the peer
    served it, 16 bytes, empty where it named none."""

    epoch: bytes
    offset: int
    timeline: bytes = b""


@dataclass(frozen=True, slots=True)
class ReceivedDefinition:
    """Tag definition `number` of an origin as a peer sent it: canonical JSON."""

    origin: Origin
    number: int
    body: bytes


class OriginRange(NamedTuple):
    """Sequences of one origin."""

    zone: str
    epoch: bytes
    first_sequence: int
    last_sequence: int

    def named(self) -> dict[str, object]:
        """The range as a JSON object."""
        return {**self._asdict(), "epoch": self.epoch.hex()}


@dataclass(frozen=True, slots=True)
class KeptHead:
    """The head to be stored with a batch of a page, given by its position in the page. `is_verified`: the signature is
    that of a trusted signer of the batch's zone."""

    index: int
    record: bytes
    is_verified: bool


CERTIFICATES_OF_KEY_MAX = 16
"""Certificates of one key that are kept of each peer, and of those that are believed, and that a page brings: the
newest of so many renewals. Each peer has places of its own, so that false certificates of one displace no true one that
another has brought."""
KEYS_OF_ZONE_MAX = 64
"""Keys of one zone, not believed here, of which the certificates are kept that one peer has brought: the newest. A zone
can sign each batch with a key of its own, and no retention releases certificates."""


class SignerCertificate(NamedTuple):
    """The certificate (DER) of a key that signed a head, whether this node believes it, and its zone."""

    key_id: bytes
    certificate: bytes
    is_believed: bool
    zone: str


class StoredHead(NamedTuple):
    """A head as stored: the last sequence it covers and the digest there, its bytes, and when it was verified here (ms
    since 1970; None: it was not)."""

    last_sequence: int
    digest: bytes
    record: bytes
    verified_unix_ms: int | None


class Declined(NamedTuple):
    """Facts of a page that are not stored because their origin did not prove them, or because they cannot be read:
    their offsets at the peer, their origin, and why."""

    first_offset: int
    last_offset: int
    facts: OriginRange
    reason: str


@dataclass(frozen=True, slots=True)
class PutResult:
    """What became of a peer's page; all of it is durable."""

    stored_facts: int
    duplicate_facts: int
    end_offset: int
    gaps: tuple[OriginRange, ...] = ()
    """Sequences that are missing before a batch, because the peer no longer had them."""
    refused: tuple[OriginRange, ...] = ()
    """Not stored, because other facts are held under the same sequences."""
    uncompared: tuple[OriginRange, ...] = ()
    """Taken for duplicates of facts released here, so that whether they are equal is unknown."""
    left_out: tuple[OriginRange, ...] = ()
    """Not stored, because this store keeps no more of their zone."""


class RepairedRange(NamedTuple):
    """Offsets whose facts are served again."""

    first_offset: int
    last_offset: int


# -------------------------------------------------------------------------------------------------------- what is held


@dataclass(frozen=True, slots=True, order=True)
class HeldRange:
    """Consecutive sequences held of one stream and origin, and the digests at both ends; retention may have released
    their facts."""

    first_sequence: int
    last_sequence: int
    first_previous_digest: bytes
    last_digest: bytes

    @property
    def span(self) -> Span:
        return self.first_sequence, self.last_sequence

    @classmethod
    def of(cls, header: Header, digest: bytes) -> HeldRange:
        """The range that one batch makes by itself."""
        return cls(header.first_sequence, header.last_sequence, header.previous_digest, digest)


class BatchEnd(NamedTuple):
    """The last sequence of a batch, and its digest, which covers every batch before it."""

    last_sequence: int
    digest: bytes


Start = Literal["oldest", "end"] | int
"""Where a new consumer begins: at the oldest fact, at the end, or at the facts recorded here from a time on, in ms
since 1970."""


class Consumer(Protocol):
    """A registered consumer: its zone, its stream, the offset up to which it has confirmed everything, and its
    lease."""

    @property
    def zone(self) -> str: ...
    @property
    def stream(self) -> str: ...
    @property
    def frontier(self) -> int: ...
    @property
    def lease(self) -> Lease: ...


# ----------------------------------------------------------------------------------------------------------- artifacts


@dataclass(frozen=True, slots=True)
class ArtifactReference:
    """A fact's reference to an artifact: digest ("sha256:" and 64 hex digits) and size in bytes."""

    digest: str
    size: int


@dataclass(frozen=True, slots=True)
class ArtifactProgress:
    """How much of an artifact is here: `received` of `size` bytes; complete once the whole was compared with its
    digest."""

    size: int
    received: int
    is_complete: bool
