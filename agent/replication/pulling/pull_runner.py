"""Carries out what the receiver decides for one pull: effects become requests and stored pages, and their outcomes
become events.

The runner has no clock, thread or connection of its own. `PullIO` provides them: asyncio's in the product (`puller`),
simulated ones in tests, so that both run the same code between the receiver and the store.

A page is checked in two steps (`page_check`): its header when it arrives, then its batches, while the previous page is
being stored. An error in a peer's answer is final: the page is requested again rarely, and the reason is logged once.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, Protocol

from agent.batch import Batch, Kind
from agent.pages import LackingDefinitions, PutResult
from agent.positions import Position
from agent.replication.protocol.arrived_answer import ArrivedAnswer
from agent.replication.protocol.errors import (
    ERRORS,
    MalformedMessage,
    ReplicationError,
    TransportError,
    UnprovenAnswer,
    advice,
)
from agent.replication.protocol.messages import (
    Confirm,
    ErrorAnswer,
    FetchFacts,
    LogPosition,
)
from agent.replication.protocol.ports import ReceivingStore
from agent.replication.protocol.token_bucket import TokenBucket
from agent.replication.pulling.catch_up import CatchUp, CatchUpEvent, CatchUpTracker
from agent.replication.pulling.definition_pull import store_with_definitions
from agent.replication.pulling.page_check import PageContent, PageRefused, check_batches, check_page
from agent.replication.pulling.page_judge import JudgedPage, PageJudge
from agent.replication.pulling.pull_events import (
    Append,
    Appended,
    AppendFailed,
    Event,
    Fetch,
    FetchFailed,
    Note,
    PageArrived,
    ReceiverSettings,
)
from agent.replication.pulling.pull_spans import PullSpans
from agent.replication.pulling.receiver import Receiver
from agent.telemetry import Telemetry


@dataclass(frozen=True, slots=True)
class PullSettings:
    """What to pull from which peer. `origins` are the zones whose facts this peer may send: its own and those that it
    relays."""

    peer_zone: str
    stream: str
    consumer_name: str
    origins: frozenset[str]
    limit: int = 262_144
    """Facts of a page: sixteen of the largest batches, so that a page is bounded by its bytes."""
    receiver: ReceiverSettings = field(default_factory=ReceiverSettings)


@dataclass(frozen=True, slots=True)
class CheckedContent:
    """The content of a page, and the pending result of its check, which raises PageRefused or an error of the
    store."""

    content: PageContent
    judged: Awaitable[JudgedPage]


PullEvent = Event[CheckedContent]


class PullIO(Protocol):
    """The clock, threads and connection of a pull. All calls and callbacks are made in one thread."""

    def send(self, fetch_id: int, request: FetchFacts, expiry_s: int) -> None:
        """Send a request. Its answer is passed to `PullRunner.answered`, a failure to `PullRunner.send_failed`."""
        ...

    def check(self, check: Callable[[], JudgedPage], size: int) -> Awaitable[JudgedPage]:
        """Start the check of `size` bytes of batches and proofs. The result may be awaited several times or never."""
        ...

    def begin(self, storing: Coroutine[Any, Any, None]) -> None:
        """Run a coroutine to its end. An exception from it is a bug and ends the pull."""
        ...

    def durable(self, future: Future[PutResult]) -> Awaitable[PutResult]:
        """Await a future of the store."""
        ...

    def fetch_artifacts(self, batches: list[Batch]) -> Awaitable[bool]:
        """Fetch the artifacts to which facts refer. False if some can only be fetched once the facts are stored. Raises
        TransportError, or a retryable error of the store."""
        ...

    def fetch_definitions(self, lacking: Sequence[LackingDefinitions]) -> Awaitable[None]:
        """Fetch tag definitions and store them. Raises errors of replication or of the store."""
        ...

    def happened(self, event: PullEvent) -> None:
        """Queue an event: `PullRunner.handle` is called with it after the present call, in order."""
        ...

    def note(self, note: Note) -> None:
        """Log a note."""
        ...

    def stored(self, result: PutResult) -> None:
        """A page is durable."""
        ...

    def caught_up(self, event: CatchUpEvent, progress: CatchUp) -> None:
        """Log how the pull catches up."""
        ...


class PullRunner:
    """One life of one pull. `core` decides; `peer_end_offset` is the last known end of the peer's log."""

    def __init__(
        self,
        io: PullIO,
        store: ReceivingStore,
        settings: PullSettings,
        store_errors: tuple[type[Exception], ...],
        bandwidth: TokenBucket | None = None,
        telemetry: Telemetry | None = None,
        make_receiver: type[Receiver[CheckedContent]] = Receiver,
        judge: PageJudge | None = None,
    ) -> None:
        self._judge = judge or PageJudge(store)
        self._io, self._store, self._settings = io, store, settings
        self._expected: tuple[type[Exception], ...] = (ReplicationError, *store_errors)
        at = settings.peer_zone, settings.stream
        trail = store.inbound.trail(*at)
        self.core = make_receiver(settings.receiver, trail, bandwidth)
        self.spans = PullSpans(telemetry or Telemetry(), *at, is_new=not trail)
        self.catch_up = CatchUpTracker()
        self.peer_end_offset = 0

    def handle(self, event: PullEvent, now_ms: int, chance: float) -> None:
        """Pass an event to the receiver and carry out its effects; `chance` is 0 to 1."""
        effects = self.core.handle(event, now_ms, chance)
        self.spans.after(event, self.core, self.peer_end_offset)
        if isinstance(event, Appended | PageArrived):  # before the effects, which store a page as backlog or not
            noted = self.catch_up.update(now_ms, self.core.stored_offset, self.peer_end_offset)
            if noted is not None:
                self._io.caught_up(*noted)
        for effect in effects:
            self.spans.carried_out(effect)
            match effect:
                case Fetch():
                    settings = self._settings.receiver
                    request = fetch_request(effect, self._settings, self._judge.signers_known())
                    expiry_s = (effect.wait_ms + settings.answer_timeout_ms) // 1000 + 1
                    self._io.send(effect.fetch_id, request, expiry_s)
                case Append():
                    self._io.begin(self._store_page(effect))
                case Note():
                    self._io.note(effect)

    def send_failed(self, fetch_id: int, error: TransportError) -> None:
        """A request was not sent, or the broker did not take it."""
        self._io.happened(FetchFailed(fetch_id, "transport", str(error), error.retryable))

    def answered(self, fetch_id: int, arrived: ArrivedAnswer) -> bool:
        """An answer has arrived. Returns whether it is a page that this peer may send."""
        event = self._read_answer(fetch_id, arrived)
        if isinstance(event, PageArrived):
            self.peer_end_offset = event.page.end_offset
        self._io.happened(event)
        return isinstance(event, PageArrived)

    # --------------------------------------------------------------------------------------------------------- internal

    def _read_answer(self, fetch_id: int, arrived: ArrivedAnswer) -> PageArrived[CheckedContent] | FetchFailed:
        settings = self._settings
        try:
            answer, sealed = arrived.open()
            if isinstance(answer, ErrorAnswer):
                error = answer.error
                reason = f"{error.code}: {advice(error.message, error.hint)}"
                return FetchFailed(fetch_id, error.code, reason, error.retryable, answer.life)
            page = check_page(answer, sealed, settings.peer_zone, settings.stream, self._start_check)
        except UnprovenAnswer as error:
            return FetchFailed(fetch_id, error.code, str(error), error.retryable)
        except MalformedMessage as error:
            return _unreadable(fetch_id, error)
        except PageRefused as error:
            return FetchFailed(fetch_id, "page_refused", str(error), is_retryable=False)
        return PageArrived(fetch_id, page)

    def _start_check(self, content: PageContent) -> CheckedContent:
        settings = self._settings

        def check() -> JudgedPage:
            offered = check_batches(content, settings.stream, settings.origins)
            return self._judge.judge(settings.peer_zone, settings.stream, offered, content.signers)

        # Certificates count too: a page of few facts may contain hundreds to parse.
        size = sum(map(len, [*content.sealed, *content.signers]))
        return CheckedContent(content, self._io.check(check, size))

    async def _store_page(self, effect: Append[CheckedContent]) -> None:
        """Await the check, fetch artifacts and tag definitions, store; then report the outcome. The core offers the
        page again if the store refuses it for now."""
        try:
            judged = await effect.page.content.judged
        except self._expected as error:  # final for these bytes: the page is requested again
            self._io.happened(AppendFailed(f"{type(error).__name__}: {error}", is_retryable=False))
            return
        try:
            is_whole = True
            if any(batch.header.kind is Kind.MESSAGES for batch in judged.batches):
                # Artifacts are stored before the facts that refer to them (0039), except beyond the peer's quota.
                is_whole = await self._io.fetch_artifacts(judged.batches)
            is_backlog = self.catch_up.takes_backlog

            def put() -> Awaitable[PutResult]:
                return self._io.durable(put_page(self._store, self._settings, effect, judged, is_backlog=is_backlog))

            result = await store_with_definitions(put, self._io.fetch_definitions, self._expected)
            if not is_whole:  # after an error here the page is offered again, and its facts are duplicates
                await self._io.fetch_artifacts(judged.batches)
        except self._expected as error:
            is_retryable = bool(getattr(error, "retryable", False))
            reason = f"{type(error).__name__}: {error}"
            self._io.happened(AppendFailed(reason, is_retryable=is_retryable))
        else:
            self._io.stored(result)
            self._io.happened(Appended())


