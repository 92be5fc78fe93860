"""Receivers that are broken on purpose, each in one way. The simulations must catch them."""

from __future__ import annotations

from dataclasses import replace

from agent.positions import last_of
from agent.replication.pulling.receiving.pull_events import (
    AppendFailed,
    ArrivedPage,
    Effect,
    Event,
    Fetch,
    LinkDown,
    LinkUp,
    PageAppended,
    PageArrived,
)
from agent.replication.pulling.receiving.receiver import Receiver


class ConfirmsTooEarly(Receiver):
    """Confirms what it has accepted, not what is durable."""

    def handle(self, event: Event, now_ms: int, jitter: float) -> list[Effect]:
        effects = super().handle(event, now_ms, jitter)
        accepted = last_of(self.place.accepted)
        return [
            replace(effect, confirm=accepted) if isinstance(effect, Fetch) and accepted.offset else effect
            for effect in effects
        ]


class AcceptsAnyPage(Receiver):
    """Accepts any page, at any position."""

    def _fits(self, page: object, fetch: object) -> bool:  # noqa: ARG002
        return self.pages.has_room


class CountsFacts(AcceptsAnyPage):
    """Takes any page for the next one."""

    def _accept(self, page: ArrivedPage, content: object) -> None:
        after = last_of(self.place.accepted)
        by = after.offset + 1 - page.first_offset
        lives = tuple(life._replace(offset=life.offset + by) for life in page.lives)
        super()._accept(
            replace(page, first_offset=after.offset + 1, last_offset=page.last_offset + by, after=after, lives=lives),
            content,
        )


class AcceptsNewestOnly(Receiver):
    """Discards every answer except the one to its newest request."""

    def handle(self, event: Event, now_ms: int, jitter: float) -> list[Effect]:
        if isinstance(event, PageArrived) and (self._open is None or event.fetch_id != self._open.fetch_id):
            return []
        return super().handle(event, now_ms, jitter)


class SkipsRefusedPage(Receiver):
    """Continues after a page that the store refused."""

    def handle(self, event: Event, now_ms: int, jitter: float) -> list[Effect]:
        return super().handle(PageAppended() if isinstance(event, AppendFailed) else event, now_ms, jitter)


class NamesNoTrail(Receiver):
    """Names only its position, also where the peer does not know it."""

    def handle(self, event: Event, now_ms: int, jitter: float) -> list[Effect]:
        effects = super().handle(event, now_ms, jitter)
        return [
            replace(effect, after=last_of(effect.trail), trail=None)
            if isinstance(effect, Fetch) and effect.trail
            else effect
            for effect in effects
        ]


class NeverRetries(Receiver):
    """Waits for a lost answer forever."""

    @property
    def deadline_ms(self) -> int | None:
        return None


class StaysOffline(Receiver):
    """Ignores that a lost connection is back."""

    _was_lost = False

    def handle(self, event: Event, now_ms: int, jitter: float) -> list[Effect]:
        self._was_lost = self._was_lost or isinstance(event, LinkDown)
        if isinstance(event, LinkUp) and self._was_lost:
            return []
        return super().handle(event, now_ms, jitter)
