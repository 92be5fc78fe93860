"""One life of one pull: reads each answer, lets the receiver decide, makes its requests and stores its pages.

The runner has no clock, thread or connection of its own: `puller` gives it those of asyncio, and the simulation its
own, so that both run the same code between the peer's answer and the store. A page goes through it once. `answered`
reads it; `handle` passes it to the receiver, and begins its check if that accepts it; `store_page` stores it when its
turn comes, and returns the outcome, which is the next event.

A page read ahead is checked while the previous one is stored. Not more than three are checked, however many arrive. An
error in a peer's answer is final: the page is requested again rarely, and the reason is logged once.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial

from agent.batch import Kind
from agent.errors import StoreError
from agent.pages import ReceivedPage
from agent.positions import Position
from agent.replication.protocol.codec import ArrivedAnswer
from agent.replication.protocol.errors import ReplicationError, TransportError
from agent.replication.protocol.messages import Confirm, FetchFacts, HeldSpan, LogPosition
from agent.replication.protocol.ports import ReceivingStore
from agent.replication.protocol.token_bucket import TokenBucket
from agent.replication.pulling.artifact_pull import ArtifactPull
from agent.replication.pulling.catch_up import CatchUpTracker
from agent.replication.pulling.definition_pull import DefinitionPull
from agent.replication.pulling.page_check import PageContent, read_page
from agent.replication.pulling.page_judge import PageJudge
from agent.replication.pulling.receiving.pull_events import (
    Append,
    AppendFailed,
    Check,
    Event,
    Fetch,
    FetchFailed,
    Note,
    NoteKind,
    PageAppended,
    PageArrived,
    ReceiverSettings,
)
from agent.replication.pulling.receiving.receiver import Receiver
from agent.replication.pulling.shared_zones import SharedZones
from agent.replication.pulling.throttled_requester import ThrottledRequester

_log = logging.getLogger(__name__)
_EXPECTED = (ReplicationError, StoreError)
_INFORMATIVE = {NoteKind.PEER_RETURNED, NoteKind.PAGE_STORED}
_FOR_OPERATOR = {NoteKind.PEER_REFUSES, NoteKind.PAGE_REFUSED, NoteKind.RECEIVER_FENCED}
"""The pull stops until an operator acts, so an incident is recorded."""

StartCheck = Callable[[Callable[[], ReceivedPage], int], Awaitable[ReceivedPage]]
"""Begins the check of so many bytes. The result may be awaited several times or never."""


@dataclass(frozen=True, slots=True)
class PullSettings:
    """What to pull from which peer. `origins` are the zones whose facts this peer may send: its own and those that it
    relays."""

    peer_node: str
    stream: str
    consumer_name: str
    origins: frozenset[str]
    limit: int = 262_144
    """Facts of a page: sixteen of the largest batches, so that a page is bounded by its bytes."""
    receiver: ReceiverSettings = field(default_factory=ReceiverSettings)
    shared_zones: tuple[str, ...] = ()
    """Zones of which another pull, or this node, brings the same facts: each request names what is held of them."""


class PullRunner:
    """`core` decides; `peer_end_offset` is the last known end of the peer's log."""

    def __init__(
        self,
        store: ReceivingStore,
        settings: PullSettings,
        requester: ThrottledRequester,
        start_check: StartCheck,
        bandwidth: TokenBucket | None = None,
        make_receiver: type[Receiver] = Receiver,
        judge: PageJudge | None = None,
    ) -> None:
        self._judge = judge or PageJudge(store)
        self._store, self.settings, self._start_check = store, settings, start_check
        self.artifacts = ArtifactPull(requester, store.artifacts)
        self._definitions = DefinitionPull(requester, store.inbound)
        self._shared = SharedZones(store.reader, settings.stream, settings.shared_zones)
        at = settings.peer_node, settings.stream
        trail = store.inbound.trail(*at)
        self.core = make_receiver(settings.receiver, trail, bandwidth)
        self.catch_up = CatchUpTracker()
        self.peer_end_offset = 0

    def answered(self, fetch_id: int, arrived: ArrivedAnswer) -> PageArrived | FetchFailed:
        """What an answer means for the receiver."""
        found = read_page(fetch_id, arrived, self.settings.peer_node, self.settings.stream)
        if isinstance(found, FetchFailed):
            return found
        page, content = found
        # Before the receiver knows the page: its position must not pass what is not proven to be held here (0066).
        if why := self._shared.find_unproven(content.held_runs, more=page.more):
            return FetchFailed(fetch_id, "held_differs", f"held_differs: {why}", is_retryable=True, life=page.life)
        return PageArrived(fetch_id, page, content)

    def handle(self, event: Event, now_ms: int, chance: float) -> list[Fetch | Append]:
        """What to send and to store now that an event has happened; `chance` is 0 to 1."""
        if isinstance(event, PageArrived):
            self.peer_end_offset = event.page.end_offset
        effects = self.core.handle(event, now_ms, chance)
        if isinstance(event, PageAppended | PageArrived):  # before the effects, which store a page as backlog or not
            noted = self.catch_up.update(now_ms, self.core.place.offset, self.peer_end_offset)
            if noted is not None:
                progress = noted[1]
                fields = {**self._about(), "percent": round(progress.percent, 1), **asdict(progress)}
                _log.info(noted[0].value, extra=fields)
        for effect in effects:
            match effect:
                case Note():
                    self._record_note(effect)
                case Check(PageContent() as content):
                    content.judged = self._begin_check(content)
        return [effect for effect in effects if isinstance(effect, Fetch | Append)]

    def request(self, fetch: Fetch) -> tuple[FetchFacts, int]:
        """The request of a fetch, and after how many seconds the broker drops it."""
        expiry_s = (fetch.wait_ms + self.settings.receiver.answer_timeout_ms) // 1000 + 1
        return fetch_request(fetch, self.settings, self._judge.signers_known(), self._shared.held()), expiry_s

    async def store_page(self, append: Append) -> PageAppended | AppendFailed:
        """Await the check, fetch artifacts and tag definitions, store. The core offers the page again if the store
        refuses it for now."""
        content = append.content
        assert isinstance(content, PageContent)
        assert content.judged is not None
        try:
            judged = await content.judged
        except _EXPECTED as error:  # final for these bytes: the page is requested again
            return AppendFailed(f"{type(error).__name__}: {error}", is_retryable=False)
        try:
            is_whole = True
            if any(batch.header.kind is Kind.MESSAGES for batch in judged.batches):
                # Artifacts are stored before the facts that refer to them (0039), except beyond the peer's quota.
                is_whole = await self.artifacts.fetch(judged.batches)
            is_backlog = self.catch_up.takes_backlog
            page = replace(judged, read=append.page.lives, holes=content.holes, is_backlog=is_backlog)
            result = await self._definitions.put_page(page)
            if not is_whole:  # after an error here the page is offered again, and its facts are duplicates
                await self.artifacts.fetch(judged.batches)
        except _EXPECTED as error:
            is_retryable = bool(getattr(error, "retryable", False))
            return AppendFailed(f"{type(error).__name__}: {error}", is_retryable=is_retryable)
        for refused in result.refused:
            where = {"first_sequence": refused.first_sequence, "last_sequence": refused.last_sequence}
            _log.warning(
                "facts_refused", extra={**self._about(), "origin": refused.zone, "life": refused.life.hex(), **where}
            )
        return PageAppended(result.stored_facts, result.duplicate_facts)

    # --------------------------------------------------------------------------------------------------------- internal

    def _begin_check(self, content: PageContent) -> Awaitable[ReceivedPage]:
        settings = self.settings
        check = partial(self._judge.check, settings.peer_node, settings.stream, settings.origins, content)
        # Certificates count too: a page of few facts may contain hundreds to parse.
        return self._start_check(check, sum(map(len, [*content.sealed, *content.signers])))

    def _record_note(self, note: Note) -> None:
        level = logging.INFO if note.kind in _INFORMATIVE else logging.WARNING
        _log.log(level, note.kind.value, extra={**self._about(), "reason": note.reason})
        if note.kind in _FOR_OPERATOR:
            with contextlib.suppress(*_EXPECTED):  # the store is full: log and status still report it
                settings = self.settings
                self._store.inbound.note_incident("pull_stands", settings.stream, settings.peer_node, note.reason)

    def _about(self) -> dict[str, object]:
        return {"peer": self.settings.peer_node, "stream": self.settings.stream}


def not_sent(fetch_id: int, error: TransportError) -> FetchFailed:
    """A request was not sent, or the broker did not take it."""
    return FetchFailed(fetch_id, "transport", str(error), error.retryable)


def fetch_request(
    effect: Fetch, settings: PullSettings, signers_known: Sequence[str] = (), held: Sequence[HeldSpan] = ()
) -> FetchFacts:
    """The request of a fetch."""
    return FetchFacts(
        consumer_name=settings.consumer_name,
        stream=settings.stream,
        start=settings.receiver.start,
        limit=settings.limit,
        bytes_max=effect.bytes_max,
        wait_ms=effect.wait_ms,
        after=None if effect.after is None else LogPosition.of(effect.after),
        trail=None if effect.trail is None else [LogPosition.of(point) for point in effect.trail],
        confirm=None if effect.confirm is None else _confirm(effect.confirm),
        lease=effect.lease,
        lease_after=effect.lease_after,
        signers_known=list(signers_known),
        held=list(held),
    )


def _confirm(read: Position) -> Confirm:
    return Confirm(last_offset=read.offset, life=read.life.hex(), digest=read.digest.hex())