def fetch_request(effect: Fetch, settings: PullSettings, signers_known: Sequence[str] = ()) -> FetchFacts:
    """The request of a fetch."""
    return FetchFacts(
        consumer_name=settings.consumer_name,
        stream=settings.stream,
        start=settings.receiver.start,
        limit=settings.limit,
        bytes_max=effect.bytes_max,
        wait_ms=effect.wait_ms,
        after=None if effect.after is None else LogPosition.of(effect.after),
        trail=None if effect.trail is None else [LogPosition.of(one) for one in effect.trail],
        confirm=None if effect.confirm is None else _confirm(effect.confirm),
        lease=effect.lease,
        lease_after=effect.lease_after,
        signers_known=list(signers_known),
    )


def _confirm(read: Position) -> Confirm:
    return Confirm(last_offset=read.offset, life=read.life.hex(), digest=read.digest.hex())


def put_page(
    store: ReceivingStore,
    settings: PullSettings,
    effect: Append[CheckedContent],
    judged: JudgedPage,
    *,
    is_backlog: bool,
) -> Future[PutResult]:
    """Pass a checked page to the store, with the position after it."""
    page = effect.page
    return store.inbound.put_batches(
        settings.peer_zone,
        settings.stream,
        judged.batches,
        page.lives[-1],
        passed=page.lives[:-1],
        holes=page.content.content.holes,
        is_backlog=is_backlog,
        verified=judged.verified,
        signers=judged.signers,
        declined=judged.declined,
    )


def _unreadable(fetch_id: int, error: MalformedMessage) -> FetchFailed:
    """An answer in another major version stays unreadable until a node is updated; any other may have been damaged in
    transit."""
    if error.code == "unsupported_version":
        return FetchFailed(fetch_id, error.code, f"{error.why}. {ERRORS[error.code].hint}", is_retryable=False)
    return FetchFailed(fetch_id, "malformed", f"unreadable answer: {error.why}", is_retryable=True)
