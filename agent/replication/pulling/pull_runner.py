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

from msgspec.structs import replace

from agent.batch import Batch, Kind, Origin
from agent.pages import BatchEnd, LackingDefinitions, PutResult
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
    FORMER_EPOCHS_MAX,
    Confirm,
    ErrorAnswer,
    FetchFacts,
    LogPosition,
    OriginHead,
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
    relays. Facts of our own former epochs are always allowed."""

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
        epoch, trail = store.inbound.peer_epoch(*at), store.inbound.trail(*at)
        of_peer = epoch.hex() if epoch is not None else None
        self.core = make_receiver(settings.receiver, of_peer, trail, bandwidth)
        self.spans = PullSpans(telemetry or Telemetry(), *at, is_new=not trail)
        self.catch_up = CatchUpTracker()
        self.peer_end_offset = 0
        self._newest: Batch | None = None  # the last batch of the page that was just stored
        self._former: Sequence[bytes] = ()
        self._former_of: bytes = b""

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
                    self._read_former_epochs()
                    held = self._origin_head(effect) if effect.must_claim_history else None
                    self._newest = None
                    former = [epoch.hex() for epoch in self._former[-FORMER_EPOCHS_MAX:]]
                    request = fetch_request(effect, self._settings, held, self._judge.signers_known(), former)
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

    def _read_former_epochs(self) -> None:
        """Read our own former epochs, with each request but those that follow a page: they change with an epoch."""
        if self._newest is None or self._former_of != self._store.epoch:
            self._former_of, self._former = self._store.epoch, self._store.former_epochs

    def _origins(self) -> frozenset[str]:
        """The origins of which the peer may send facts: its zones, and our own former epochs, whose facts a restore may
        have lost."""
        return self._settings.origins.union(str(Origin(self._store.zone, epoch)) for epoch in self._former)

    def _origin_head(self, fetch: Fetch) -> OriginHead | None:
        """The claim to send: a batch of the peer's own facts, of this epoch, that is held here, whichever peer sent it.
        It is the batch that the peer's page contradicted (0041), else the last one; in the request after a page the
        last of that page, which needs no look into the store. If its row is not here, a later one with a record covers
        it; a claim without a record proves nothing (0047)."""
        settings, end = self._settings, fetch.contradicted
        if fetch.epoch is None:
            return None
        origin = Origin(settings.peer_zone, bytes.fromhex(fetch.epoch))
        newest = self._newest
        if end is None and newest is not None and newest.header.origin == origin:
            return _claim(newest.header.last_sequence, newest.digest, newest.record, newest.signed_digest)
        ranges = self._store.held_of(settings.stream, origin)
        if end is None and ranges:
            end = BatchEnd(ranges[-1].last_sequence, ranges[-1].last_digest)
        if end is None:
            return None
        found = self._store.signed_batch(settings.stream, origin, end.last_sequence)
        # The batch before a held range is known too: the first batch of the range names its digest.
        if found is not None and any(
            one.first_sequence <= end.last_sequence + 1 and found.last_sequence <= one.last_sequence for one in ranges
        ):
            return _claim(found.last_sequence, found.digest, found.record, found.signed_digest)
        return _claim(end.last_sequence, end.digest)

    def _read_answer(self, fetch_id: int, arrived: ArrivedAnswer) -> PageArrived[CheckedContent] | FetchFailed:
        settings = self._settings
        try:
            answer, sealed = arrived.open()
            if isinstance(answer, ErrorAnswer):
                error = answer.error
                reason = f"{error.code}: {advice(error.message, error.hint)}"
                return FetchFailed(fetch_id, error.code, reason, error.retryable, answer.epoch, answer.life)
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
            offered = check_batches(content, settings.stream, self._origins())
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
            held = getattr(error, "held", None)
            reason = f"{type(error).__name__}: {error}"
            self._io.happened(AppendFailed(reason, is_retryable=is_retryable, contradicted=held))
        else:
            is_all_held = judged.batches and not result.refused and not result.left_out
            self._newest = judged.batches[-1] if is_all_held else None
            self._io.stored(result)
            self._io.happened(Appended())


def fetch_request(
    effect: Fetch,
    settings: PullSettings,
    origin_head: OriginHead | None,
    signers_known: Sequence[str] = (),
    former_epochs: Sequence[str] = (),
) -> FetchFacts:
    """The request of a fetch. `origin_head` is the claimed batch, if there is one; `former_epochs` are our own epochs
    of which facts are taken back."""
    return FetchFacts(
        consumer_name=settings.consumer_name,
        stream=settings.stream,
        start=settings.receiver.start,
        limit=settings.limit,
        bytes_max=effect.bytes_max,
        wait_ms=effect.wait_ms,
        epoch=effect.epoch,
        after=None if effect.after is None else LogPosition.of(effect.after),
        trail=None if effect.trail is None else [LogPosition.of(one) for one in effect.trail],
        confirm=None if effect.confirm is None else _confirm(effect.confirm),
        lease=effect.lease,
        lease_after=effect.lease_after,
        origin_head=origin_head,
        former_epochs=list(former_epochs),
        signers_known=list(signers_known),
    )


def _confirm(read: Position) -> Confirm:
    return Confirm(last_offset=read.offset, life=read.life.hex(), digest=read.digest.hex())


def _claim(last_sequence: int, digest: bytes, record: bytes = b"", signed_digest: bytes = b"") -> OriginHead:
    claim = OriginHead(last_sequence=last_sequence, digest=digest.hex())
    return replace(claim, record=record, signed_digest=signed_digest.hex()) if record else claim


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
        after=page.after,
        epoch=bytes.fromhex(page.epoch),
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
