"""The words of the receiver: its two states with their tables, what happens to it, and what it asks to be done.

`receiver` decides, `puller` acts; both speak in these.  All are frozen values, so that a test compares a decision with
the one it expects.  The diagram in DESIGN.md is drawn from the two tables.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Generic, Literal, TypeVar

from agent.pages import LastBatch
from agent.replication.protocol.page_size import BYTES_MAX

Content = TypeVar("Content")
"""What goes with a page from where it was received to the store. The receiver's core does not look at it."""


class Asking(Enum):
    """What stands between us and the peer."""

    OFFLINE = "no connection to the broker"
    WAITING = "a fetch is open"
    HOLDING = "nothing asked: an accepted page must be stored first"
    BACKOFF = "the last fetch failed or came empty too soon, or the connection has just returned; asks in a while"
    BLOCKED = "the peer or our store refused for good; asks again rarely"
    PACED = "the bytes a second that this peer may send are used up; asks in a while"
    FENCED = "another instance of this node has taken our place; asks no more until the process is started again"


class Storing(Enum):
    """What stands between us and our store."""

    IDLE = "no page to store"
    APPENDING = "a page is on its way to disk"
    PAUSED = "the store is full or busy; the same page is offered again in a while"


ASKING_TRANSITIONS: dict[Asking, frozenset[Asking]] = {
    Asking.OFFLINE: frozenset({Asking.HOLDING, Asking.BACKOFF}),
    Asking.HOLDING: frozenset({Asking.WAITING, Asking.PACED, Asking.BLOCKED, Asking.OFFLINE}),
    Asking.WAITING: frozenset({Asking.HOLDING, Asking.BACKOFF, Asking.BLOCKED, Asking.FENCED, Asking.OFFLINE}),
    Asking.BACKOFF: frozenset({Asking.HOLDING, Asking.BLOCKED, Asking.OFFLINE}),
    Asking.BLOCKED: frozenset({Asking.HOLDING, Asking.OFFLINE}),
    Asking.PACED: frozenset({Asking.HOLDING, Asking.BLOCKED, Asking.OFFLINE}),
    Asking.FENCED: frozenset(),
}
STORING_TRANSITIONS: dict[Storing, frozenset[Storing]] = {
    Storing.IDLE: frozenset({Storing.APPENDING}),
    Storing.APPENDING: frozenset({Storing.IDLE, Storing.PAUSED}),
    Storing.PAUSED: frozenset({Storing.APPENDING}),
}


@dataclass(frozen=True, slots=True)
class ReceiverSettings:
    """How patient the receiver is.  Times in ms."""

    start: Literal["oldest", "end"] = "oldest"
    wait_ms: int = 2_000
    """How long a fetch waits at the peer.  Asking twice as rarely saves a millisecond of CPU in four seconds."""
    answer_timeout_ms: int = 3_000
    """Beyond `wait_ms`, and doubled by each failure up to eightfold.  Both together are how long it takes to ask again a peer
    that was killed while our fetch was parked there.  An answer that comes later is used all the same."""
    backoff_ms_min: int = 250
    backoff_ms_max: int = 5_000
    """A request is one small packet: a peer that returns should be found within seconds."""
    spread_ms: int = 250
    """Over which the pulls of a node ask again whose connection has come back: all at once, their pages would come at once too."""
    returning_ms: int = 10_000
    """After that, for so long the peer's own connection is probably on its way back ..."""
    backoff_ms_returning: int = 1_000
    """... and it is asked at least this often."""
    blocked_ms: int = 60_000
    """Between two tries of what a human must mend."""
    pause_ms_min: int = 100
    pause_ms_max: int = 5_000
    show_after_ms: int = 1_000
    """A peer is shown what we have of it, unless it has answered what we asked within this time: no store is stopped, put back to an
    old copy, started and filled again in less."""
    page_bytes_max: int = BYTES_MAX
    empty_ms_min: int = 200
    """A page without facts that comes back sooner than this is not the end of a wait; it must not make us spin."""


# --------------------------------------------------------------------------------------------------------------- events


