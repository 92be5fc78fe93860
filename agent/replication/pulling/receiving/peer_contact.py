"""What a pull knows of the peer beside its log: the request whose answer is awaited and how large the next page may be,
which processes answer, the lease there, whether it answers at all, and when it is asked again. Core."""

from __future__ import annotations

from dataclasses import dataclass, replace

from agent.replication.protocol.errors import UnprovenAnswer
from agent.replication.protocol.pacing import HEARTBEAT_MS, PageSize, backoff_ms
from agent.replication.protocol.token_bucket import Priority, TokenBucket
from agent.replication.pulling.receiving.pull_events import Note, NoteKind, ReceiverSettings

BEHIND_MS, BEHIND_MS_MAX = 250, 30_000
"""How much longer to wait each time while this node is behind, and in all, so that a flood of messages does not hide
that an answer was lost."""
EMPTY_MS_MIN = 200
"""A page without facts that arrives sooner than this did not wait at the peer. Asking again at once would loop."""
FORMER_LIVES_MAX = 8
"""Former answering lives of the peer that are remembered. Two machines under one name need two."""
RETURNING_MS, BACKOFF_MS_RETURNING = 10_000, 1_000
"""For this long after a reconnect, the peer's own connection is probably returning too; the longest back-off during
that time."""
RESTART_MS = 1_000
"""Between two requests that a peer made necessary by refusing the position. Otherwise it would be asked as fast as it
refuses, with a log line each time."""


@dataclass(frozen=True, slots=True)
class OpenFetch:
    """A request whose answer is awaited until `deadline_ms`, at most until `last_ms`. `unproven`: why an answer to it
    was not accepted.

    A deadline does not count while this node is late itself: it begins when the broker has taken the request, and is
    moved while messages are unread. Each heartbeat of the peer moves it too."""

    fetch_id: int
    sent_ms: int
    deadline_ms: int
    last_ms: int
    wait_ms: int
    names_trail: bool = False
    unproven: str = ""
    heartbeat_ms: int | None = None
    waited_ms: int = 0
    """For so long it has waited at the peer at least: its heartbeats are so far apart there, however late they come."""

    @classmethod
    def sent(cls, fetch_id: int, now_ms: int, wait_ms: int, answer_ms: int, *, names_trail: bool) -> OpenFetch:
        """A request that waits at the peer for `wait_ms`; its answer may take `answer_ms` longer, and so may each
        heartbeat."""
        deadline_ms = now_ms + min(wait_ms, HEARTBEAT_MS) + answer_ms
        return cls(fetch_id, now_ms, deadline_ms, now_ms + wait_ms + answer_ms, wait_ms, names_trail)

    def taken(self, now_ms: int) -> OpenFetch:
        """The broker has taken it, after it may have waited for seconds behind others: its time begins now."""
        last_ms = self.last_ms + now_ms - self.sent_ms
        return replace(self, deadline_ms=last_ms - max(0, self.wait_ms - HEARTBEAT_MS), last_ms=last_ms)

    def still_waits(self, now_ms: int, answer_ms: int) -> OpenFetch:
        """The peer says that it waits there: its answer may take until after the next heartbeat."""
        next_ms = now_ms + HEARTBEAT_MS + answer_ms
        # Several that were read late come together: their times here prove nothing.
        is_next = self.heartbeat_ms is not None and now_ms - self.heartbeat_ms >= HEARTBEAT_MS // 2
        return replace(
            self,
            deadline_ms=max(self.deadline_ms, min(next_ms, self.last_ms)),
            heartbeat_ms=now_ms,
            waited_ms=self.waited_ms + is_next * HEARTBEAT_MS,
        )

    def behind(self, now_ms: int) -> OpenFetch:
        """This node is late: it would ask again what is answered already, and be later for it."""
        if now_ms >= self.last_ms + BEHIND_MS_MAX:
            return self
        return replace(self, deadline_ms=max(self.deadline_ms, now_ms + BEHIND_MS))

    def again_ms(self, now_ms: int) -> int:
        """When to ask again after an answer without facts: at once, unless it should have waited at the peer."""
        return max(now_ms, self.sent_ms + EMPTY_MS_MIN) if self.wait_ms else now_ms


