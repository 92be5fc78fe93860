"""The receiver's states and their transitions, its events and its effects. A core: values only.

`receiver` decides and `pull_runner` acts in these terms. All are frozen values, so a test can compare a decision with
the expected one. The diagram in DESIGN.md is drawn from the two tables.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Literal

from agent.positions import NOTHING_READ, Position, Trail
from agent.replication.protocol.pacing import BYTES_MAX


class Asking(Enum):
    """The state towards the peer."""

    OFFLINE = "no connection to the broker"
    WAITING = "a fetch is open"
    HOLDING = "no fetch is open: an accepted page must be stored first"
    BACKOFF = "the last fetch failed, its answer was empty too soon, or the connection has just returned; asks later"
    BLOCKED = "the peer or our store refused for good; asks again rarely"
    PACED = "the bytes a second that this peer may send are used up, or another pull brings the same; asks later"
    FENCED = "another instance of this node holds the lease; asks no more until the process is restarted"


class Storing(Enum):
    """The state towards the store."""

    IDLE = "no page to store"
    APPENDING = "a page is being stored"
    PAUSED = "the store is full or busy; the same page is offered again later"


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


SPREAD_MS, SPREAD_OF_PULL_MS = 250, 3
"""So that pages do not all come at once; the second for each pull of a node, so that 2,000 of them are asked within six
seconds, in which a busy core can answer, and their waits do not all end at once from then on."""


@dataclass(frozen=True, slots=True)
class ReceiverSettings:
    """Times in ms, and limits, of a receiver."""

    start: Literal["oldest", "end"] = "oldest"
    wait_ms: int = 30_000
    """How long a fetch waits at the peer. A consumer whose node is gone counts as in sync for as long."""
    answer_timeout_ms: int = 3_000
    """Time for the answer beyond `wait_ms`, and for a heartbeat beyond HEARTBEAT_MS; each failure doubles it, up to
    eightfold. A peer that was killed while our fetch waited there is asked again 8 s after its last heartbeat, which is
    also how late facts are whose answer was lost. A later answer is used all the same."""
    backoff_ms_min: int = 250
    backoff_ms_max: int = 5_000
    """Requests are small packets, so the back-off stays short and a peer that returns is found within seconds."""
    spread_ms: int = SPREAD_MS
    """After a reconnect the pulls of a node ask again spread over this time."""
    blocked_ms: int = 60_000
    """Between two attempts at something that an operator must repair."""
    twins_ms: int = 600_000
    """After two machines have answered in turn: until only one has answered for this long, requests are rare."""
    pause_ms_min: int = 100
    pause_ms_max: int = 5_000
    page_bytes_max: int = BYTES_MAX
    repeated_ms: int = 0
    """Between two requests while another pull brings the same facts, so that each request can name what is held by
    then; a request that waits at the peer could not. 0: no other pull does."""


# --------------------------------------------------------------------------------------------------------------- events


@dataclass(frozen=True, slots=True)
class ArrivedPage:
    """A page as the receiver needs it.

    `first_offset` and `last_offset` are 0 for a page without offsets. `end_offset` is the end of the peer's log, for
    information. `lease` is this node's lease at the peer, 0 if the page grants none. The page begins `after` a
    position, `lives` has its last position in each life of the log, `life` is that of the answering process.
    """

    frontier: int
    first_offset: int
    last_offset: int
    more: bool
    end_offset: int = 0
    lease: int = 0
    lease_in_force: int | None = None
    """The lease in force, which the next request must name. The requester holds no lease yet, and the page is empty."""
    life: str = ""
    after: Position = NOTHING_READ
    lives: tuple[Position, ...] = ()


@dataclass(frozen=True, slots=True)
class LinkUp:
    """The broker is connected, and the response topic is subscribed."""


@dataclass(frozen=True, slots=True)
class LinkDown:
    """The broker connection is gone, and every open fetch with it."""

    reason: str


@dataclass(frozen=True, slots=True)
class PageArrived:
    """A page arrived in answer to one of the fetches, the newest or an older one. The receiver passes `content` on to
    the store unread."""

    fetch_id: int
    page: ArrivedPage
    content: object = None


@dataclass(frozen=True, slots=True)
class FetchFailed:
    """A fetch failed: refused by the peer, not delivered by the broker, or answered with something unreadable.

    `life` is that of the answering process, if an answer named it.
    """

    fetch_id: int
    code: str
    reason: str
    is_retryable: bool
    life: str = ""


@dataclass(frozen=True, slots=True)
class PageAppended:
    """The page is durable; some of its facts may have been here already."""

    facts_stored: int = 0
    facts_duplicate: int = 0


@dataclass(frozen=True, slots=True)
class AppendFailed:
    """The page was not stored, nor any part of it."""

    reason: str
    is_retryable: bool


@dataclass(frozen=True, slots=True)
class Tick:
    """The deadline may have passed. `is_behind`: the request has not left this node, or messages have arrived that were
    not read yet."""

    is_behind: bool = False


Event = LinkUp | LinkDown | PageArrived | FetchFailed | PageAppended | AppendFailed | Tick

# -------------------------------------------------------------------------------------------------------------- effects


@dataclass(frozen=True, slots=True)
class Fetch:
    """Send this request."""

    fetch_id: int
    after: Position | None
    """Where the page must begin."""
    trail: Trail | None
    """Instead: how far the newest lives of the peer's log were read; the page begins where it is valid furthest there.
    With neither the page begins where the consumer was registered."""
    confirm: Position | None
    wait_ms: int
    bytes_max: int
    lease: int = 0
    """The lease held at the peer; 0 requests one."""
    lease_after: int | None = None
    """With lease 0: the last lease that is known to have been in force; the new one must follow it."""


@dataclass(frozen=True, slots=True)
class Check:
    """Begin to check the content of a page that is accepted and will be stored."""

    content: object


@dataclass(frozen=True, slots=True)
class Append:
    """Store this page and the position after it, in one transaction."""

    page: ArrivedPage
    content: object = None


class NoteKind(Enum):
    """The name of the log event."""

    PEER_LOST = "peer_lost"
    PEER_RETURNED = "peer_returned"
    PEER_REFUSES = "peer_refuses"
    PEER_RESTORED = "peer_restored"
    PAGE_WAITS = "page_waits"
    PAGE_STORED = "page_stored"
    PAGE_REFUSED = "page_refused"
    RECEIVER_FENCED = "receiver_fenced"


@dataclass(frozen=True, slots=True)
class Note:
    """Log this, once."""

    kind: NoteKind
    reason: str


Effect = Fetch | Check | Append | Note

# ---------------------------------------------------------------------------------------------------------------- state


@dataclass(slots=True)
class ReceiverCounters:
    """Counted since the receiver began."""

    pages: int = 0
    pages_late: int = 0
    pages_dropped: int = 0
    timeouts: int = 0
    unproven: int = 0
    restarts: int = 0
    facts_stored: int = 0
    facts_duplicate: int = 0