@dataclass(frozen=True, slots=True)
class ArrivedPage(Generic[Content]):
    """A page as the decision needs it; `content` goes through to the store untouched.

    `first_offset` and `last_offset` are 0 for a page without offsets; `definitions` maps each origin it defines tags of
    to the highest number in it.  `end_offset` is where the peer's log ends, for information.  `lease` is ours at the peer, 0
    where it gives none.  `last_batch` is the last batch of the page, None where it has none.
    """

    epoch: str
    frontier: int
    first_offset: int
    last_offset: int
    more: bool
    end_offset: int = 0
    definitions: Mapping[str, int] = field(default_factory=dict)
    lease: int = 0
    lease_in_force: int | None = None
    """Ours is not yet, and there is nothing else in the page: the lease after which to ask for it."""
    last_batch: LastBatch | None = None
    content: Content = field(kw_only=True)


@dataclass(frozen=True, slots=True)
class LinkUp:
    """The broker connection stands, and our response topic is subscribed."""


@dataclass(frozen=True, slots=True)
class LinkDown:
    """The broker connection is gone, and every open fetch with it."""

    reason: str


@dataclass(frozen=True, slots=True)
class PageArrived(Generic[Content]):
    """A page came in answer to one of our fetches, the newest or an older one."""

    fetch_id: int
    page: ArrivedPage[Content]


@dataclass(frozen=True, slots=True)
class FetchFailed:
    """A fetch came to nothing: refused by the peer, not delivered by the broker, or answered with nonsense.

    `epoch` is the peer's, when the reason is that it has changed.
    """

    fetch_id: int
    code: str
    reason: str
    is_retryable: bool
    epoch: str | None = None


@dataclass(frozen=True, slots=True)
class Appended:
    """The page last handed over is durable."""


@dataclass(frozen=True, slots=True)
class AppendFailed:
    """The page last handed over was not stored, and nothing of it."""

    reason: str
    is_retryable: bool


@dataclass(frozen=True, slots=True)
class Tick:
    """The deadline may have passed."""


Event = LinkUp | LinkDown | PageArrived[Content] | FetchFailed | Appended | AppendFailed | Tick

# -------------------------------------------------------------------------------------------------------------- effects


@dataclass(frozen=True, slots=True)
class Fetch:
    """Send this request."""

    fetch_id: int
    epoch: str | None
    after_offset: int | None
    confirm_offset: int | None
    definitions_known: Mapping[str, int]
    wait_ms: int
    bytes_max: int
    lease: int = 0
    """Ours at the peer; 0 asks for one."""
    lease_after: int | None = None
    """The epoch after which we ask, the one that was in force last as far as we know."""
    must_show: bool = False
    """Whether to show what we have of the peer, so that it learns if its store has been put back to an old copy."""
    last_batch: LastBatch | None = None
    """The last batch of it that is durable here, to be shown."""


@dataclass(frozen=True, slots=True)
class Append(Generic[Content]):
    """Store this page, the definitions that came in pages before it, and the position behind it, in one transaction."""

    page: ArrivedPage[Content]
    definitions_before: tuple[ArrivedPage[Content], ...]


class NoteKind(Enum):
    """Events worth one line in the log each."""

    PEER_LOST = "peer_lost"
    PEER_RETURNED = "peer_returned"
    PEER_REFUSES = "peer_refuses"
    PEER_EPOCH_CHANGED = "peer_epoch_changed"
    STORE_REFUSES = "store_refuses"
    STORE_ACCEPTS = "store_accepts"
    PAGE_REFUSED = "page_refused"
    RECEIVER_FENCED = "receiver_fenced"


@dataclass(frozen=True, slots=True)
class Note:
    """Log this, once."""

    kind: NoteKind
    reason: str


Effect = Fetch | Append[Content] | Note

# ------------------------------------------------------------------------------------------------------- what it keeps


@dataclass(frozen=True, slots=True)
class OpenFetch:
    """A request whose answer is awaited, and until when."""

    fetch_id: int
    after_offset: int | None
    sent_ms: int
    deadline_ms: int
    wait_ms: int


@dataclass(slots=True)
class ReceiverCounters:
    """What happened so far, for metrics."""

    pages: int = 0
    pages_late: int = 0
    pages_dropped: int = 0
    timeouts: int = 0
    restarts: int = 0
    paced_ms: int = 0
    """For how long no request went out, because the peer's bandwidth was used up."""