class FetchPace:
    """How large the next page may be, which the connection decides, and when it may be requested: the peer's bandwidth
    is limited, or not (None). `is_repeated`: the last page had nothing new, because another pull was first; so the
    next one may come later."""

    def __init__(self, settings: ReceiverSettings, bandwidth: TokenBucket | None) -> None:
        self.size = PageSize(settings.page_bytes_max)
        self.is_repeated = False
        self._repeated_ms = settings.repeated_ms
        self._asked_ms = 0
        self._bandwidth = bandwidth
        self._paced_ms = 0
        self._since_ms: int | None = None  # waits for bandwidth

    def page_bytes(self) -> int:
        """The size to request."""
        return self.size.bytes if self._bandwidth is None else self._bandwidth.page_bytes(self.size.bytes)

    def ready_ms(self, now_ms: int, *, is_live: bool) -> int:
        """When a page may be requested; `is_live`: the pull is at the end of the log."""
        priority = Priority.LIVE if is_live else Priority.BACKLOG
        ready_ms = now_ms if self._bandwidth is None else self._bandwidth.ready_ms(now_ms, priority)
        return max(ready_ms, self._asked_ms + self._repeated_ms) if self.is_repeated and is_live else ready_ms

    def note_asked(self, now_ms: int) -> None:
        """A page was requested."""
        self._asked_ms = now_ms

    def note_stored(self, facts: int) -> None:
        """So many facts of a page were new."""
        self.is_repeated = bool(self._repeated_ms) and not facts

    def note_wait(self, now_ms: int, *, waits: bool) -> None:
        """Whether the pull waits for bandwidth from now on."""
        self._paced_ms = self.paced_ms(now_ms)
        self._since_ms = now_ms if waits else None

    def paced_ms(self, now_ms: int) -> int:
        """How long in all this pull has waited for the peer's bandwidth."""
        return self._paced_ms + (0 if self._since_ms is None else now_ms - self._since_ms)


@dataclass(frozen=True, slots=True)
class AnsweringLives:
    """The processes that answered, the last one and those before it. `twins` names two that answer in turn: a process
    never answers again after the next one has, so two machines answer in the peer's name, or an old memory was put
    back."""

    last: str = ""
    former: tuple[str, ...] = ()
    twins: str = ""
    twins_until_ms: int = 0

    def answered(self, life: str, now_ms: int, twins_ms: int) -> AnsweringLives:
        """A process has answered. Twins are forgotten when only one has answered for `twins_ms`."""
        if life == self.last:
            return replace(self, twins="") if self.twins and now_ms >= self.twins_until_ms else self
        former = (*(former_life for former_life in self.former if former_life != life), self.last)[-FORMER_LIVES_MAX:]
        if life not in self.former:
            return replace(self, last=life, former=former)
        first, second = sorted((life, self.last))
        return AnsweringLives(life, former, f"lives {first} and {second} answer in turn", now_ms + twins_ms)


@dataclass(frozen=True, slots=True)
class HeldLease:
    """The lease at the peer (0036): `epoch` is 0 until it has granted one, which must come `after` the one that was in
    force; `missed` counts how often another instance was faster."""

    epoch: int = 0
    after: int = 0
    missed: int = 0

    def granted(self, epoch: int) -> HeldLease:
        """An answer shows this lease; a late answer shows an older one."""
        return replace(self, epoch=epoch) if epoch > self.epoch else self

    def taken(self, in_force: int) -> HeldLease:
        """Another lease is in force than the request named."""
        return replace(self, after=in_force, missed=self.missed + 1)

    def unknown(self) -> HeldLease:
        """The peer's store is new or restored, or has removed the consumer."""
        return replace(self, epoch=0, after=0)


