"""The effects of the consumer core: what its shell is to do, as frozen values. A core: values only.

The core yields an effect and is sent its result: `consumer = yield from FindConsumer(name)`. The type parameter of an
effect is the type of its result. If the store call of an effect fails, the request ends: the shell raises the store's
error and does not resume the core.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Literal, NamedTuple, Protocol, TypeVar

from agent.lease import Lease, LeaseClaim
from agent.pages import Consumer
from agent.positions import LogLives, Position, Resolved
from agent.replication.protocol.messages import Confirm
from agent.replication.serving.outcomes import Outcome, Refuse
from agent.replication.serving.page import ReadPlan
from agent.replication.serving.reading import PageRead

T = TypeVar("T")


class Effect(Generic[T]):
    """An action of the shell with a result of type T."""

    __slots__ = ()

    def __iter__(self) -> Generator[Effect[Any], Any, T]:
        result: T = yield self
        return result


Steps = Generator[Effect[Any], Any, Outcome]
"""One request in the core: yields effects, is sent their results, returns how the request ends."""


class Confirming(Protocol):
    """A confirmation that is being stored. The core only passes it back to the shell."""

    def done(self) -> bool: ...
    def result(self) -> int: ...
    def __await__(self) -> Generator[Any, Any, int]: ...


class StreamState(NamedTuple):
    """A stream at one moment: the lives of the stream's log, how many fetches of the node are
    parked, and the monotonic clock in ms."""

    log: LogLives
    parked_of_node: int
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
    """Look at a stream and at the parked fetches of a node. From memory."""

    stream: str
    node: str


@dataclass(frozen=True, slots=True)
class Resolve(Effect[tuple[tuple[Position, Resolved], ...]]):
    """What positions mean in the log of a stream. At the end of the log from memory, else it reads the disk."""

    stream: str
    node: str
    positions: tuple[Position, ...]


@dataclass(frozen=True, slots=True)
class ReportRestored(Effect[None]):
    """Record that a node has read a log of this store that is not the one here, or further, with a limited
    frequency."""

    node: str
    why: str


@dataclass(frozen=True, slots=True)
class RegisterConsumer(Effect[Consumer]):
    """Register a consumer, durably. The store raises an error if the node may not have another one."""

    name: str
    node: str
    stream: str
    start: Literal["oldest", "end"] | int


@dataclass(frozen=True, slots=True)
class Unregister(Effect[bool]):
    """Remove a consumer, durably, and end its parked fetch; False if there was none. The store raises an error for a
    fenced caller."""

    name: str
    node: str
    claim: LeaseClaim


@dataclass(frozen=True, slots=True)
class HoldLease(Effect[Lease]):
    """Let the store decide a claim to a consumer's lease, durably. The store raises an error for a fenced caller."""

    name: str
    node: str
    claim: LeaseClaim


@dataclass(frozen=True, slots=True)
class AnnounceLease(Effect[None]):
    """Another instance holds the lease now: log it, and end the wait of a parked fetch of the consumer."""

    name: str
    node: str
    before: Lease
    lease: Lease


@dataclass(frozen=True, slots=True)
class StartConfirm(Effect[Confirming]):
    """Pass a confirmation to the store without waiting until it is durable."""

    name: str
    node: str
    confirm: Confirm
    claim: LeaseClaim


@dataclass(frozen=True, slots=True)
class AwaitConfirm(Effect[int]):
    """The frontier after a confirmation of a node, once it is durable."""

    confirming: Confirming
    node: str


@dataclass(frozen=True, slots=True)
class CheckConfirm(Effect[None]):
    """Raise the store's error if a confirmation has already failed. Does not wait."""

    confirming: Confirming


@dataclass(frozen=True, slots=True)
class Park(Effect[Parked]):
    """Wait until a stream grows beyond an offset, until `until_ms`, or until a newer fetch of the consumer arrives."""

    name: str
    node: str
    stream: str
    after_offset: int
    until_ms: int
    answer_to: str
    correlation: bytes


@dataclass(frozen=True, slots=True)
class ReadPage(Effect[PageRead | Refuse]):
    """Read a page. Reads the disk."""

    plan: ReadPlan
    asking_node: str
    signers_known: tuple[str, ...] | None = None
    held: Sequence[tuple[str, str, int, int]] = ()


@dataclass(frozen=True, slots=True)
class NoteServed(Effect[None]):
    """Record that a page is about to be sent, and whether it reaches the end of the log. Returns at once."""

    name: str
    is_at_end: bool
