"""Receivers broken on purpose, each in one way: what a simulation must catch to be believed."""

from __future__ import annotations

from dataclasses import replace

from agent.replication.protocol.pull_events import (
    Appended,
    AppendFailed,
    Effect,
    Event,
    Fetch,
    LinkDown,
    LinkUp,
    PageArrived,
)
from agent.replication.pulling.receiver import PAGES_AHEAD_MAX, Receiver


class ConfirmsTooEarly(Receiver):
    """Confirms what it has accepted, not what is durable."""

    def handle(self, event: Event, now_ms: int, jitter: float) -> list[Effect]:
        effects = super().handle(event, now_ms, jitter)
        accepted = self._accepted_offset or 0
        return [
            replace(effect, confirm_offset=accepted) if isinstance(effect, Fetch) and accepted else effect
            for effect in effects
        ]


class TakesAnyPage(Receiver):
    """Takes whatever arrives, wherever it starts."""

    def _fits(self, page: object, *, is_newest: bool) -> bool:  # noqa: ARG002
        return len(self._read_ahead) < PAGES_AHEAD_MAX


class TakesNewestOnly(Receiver):
    """Throws away every answer but the one to its newest request."""

    def handle(self, event: Event, now_ms: int, jitter: float) -> list[Effect]:
        if isinstance(event, PageArrived) and (self._open is None or event.fetch_id != self._open.fetch_id):
            return []
        return super().handle(event, now_ms, jitter)


class SkipsRefusedPage(Receiver):
    """Goes on behind a page that the store refused."""

    def handle(self, event: Event, now_ms: int, jitter: float) -> list[Effect]:
        return super().handle(Appended() if isinstance(event, AppendFailed) else event, now_ms, jitter)


class ForgetsEpoch(Receiver):
    """Does not say which life of the peer's store its offsets belong to."""

    def handle(self, event: Event, now_ms: int, jitter: float) -> list[Effect]:
        effects = super().handle(event, now_ms, jitter)
        return [replace(effect, epoch=None) if isinstance(effect, Fetch) else effect for effect in effects]


class NeverAsksAgain(Receiver):
    """Waits for ever for an answer that was lost."""

    @property
    def deadline_ms(self) -> int | None:
        return None


class BeginsAnewAtEachEpoch(Receiver):
    """Does not remember where it was in an epoch that it has left."""

    def handle(self, event: Event, now_ms: int, jitter: float) -> list[Effect]:
        self._left.clear()
        return super().handle(event, now_ms, jitter)


class StaysOffline(Receiver):
    """Does not notice that a connection that was lost is back."""

    _was_lost = False

    def handle(self, event: Event, now_ms: int, jitter: float) -> list[Effect]:
        self._was_lost = self._was_lost or isinstance(event, LinkDown)
        if isinstance(event, LinkUp) and self._was_lost:
            return []
        return super().handle(event, now_ms, jitter)
