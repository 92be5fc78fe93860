"""What the consumer core asks its shell to do, as frozen values. Core: values only.

The core yields an effect and is sent its result: `consumer = yield from FindConsumer(name)`. The type parameter of an
effect is the type of its result. An effect whose store call fails ends the request: the shell raises the store's error
and does not resume the core.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping
from dataclasses import dataclass
from typing import Any, Generic, Literal, NamedTuple, Protocol, TypeVar

from agent.lease import Lease, LeaseClaim
from agent.pages import BatchEnd, Consumer
from agent.replication.protocol.messages import Confirm, ConfirmReceipt, FetchFacts
from agent.replication.serving.outcomes import Outcome, Refuse
from agent.replication.serving.page import ReadPlan
from agent.replication.serving.reading import PageRead

T = TypeVar("T")


class Effect(Generic[T]):
    """Something to do, with a result of type T."""

    __slots__ = ()

    def __iter__(self) -> Generator[Effect[Any], Any, T]:
        result: T = yield self
        return result


Steps = Generator[Effect[Any], Any, Outcome]
"""One request in the core: yields effects, is sent their results, returns how the request ends."""


class Confirming(Protocol):
    """A confirmation on its way to the disk. The core only hands it back to the shell."""

    def done(self) -> bool: ...
    def result(self) -> int: ...
    def __await__(self) -> Generator[Any, Any, int]: ...


class StreamState(NamedTuple):
    """A stream at one moment: the store's epoch, the stream's end, how many fetches of the zone are parked, and the
    monotonic clock in ms."""

    epoch: str
    end_offset: int
    parked_of_zone: int
    now_ms: int


class Parked(NamedTuple):
    """How a wait for facts ended, and how long it lasted."""

    is_superseded: bool
    waited_ns: int


@dataclass(frozen=True, slots=True)
class FindConsumer(Effect[Consumer | None]):
    """Look a consumer up. From memory."""

    name: str


@dataclass(frozen=True, slots=True)
class GetStreamState(Effect[StreamState]):
    """Look at a stream and at the parked fetches of a zone. From memory."""

    stream: str
    zone: str


@dataclass(frozen=True, slots=True)
class ReportPeerAhead(Effect[None]):
    """Record, at most once in a while for each zone, that a peer claims facts of this epoch that are not here."""

    zone: str
    why: str


@dataclass(frozen=True, slots=True)
class IsProven(Effect[bool]):
    """Whether a request proves its claim: that this store has written facts of this epoch that it does not hold. From
    memory."""

    zone: str
    request: FetchFacts | ConfirmReceipt


@dataclass(frozen=True, slots=True)
class BeginEpoch(Effect[None]):
    """Have the store begin a new epoch, durably."""

    why: str


@dataclass(frozen=True, slots=True)
class CompareTimeline(Effect[Refuse | None]):
    """The refusal of an offset that was read on a timeline and is none in this store's log; None where it is one. From
    memory."""

    stream: str
    timeline: str
    offset: int


@dataclass(frozen=True, slots=True)
class CompareHistory(Effect[str | None]):
    """How the batch that a peer names contradicts the stored ones; None where it does not. Reads the disk."""

    stream: str
    zone: str
    origin_head: BatchEnd


@dataclass(frozen=True, slots=True)
class RegisterConsumer(Effect[Consumer]):
    """Register a consumer, durably, if the zone may have one more. The store raises its error where it may not."""

    name: str
    zone: str
    stream: str
    start: Literal["oldest", "end"] | int


@dataclass(frozen=True, slots=True)
class Unregister(Effect[bool]):
    """Remove a consumer, durably, and end its parked fetch; False where there was none. The store raises its error for
    a caller that is fenced."""

    name: str
    zone: str
    claim: LeaseClaim


@dataclass(frozen=True, slots=True)
class HoldLease(Effect[Lease]):
    """Have the store decide about a consumer's lease, durably. The store raises its error for a caller that is
    fenced."""

    name: str
    zone: str
    claim: LeaseClaim


@dataclass(frozen=True, slots=True)
class AnnounceLease(Effect[None]):
    """Another instance holds the lease now: log it, and end the wait of a parked fetch of the consumer."""

    name: str
    zone: str
    before: Lease
    lease: Lease


@dataclass(frozen=True, slots=True)
class StartConfirm(Effect[Confirming]):
    """Hand a confirmation to the store, without waiting until it is durable."""

    name: str
    zone: str
    confirm: Confirm
    claim: LeaseClaim
    epoch: str | None


@dataclass(frozen=True, slots=True)
class AwaitConfirm(Effect[int]):
    """The frontier after a confirmation of a zone, once it is durable."""

    confirming: Confirming
    zone: str


@dataclass(frozen=True, slots=True)
class CheckConfirm(Effect[None]):
    """Raise the store's error where a confirmation has failed by now. Does not wait."""

    confirming: Confirming


@dataclass(frozen=True, slots=True)
class BeginTimeline(Effect[str]):
    """Make it durable that a stream is served in this life of the store, unless it is already; the timeline."""

    stream: str


@dataclass(frozen=True, slots=True)
class Park(Effect[Parked]):
    """Wait until a stream grows beyond an offset, until `until_ms`, or until a newer fetch of the consumer comes."""

    name: str
    zone: str
    stream: str
    after_offset: int
    until_ms: int


@dataclass(frozen=True, slots=True)
class ReadPage(Effect[PageRead | Refuse]):
    """Read a page. Reads the disk."""

    plan: ReadPlan
    asking_zone: str
    definitions_known: Mapping[str, int]
    signers_known: tuple[str, ...] = ()
    former_epochs: frozenset[bytes] = frozenset()


@dataclass(frozen=True, slots=True)
class NoteServed(Effect[None]):
    """A page is about to be sent, which reaches the end of the log or not. Returns at once."""

    name: str
    is_at_end: bool