class PeerContact:
    """`lost_reason` says why the peer sends no facts at present, None while it does. What the peer had at `level_ms`
    is stored; None: that is not known in this life."""

    def __init__(self, settings: ReceiverSettings) -> None:
        self._settings = settings
        self.lost_reason: str | None = None
        self._lost_as = NoteKind.PEER_LOST  # of lost_reason
        self.is_answering = False
        self.level_ms: int | None = None
        self._arrived_ms: int | None = None  # what it had then has arrived
        self.failures = 0
        self._cuts = 0  # requests in a row
        self.ask_at_ms = 0
        self._returning_until_ms: int | None = None  # None before the first connection
        self._restart_at_ms = 0  # no request after another refused position before this time

    def note_level(self, at_ms: int, *, is_stored: bool) -> None:
        """What the peer had then has arrived. `is_stored`: all of it is stored."""
        self._arrived_ms = max(self._arrived_ms or 0, at_ms)
        if is_stored:
            self.note_stored()

    def note_stored(self) -> None:
        """What has arrived is stored."""
        self.level_ms = self._arrived_ms

    def note_dropped(self) -> None:
        """What was not stored has to come again."""
        self._arrived_ms = self.level_ms

    def lose(self, kind: NoteKind, reason: str) -> Note | None:
        """No facts come. Noted once, and again only if a reason for an operator replaces a passing one, or if a peer
        that refused does not answer any more."""
        self.is_answering = False
        before = self.lost_reason or ""
        is_unproven = reason.startswith(UnprovenAnswer.code) and not before.startswith(UnprovenAnswer.code)
        is_other = before != reason if kind is not NoteKind.PEER_LOST else self._lost_as is not NoteKind.PEER_LOST
        if not before or is_unproven or is_other:
            self.lost_reason, self._lost_as = reason, kind
            return Note(kind, reason)
        if kind is NoteKind.PEER_LOST and not before.startswith(UnprovenAnswer.code):
            self.lost_reason = reason  # the status says why it is lost now; the log said it once
        return None

    def answered(self, *, is_lost: bool) -> Note | None:
        """The peer has answered. `is_lost`: it counts as lost all the same."""
        self.failures, self.is_answering = 0, True
        if self.lost_reason is None or is_lost:
            return None
        note, self.lost_reason = Note(NoteKind.PEER_RETURNED, self.lost_reason), None
        return note

    def connected(self, now_ms: int, jitter: float) -> bool:
        """There is a connection. Whether it is the first one, which is used at once. Earlier failures are forgotten:
        the same outage may have cut off the peer. Only requests that were cut off before are not: if the broker refuses
        them so, the pulls of other peers need the connection in the meantime."""
        self.failures = 0
        is_first, self._returning_until_ms = self._returning_until_ms is None, now_ms
        if not is_first:
            self._returning_until_ms += RETURNING_MS
            settings, wait_ms = self._settings, int(self._settings.spread_ms * jitter)
            if self._cuts > 1:
                wait_ms = backoff_ms(settings.backoff_ms_min, settings.blocked_ms, self._cuts, jitter)
            self.ask_at_ms = now_ms + wait_ms
        return is_first

    def taken(self) -> None:
        """The broker has accepted or refused a request."""
        self._cuts = 0

    def cut_off(self) -> None:
        """The connection ended before the broker had accepted or refused a request. Some brokers refuse by closing
        (MQTT 5, 4.13.2)."""
        self._cuts += 1

    def back_off(self, now_ms: int, jitter: float) -> None:
        """A request failed: ask again later each time."""
        settings, most_ms = self._settings, self._settings.backoff_ms_max
        if now_ms < (self._returning_until_ms or 0):
            most_ms = min(most_ms, BACKOFF_MS_RETURNING)
        self.ask_at_ms = now_ms + backoff_ms(settings.backoff_ms_min, most_ms, self.failures, jitter)
        self.failures += 1

    def block(self, now_ms: int) -> None:
        """Ask again rarely."""
        self.ask_at_ms = now_ms + self._settings.blocked_ms

    def restart(self, now_ms: int) -> None:
        """Ask again at once, unless the peer has made that necessary a moment ago."""
        self.ask_at_ms = max(now_ms, self._restart_at_ms)
        self._restart_at_ms = self.ask_at_ms + RESTART_MS

    def answer_ms(self) -> int:
        """How long an answer may take."""
        return self._settings.answer_timeout_ms << min(self.failures, 3)

    def wait_ms(self) -> int:
        """How long a request waits at the peer; one that may be absent should answer at once."""
        return self._settings.wait_ms if self.is_answering else 0
