"""The records of pages that the fact store and replication share: batches, the offsets and sequences they cover, and
the results of storing them.

Frozen records that decide nothing. An offset is a position in one store's stream, a sequence a position in the stream
of its origin; both begin at 1, and 0 means "nothing yet". Ranges include both ends. Core: no IO.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Literal, NamedTuple, Protocol

from agent.batch import DIGEST_BYTES, Batch, Definitions, Header, Origin
from agent.lease import Lease
from agent.positions import Position

Span = tuple[int, int]
"""First and last of a range of integers, both included."""

# -------------------------------------------------------------------------------------------------------- what is read

BATCHES_MAX = 2048
"""Batches of one page. Limits the work for a page and the size of its header if batches hold single facts."""


@dataclass(frozen=True, slots=True)
class StoredBatch:
    """A batch, parsed as it was read, and where it begins in the stream."""

    first_offset: int
    batch: Batch

    @property
    def last_offset(self) -> int:
        return self.first_offset + self.batch.header.count - 1

    @property
    def sealed(self) -> bytes:
        return self.batch.sealed

    @property
    def origin(self) -> Origin:
        return self.batch.header.origin

    @property
    def definitions(self) -> Definitions:
        """The tag definitions of its zone that it needs."""
        return self.batch.header.definitions


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

    Batches and holes together cover every offset from the requested one to the last of them.
    """

    batches: list[StoredBatch]
    end_offset: int
    holes: tuple[Hole, ...] = ()


# ----------------------------------------------------------------------------------------------------- what is received


class LackingDefinitions(NamedTuple):
    """Tag definitions of a zone that this store lacks, and the newest of those that it has, newest first."""

    zone: str
    wanted: Definitions
    held: Sequence[Definitions] = ()


class DefinitionChain(NamedTuple):
    """Consecutive tag definitions of a zone (canonical JSON): those after `after`, up to `wanted`. `digests`: the
    running digest of each, if a store gave them."""

    zone: str
    wanted: Definitions
    after: Definitions
    bodies: Sequence[bytes]
    digests: Sequence[bytes] = ()


class OriginRange(NamedTuple):
    """Sequences of one origin."""

    zone: str
    life: bytes
    first_sequence: int
    last_sequence: int

    def named(self) -> dict[str, object]:
        """The range as a JSON object."""
        return {**self._asdict(), "life": self.life.hex()}


CERTIFICATES_OF_KEY_MAX = 16
"""Certificates of one key that are kept from each peer, that are kept as trusted, and that a page may contain: the
newest of as many renewals. Each peer has its own places, so false certificates from one peer displace no true one from
another."""
KEYS_OF_ZONE_MAX = 64
"""Untrusted keys of one zone whose certificates from one peer are kept: the newest. A zone can sign each batch with a
new key, and retention does not release certificates."""


class SignerCertificate(NamedTuple):
    """The certificate (DER) of a key that signed batches, whether this node trusts it, and its zone."""

    key_id: bytes
    certificate: bytes
    is_trusted: bool
    zone: str


class Declined(NamedTuple):
    """Facts of a page that are not stored because their origin did not prove them, or because they cannot be read:
    their offsets at the peer, their origin, and why."""

    first_offset: int
    last_offset: int
    facts: OriginRange
    reason: str


@dataclass(frozen=True, slots=True)
class ReceivedPage:
    """A page of a peer's stream, whose batches were parsed and their content read."""

    peer: str
    stream: str
    batches: Sequence[Batch]
    read: Sequence[Position] = ()
    """Up to where each life of the peer's log is stored with this page, in order; none for batches from before, which
    a comparison found missing: then the stored position does not change."""
    holes: Sequence[tuple[int, int, str]] = ()
    """First and last offset of facts that the peer says it no longer has, and why; each becomes an incident."""
    is_backlog: bool = False
    """The peer had kept the facts for this store, so forecasts do not count them as inflow."""
    verified: Collection[int] = ()
    """Positions of batches whose record is that of a trusted signer of their zone."""
    signers: Sequence[SignerCertificate] = ()
    """The certificates of the keys of all records."""
    declined: Sequence[Declined] = ()
    """What was left out of the page; each becomes an incident and a notice."""


