"""The port to a transport: the bounds of a stream, its batches in pages, and the cursor of a consumer.

A `Place` has plain values only: Spark pickles it from the driver to the tasks. `opened` connects for one call of Spark
at a time; open resources are never pickled. Batch reads and streams use the same methods. Core: no IO.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from agent.batch import Batch, Origin
from agent.fact_store import Verified
from agent.lease import LeaseClaim
from agent.pages import Hole, Start
from agent.positions import Position
from pyspark_bsfg.dictionary import Dictionary, Named
from pyspark_bsfg.pruning import Pruning
from pyspark_bsfg.ranges import OffsetRange

OnHole = Callable[[Hole], None]


@dataclass(frozen=True, slots=True)
class Bounds:
    """What a store holds of a stream now. `life` (hex) has stored the last fact of its log: a life and an offset say
    which log was read, and how far (`agent.positions`). `first_offset` is `end_offset` + 1 if it holds nothing."""

    life: str
    first_offset: int
    end_offset: int
    zone: str = ""
    """The zone of the store."""
    bytes_per_fact: float = 0.0
    """On average, as stored; 0 if the transport does not tell."""
    resolved: int | None = None
    """Up to where the position that was asked about is valid in this log; None: unknown, or not asked."""

    @property
    def offsets(self) -> OffsetRange:
        """Both ends included."""
        return OffsetRange(self.first_offset, self.end_offset)


@dataclass(frozen=True, slots=True)
class Asked:
    """A part of a stream. `life` (hex): that of the position at its end."""

    stream: str
    offsets: OffsetRange
    life: str


class PlacedBatch(NamedTuple):
    """A batch, where it begins in the stream, and whether a signature proves it."""

    first_offset: int
    batch: Batch
    verified: Verified = "no"

    @property
    def last_offset(self) -> int:
        """Where it ends."""
        return self.first_offset + self.batch.header.count - 1


@dataclass(frozen=True, slots=True)
class Page:
    """Batches in order, and the holes between them. The pages of a range together cover each of its offsets once; the
    first batch may begin before the range, the last one may end after it."""

    batches: Sequence[PlacedBatch]
    holes: Sequence[Hole] = ()


class Registration(NamedTuple):
    """The cursor of a consumer; the lease of our claim, 0 if it was not granted; and the lease in force."""

    frontier: int
    lease: int
    in_force: int
    holder: str = ""


class FactSource(Protocol):
    """The facts of one store, while it is opened. Raises SparkError."""

    @property
    def name(self) -> str:
        """Where it is, for messages."""
        ...

    @property
    def zone(self) -> str:
        """The zone of the store."""
        ...

    def bounds(self, stream: str, read: Position | None = None) -> Bounds:
        """What is held now, and up to where a position is valid. Raises StreamUnknown."""
        ...

    def marks(self, stream: str) -> Sequence[tuple[int, int]]:
        """First offsets with the time (ms since 1970) at which they were recorded, about one a minute, in order."""
        ...

    def matching(self, asked: Asked, pruning: Pruning, dictionary: Dictionary) -> Iterator[OffsetRange]:
        """The parts of a range whose batches may hold facts that match, in order; the whole range if the store cannot
        tell without sending the batches."""
        ...

    def counts(self, asked: Asked) -> Sequence[tuple[Origin, int]] | None:
        """How many facts of each origin a range has, if the store can tell without reading them, and holds all."""
        ...

    def pages(self, asked: Asked, dictionary: Dictionary, *, needs_proofs: bool) -> Iterator[Page]:
        """The pages of a whole range. Raises FactsGone if the log does not have the end of the range."""
        ...

    def define(self, dictionary: Dictionary, named: Named) -> None:
        """Make sure that `dictionary` has the definitions that a batch names."""
        ...

    def cursor(self, consumer: str) -> int | None:
        """The offset up to which a consumer has confirmed everything; None if it is not registered."""
        ...

    def register(self, consumer: str, stream: str, start: Start, claim: LeaseClaim) -> Registration:
        """Register a consumer, if it is not registered, and claim its lease (agent/lease.py). Raises ConsumerRefused,
        with code `fenced` if another reader has taken it over."""
        ...

    def confirm(self, consumer: str, offset: int, life: str, claim: LeaseClaim) -> None:
        """Confirm that the facts up to a position are durable at the consumer, so that the store may release them. A
        repetition, or a smaller offset, changes nothing. Raises as `register` does."""
        ...


class Place(Protocol):
    """A place from which facts are read."""

    def opened(self) -> AbstractContextManager[FactSource]:
        """Connect for the duration of a block. Raises SparkError."""
        ...
