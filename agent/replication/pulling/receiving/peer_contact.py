"""What a pull knows of the peer beside its log: which processes answer, the lease there, whether it answers at all, and
when it is asked again. Core."""

from __future__ import annotations

from dataclasses import dataclass, replace

from agent.replication.protocol.errors import UnprovenAnswer
from agent.replication.protocol.pacing import backoff_ms
from agent.replication.pulling.receiving.pull_events import Note, NoteKind, ReceiverSettings

FORMER_LIVES_MAX = 8
"""Former answering lives of the peer that are remembered. Two machines under one name need two."""
RETURNING_MS, BACKOFF_MS_RETURNING = 10_000, 1_000
"""For this long after a reconnect, the peer's own connection is probably returning too; the longest back-off during
that time."""
RESTART_MS = 1_000
"""Between two requests that a peer made necessary by refusing the position. Otherwise it would be asked as fast as it
refuses, with a log line each time."""


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
        former = (*(one for one in self.former if one != life), self.last)[-FORMER_LIVES_MAX:]
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
    """`lost_reason` says why the peer sends no facts at present, None while it does."""

    def __init__(self, settings: ReceiverSettings) -> None:
        self._settings = settings
        self.lost_reason: str | None = None
        self.is_answering = False
        self.failures = 0
        self.ask_at_ms = 0
        self._returning_until_ms: int | None = None  # None before the first connection
        self._restart_at_ms = 0  # no request after another refused position before this time

    def lose(self, kind: NoteKind, reason: str) -> Note | None:
        """No facts come. Noted once, and again only if a reason for an operator replaces a passing one."""
        self.is_answering = False
        before = self.lost_reason or ""
        is_unproven = reason.startswith(UnprovenAnswer.code) and not before.startswith(UnprovenAnswer.code)
        if not before or is_unproven or (kind is not NoteKind.PEER_LOST and before != reason):
            self.lost_reason = reason
            return Note(kind, reason)
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
        the same outage may have cut off the peer."""
        self.failures = 0
        is_first, self._returning_until_ms = self._returning_until_ms is None, now_ms
        if not is_first:
            self._returning_until_ms += RETURNING_MS
            self.ask_at_ms = now_ms + int(self._settings.spread_ms * jitter)
        return is_first

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