@dataclass(frozen=True, slots=True)
class PutResult:
    """The result of storing a peer's page; all of it is durable."""

    stored_facts: int
    duplicate_facts: int
    end_offset: int
    gaps: tuple[OriginRange, ...] = ()
    """Sequences that are missing before a batch, because the peer no longer had them."""
    refused: tuple[OriginRange, ...] = ()
    """Not stored, because other facts of the same life are held under their sequences."""
    left_out: tuple[OriginRange, ...] = ()
    """Not stored, because their zone has reached a limit of this store."""


class RepairedRange(NamedTuple):
    """Offsets whose facts are served again."""

    first_offset: int
    last_offset: int


# -------------------------------------------------------------------------------------------------------- what is held


class HeldRange(NamedTuple):
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
        """The range of one batch."""
        return cls(header.first_sequence, header.last_sequence, header.previous_digest, digest)


class HeldSum(NamedTuple):
    """How many ranges of some lives of a zone are held in a stream, and the sum of a digest of each: two stores that
    hold the same have the same sum, and a range more or less changes it without the others being read."""

    ranges: int = 0
    digest_sum: int = 0

    @property
    def digest_hex(self) -> str:
        """The sum of the digests as 32 hex digits."""
        return self.digest_sum.to_bytes(DIGEST_BYTES).hex()

    @classmethod
    def of(cls, life: bytes, ranges: Iterable[HeldRange]) -> HeldSum:
        """The sum of the ranges of one life."""
        digests = [
            blake2b(life + first.to_bytes(8) + last.to_bytes(8) + before + end, digest_size=DIGEST_BYTES).digest()
            for first, last, before, end in ranges
        ]
        return cls(len(digests), sum(map(int.from_bytes, digests)) % _SUM_MODULUS)

    def plus(self, other: HeldSum) -> HeldSum:
        """The sum of the ranges of both."""
        return HeldSum(self.ranges + other.ranges, (self.digest_sum + other.digest_sum) % _SUM_MODULUS)

    def minus(self, other: HeldSum) -> HeldSum:
        """The sum without these ranges."""
        return HeldSum(self.ranges - other.ranges, (self.digest_sum - other.digest_sum) % _SUM_MODULUS)


_SUM_MODULUS = 1 << 8 * DIGEST_BYTES


class ZoneHeld(NamedTuple):
    """What is held of a zone in a stream: the ranges of its newest life, and the sum of those of all lives before
    it, with their facts."""

    newest: Origin
    ranges: tuple[HeldRange, ...]
    before: HeldSum
    facts_before: int


class ComparedSums(NamedTuple):
    """Of the lives of a zone before `floor` this store and a peer held these, and nothing was to be fetched."""

    floor: bytes
    ours: HeldSum
    theirs: HeldSum


class BatchEnd(NamedTuple):
    """The last sequence of a batch, and its digest, which covers every batch before it."""

    last_sequence: int
    digest: bytes


Start = Literal["oldest", "end"] | int
"""Where a new consumer begins: at the oldest fact, at the end, or at the facts recorded here from a time on (ms since
1970)."""


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
    """How much of an artifact is stored: `received` of `size` bytes. It is complete once all bytes were compared with
    the digest."""

    size: int
    received: int
    is_complete: bool


# ----------------------------------------------------------------------------------------------- sets of such ranges
# Offsets and sequences form runs of millions: the cost depends on the number of ranges, which are sorted and disjoint.


def intersect(left: Iterable[Span], right: Iterable[Span]) -> list[Span]:
    """The numbers in both. Each resulting span lies within one span of either."""
    found, rights = [], list(right)
    at = 0
    for first, last in left:
        while at < len(rights) and rights[at][1] < first:
            at += 1
        for other_first, other_last in rights[at:]:
            if other_first > last:
                break
            found.append((max(first, other_first), min(last, other_last)))
    return found


def subtract(spans: Iterable[Span], taken: Iterable[Span]) -> list[Span]:
    """The numbers in `spans` that are not in `taken`."""
    return list(_subtract(spans, list(taken)))


def count(spans: Iterable[Span]) -> int:
    """How many numbers are in the spans."""
    return sum(last - first + 1 for first, last in spans)


def _subtract(spans: Iterable[Span], taken: list[Span]) -> Iterator[Span]:
    at = 0
    for first, last in spans:
        while at < len(taken) and taken[at][1] < first:
            at += 1
        start = first
        for taken_first, taken_last in taken[at:]:
            if taken_first > last:
                break
            if taken_first > start:
                yield start, taken_first - 1
            start = taken_last + 1
        if start <= last:
            yield start, last
