"""What a reader needs of a transport: the bounds of a stream, its batches in pages, and the cursor of a consumer.

A `Place` is plain values: Spark pickles it from the driver to the tasks. `opened` connects, for one method of Spark's
at a time; nothing that is open is ever sent. Batch reads and streams use the same methods. Core: no IO.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from agent.batch import Batch, Origin
from agent.fact_store import Verified
from agent.pages import Hole, Start
from pyspark_bsfg.dictionary import Dictionary
from pyspark_bsfg.pruning import Pruning
from pyspark_bsfg.ranges import OffsetRange

OnHole = Callable[[Hole], None]


@dataclass(frozen=True, slots=True)
class Bounds:
    """What a store holds of a stream now: offsets of one epoch (hex) of the store. `first_offset` is `end_offset` + 1
    if it holds nothing."""

    epoch: str
    first_offset: int
    end_offset: int
    zone: str = ""
    """The store's."""

    @property
    def offsets(self) -> OffsetRange:
        """Both ends included."""
        return OffsetRange(self.first_offset, self.end_offset)


@dataclass(frozen=True, slots=True)
class Asked:
    """A part of a stream. `epoch` is that in which the offsets were read; empty takes any."""

    stream: str
    offsets: OffsetRange
    epoch: str = ""


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
    """Batches in order, and the holes between them. Pages of a range together cover each of its offsets once; the first
    batch may begin before the range, the last one end behind it."""

    batches: Sequence[PlacedBatch]
    holes: Sequence[Hole] = ()


class FactSource(Protocol):
    """The facts of one store, while it is opened. Raises SparkError."""

    @property
    def name(self) -> str:
        """For messages: where it is."""
        ...

    @property
    def zone(self) -> str:
        """Whose store it is."""
        ...

    def bounds(self, stream: str) -> Bounds:
        """What is held now. Raises StreamUnknown."""
        ...

    def marks(self, stream: str) -> Sequence[tuple[int, int]]:
        """First offsets with the time (ms since 1970) at which these were recorded, about one a minute, in order."""
        ...

    def matching(self, asked: Asked, pruning: Pruning, dictionary: Dictionary) -> Iterator[OffsetRange]:
        """The parts of a range whose batches may hold facts that match, in order; the whole range where the store has
        no way to find out without sending them."""
        ...

    def pages(self, asked: Asked, dictionary: Dictionary, *, needs_proofs: bool) -> Iterator[Page]:
        """A range, whole. Raises FactsGone if the store has begun another epoch, or its end lies before that of the
        range."""
        ...

    def define(self, dictionary: Dictionary, origin: Origin, count: int) -> None:
        """Make sure that `dictionary` has the first `count` definitions of an origin of the last page."""
        ...

    def cursor(self, consumer: str) -> int | None:
        """The offset up to which a consumer has confirmed all; None where it is not registered."""
        ...

    def register(self, consumer: str, stream: str, start: Start) -> int:
        """Register a consumer, if it is not; its cursor."""
        ...

    def confirm(self, consumer: str, offset: int, epoch: str) -> None:
        """The facts up to an offset are durable at the consumer, so that the store may release them. Repeating it, or a
        smaller offset, changes nothing."""
        ...


class Place(Protocol):
    """Where facts are read."""

    def opened(self) -> AbstractContextManager[FactSource]:
        """Connect for the duration of a block. Raises SparkError."""
        ...
