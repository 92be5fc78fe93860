"""The receiver's states with their transitions, its events, and its effects.

`receiver` decides and `pull_runner` acts, in these terms. All are frozen values, so that a test compares a decision
with the expected one. The diagram in DESIGN.md is drawn from the two tables.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Generic, Literal, TypeVar

from agent.pages import BatchEnd
from agent.replication.protocol.pacing import BYTES_MAX

Content = TypeVar("Content")
"""What goes with a page from where it was received to the store. The receiver's core does not look at it."""


class Asking(Enum):
    """The state towards the peer."""

    OFFLINE = "no connection to the broker"
    WAITING = "a fetch is open"
    HOLDING = "nothing asked: an accepted page must be stored first"
    BACKOFF = "the last fetch failed or came empty too soon, or the connection has just returned; asks in a while"
    BLOCKED = "the peer or our store refused for good; asks again rarely"
    PACED = "the bytes a second that this peer may send are used up; asks in a while"
    FENCED = "another instance of this node has taken our place; asks no more until the process is started again"


class Storing(Enum):
    """The state towards the store."""

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
    """Times in ms, and limits, of a receiver."""

    start: Literal["oldest", "end"] = "oldest"
    wait_ms: int = 2_000
    """How long a fetch waits at the peer.  Asking twice as rarely saves a millisecond of CPU in four seconds."""
    answer_timeout_ms: int = 3_000
    """Beyond `wait_ms`, and doubled by each failure up to eightfold.  Both together are how long it takes to ask again
    a peer that was killed while our fetch was parked there.  An answer that comes later is used all the same."""
    backoff_ms_min: int = 250
    backoff_ms_max: int = 5_000
    """A request is one small packet, so a peer that returns is found within seconds."""
    spread_ms: int = 250
    """The pulls of a node ask again over this time after a reconnect; asking at once, all their pages would come at
    once too."""
    returning_ms: int = 10_000
    """For so long after a reconnect the peer's own connection is probably returning too ..."""
    backoff_ms_returning: int = 1_000
    """... and it is asked at least this often."""
    blocked_ms: int = 60_000
    """Between two tries of what an operator must repair."""
    restart_ms: int = 1_000
    """Between two logs of the peer that are begun: a peer that names another epoch with each answer would otherwise be
    asked as fast as it answers, with a line in the log for each."""
    pause_ms_min: int = 100
    pause_ms_max: int = 5_000
    history_claim_after_ms: int = 1_000
    """A request shows what is held of the peer unless the last answered one was sent within this time: no store is
    stopped, restored from an old copy, started and filled again in less."""
    page_bytes_max: int = BYTES_MAX
    empty_ms_min: int = 200
    """A page without facts that comes sooner than this did not wait; asking again at once would spin."""


# --------------------------------------------------------------------------------------------------------------- events


@dataclass(frozen=True, slots=True)
class ArrivedPage(Generic[Content]):
    """A page as the decision needs it; `content` goes through to the store untouched.

    `first_offset` and `last_offset` are 0 for a page without offsets; `definitions` maps each origin it defines tags of
    to the highest number in it, and `definition_bytes` is the memory that they take.  `end_offset` is where the peer's log ends, for information.  `lease` is ours at the
    peer, 0 where it gives none.  `timeline` is the peer's, None where it names none.
    """

    epoch: str
    frontier: int
    first_offset: int
    last_offset: int
    more: bool
    end_offset: int = 0
    definitions: Mapping[str, int] = field(default_factory=dict)
    definition_bytes: int = 0
    lease: int = 0
    lease_in_force: int | None = None
    """The requester holds no lease yet, and the page has nothing else: the lease in force, after which to ask."""
    timeline: str | None = None
    content: Content = field(kw_only=True)


@dataclass(frozen=True, slots=True)
class LinkUp:
    """The broker is connected, and our response topic is subscribed."""


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
    """A fetch failed: refused by the peer, not delivered by the broker, or answered with something unreadable.

    `epoch` is the peer's, which is a new one where the reason is that it has changed; `timeline` the peer's where the
    reason is that it is another copy of the log that was read.
    """

    fetch_id: int
    code: str
    reason: str
    is_retryable: bool
    epoch: str | None = None
    timeline: str | None = None


@dataclass(frozen=True, slots=True)
class Appended:
    """The page handed to the store is durable. `definitions_held`: facts of it were declined, and tag definitions that
    only these needed are not stored; so many the store has of each origin. None where it has stored all."""

    definitions_held: Mapping[str, int] | None = None


@dataclass(frozen=True, slots=True)
class AppendFailed:
    """The page handed to the store was not stored, and nothing of it. `contradicted`: the end of a batch held here that
    the peer, in its present epoch, contradicts."""

    reason: str
    is_retryable: bool
    contradicted: BatchEnd | None = None


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
    """The lease held at the peer; 0 asks for one."""
    lease_after: int | None = None
    """With lease 0: the lease after which to get one, the last that is known to have been in force."""
    must_show: bool = False
    """Whether to show what is held of the peer, so that it notices if its store was restored from an old copy."""
    timeline: str | None = None
    """The peer's, of the accepted pages."""
    contradicted: BatchEnd | None = None
    """The batch of the peer's own to be shown; None: the last that is held."""


@dataclass(frozen=True, slots=True)
class Append(Generic[Content]):
    """Store this page, the definitions that came in pages before it, and the position behind it, in one transaction."""

    page: ArrivedPage[Content]
    definitions_before: tuple[ArrivedPage[Content], ...]


class NoteKind(Enum):
    """Each is one line in the log, under this name."""

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
    sent_ms: int
    deadline_ms: int
    wait_ms: int


@dataclass(slots=True)
class ReceiverCounters:
    """Counted since the receiver began."""

    pages: int = 0
    pages_late: int = 0
    pages_dropped: int = 0
    timeouts: int = 0
    unproven: int = 0
    restarts: int = 0
    paced_ms: int = 0
    """For how long no request was sent because the peer's bandwidth was used up."""
