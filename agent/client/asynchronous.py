"""`AsyncClient`: a node's socket for programs with an event loop.

NodeSilent      no node answers there (the operator starts it)

A request that the node refuses raises `LocalError`, with the code of the protocol's error table and a hint. After an
error whose code is retryable there, or without an answer, ask again: the same message_id is stored once.
"""

from __future__ import annotations

import json
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any, Self, TypeVar

import msgspec

from agent.client.opened import FetchedPage, LatestValue, TagChains, opened, parsed
from agent.errors import BsfgError
from agent.local_socket import (
    AnyRequest,
    Kept,
    LocalError,
    LocalReply,
    NodeStatus,
    ReadStatus,
    StateFolderUnusable,
    accepted,
    ask,
)
from agent.message import OPERATIONAL_STREAM, Envelope, canonical_json
from agent.pages import Hole, Start
from agent.positions import Position
from agent.replication.protocol.definition_fetch import DefinitionFetch
from agent.replication.protocol.errors import DefinitionsUnavailable
from agent.replication.protocol.messages import (
    AppendAnswer,
    AppendedEntry,
    AppendFact,
    BoundsAnswer,
    ConfirmAnswer,
    ConfirmReceipt,
    CursorAnswer,
    FetchAnswer,
    FetchFacts,
    FetchRange,
    GetBounds,
    GetCursor,
    GetLatest,
    LatestAnswer,
    ListStreams,
    LogPosition,
    NewFact,
    NewMessage,
    PageAnswer,
    RangeAnswer,
    StreamEntry,
    StreamsAnswer,
)
from agent.settings.store import Acks

OPERATIONAL, TELEMETRY = OPERATIONAL_STREAM, "facts.telemetry"
PAGE_BYTES = 4 * 1024 * 1024
ACKS_WAIT_MS = 60_000
"""For how much longer than usual an append may take to be answered: its stream's acks_timeout_ms, 60 s at most."""

Ask = Callable[[AnyRequest, int], Awaitable[LocalReply]]
"""ask(request, waits_ms) returns the answer."""
_AnswerT = TypeVar("_AnswerT", bound=msgspec.Struct)


class NodeSilent(BsfgError):
    """No node answers on a state folder."""

    hint = "is it running? `bsfg run --config FILE`, or `systemctl status bsfg@ZONE`"


class AsyncClient:
    """The node that runs on `state_dir`. `instance` names this program where two copies must not read as one consumer;
    `ask_node` takes the place of the socket. `async with AsyncClient(...)` keeps its connections until the end of the
    block, which saves two fifths of the processor time; without it each request has one of its own."""

    def __init__(self, state_dir: Path | str, instance: str = "", ask_node: Ask | None = None) -> None:
        self._state_dir, self._instance = Path(state_dir), instance
        self._ask = ask_node or self._ask_socket
        self._chains = TagChains()
        self._zone = ""
        self._kept: Kept | None = None

    async def __aenter__(self) -> Self:
        self._kept = []
        return self

    async def __aexit__(self, *_: object) -> None:
        kept, self._kept = self._kept, None
        _close_all(kept)

    async def append(
        self,
        subject: str,
        predicate: str,
        value: Any,
        *,
        message_id: str,
        stream: str = OPERATIONAL,
        to_zone: str = "*",
        acks: Acks | None = None,
        producer: str | None = None,
        lease_epoch: int | None = None,
        base_offset: int | None = None,
    ) -> AppendedEntry:
        """Append a fact once; returns offset and outcome when it is durable, or as `acks` says. `message_id` is that of
        the event: the same id with the same content is stored once."""
        if not self._zone:
            await self.streams()
        fact = NewFact(subject=subject, predicate=predicate, object=msgspec.Raw(canonical_json(value)))
        envelope = Envelope(message_id, self._zone, to_zone, time.time_ns() // 1_000_000)
        conditions = {"producer": producer, "lease_epoch": lease_epoch, "base_offset": base_offset}
        message = NewMessage(envelope=envelope, fact=fact, **conditions)  # type: ignore[arg-type]
        (appended,) = await self.append_messages(AppendFact(stream=stream, messages=[message], acks=acks))
        return appended

    async def append_messages(self, request: AppendFact) -> Sequence[AppendedEntry]:
        """Append several messages in one commit, or one with all its fields."""
        return (await self._answer(request, AppendAnswer, ACKS_WAIT_MS)).outcomes

    async def fetch(
        self,
        consumer: str,
        stream: str = OPERATIONAL,
        *,
        limit: int = 100,
        wait_s: float = 0,
        start: Start = "oldest",
        after: Position | None = None,
    ) -> FetchedPage:
        """The facts after the consumer's frontier, or after a position; waits up to `wait_s` for the first one. The
        consumer, named local.<name>, is registered at its first fetch, and reads from `start`."""
        request = FetchFacts(
            consumer_name=consumer,
            stream=stream,
            limit=limit,
            bytes_max=PAGE_BYTES,
            wait_ms=round(wait_s * 1000),
            start=start,
            after=None if after is None else LogPosition.of(after),
        )
        reply = await self._ask(request, request.wait_ms)
        answer = accepted(reply, FetchAnswer)
        end = answer.lives[-1] if answer.lives else answer.after
        return await self._page(answer, reply.batches, end.position, answer.end_offset)

    async def confirm(self, consumer: str, position: Position, first_offset: int | None = None) -> int:
        """Facts up to the position, from `first_offset` if given, are stored by the consumer. Returns its frontier,
        durable."""
        request = ConfirmReceipt(
            consumer_name=consumer,
            offset=position.offset,
            life=position.life.hex(),
            digest=position.digest.hex(),
            first_offset=first_offset,
        )
        return (await self._answer(request, ConfirmAnswer)).cursor_advanced_to

    async def position(self, consumer: str, offset: int) -> Position:
        """The position at an offset of the log that the consumer reads, as the log is now. Raises LocalError for one
        beyond its end."""
        cursor = await self._answer(GetCursor(consumer_name=consumer), CursorAnswer)
        bounds = await self.bounds(cursor.stream)
        if offset > bounds.end_offset:
            why = f"offset {offset} is beyond the end of {cursor.stream}, {bounds.end_offset}"
            raise LocalError(why, "confirm what was fetched", "bad_request")
        return Position(bytes.fromhex(bounds.end_life), offset)

    async def latest(self, prefix: str = "", stream: str = TELEMETRY, *, fresh_s: float = 60) -> Sequence[LatestValue]:
        """The latest value of each tag of a stream whose subject begins with `prefix`, as tag:line1/."""
        found, after = list[LatestValue](), None
        while True:
            request = GetLatest(stream=stream, prefix=prefix, after=after, fresh_ms=round(fresh_s * 1000))
            answer = await self._answer(request, LatestAnswer)
            found += map(LatestValue.of, answer.values)
            if not answer.more:
                return found
            after = answer.last_after(after)

    async def streams(self) -> Sequence[StreamEntry]:
        """The streams of the store, with their first and last offset."""
        answer = await self._answer(ListStreams(), StreamsAnswer)
        self._zone = answer.store_zone
        return answer.streams

    async def bounds(self, stream: str) -> BoundsAnswer:
        """The first and last offset of a stream."""
        return await self._answer(GetBounds(stream=stream), BoundsAnswer)

    async def read(self, stream: str, after_offset: int, limit: int) -> FetchedPage:
        """Facts after an offset, without a consumer: no cursor moves, and nothing is kept for the reader."""
        bounds = await self.bounds(stream)
        end = Position(bytes.fromhex(bounds.end_life), bounds.end_offset)
        if after_offset >= bounds.end_offset or limit < 1:
            return FetchedPage(stream, [], [], end, more=False)
        request = FetchRange(
            stream=stream,
            first_offset=after_offset + 1,
            last_offset=end.offset,
            life=bounds.end_life,
            limit=limit,
            bytes_max=PAGE_BYTES,
        )
        reply = await self._ask(request, 0)
        answer = accepted(reply, RangeAnswer)
        covered = answer.covered()
        reached = Position(end.life, covered[1] if covered else end.offset)
        return await self._page(answer, reply.batches, reached, answer.end_offset)

    async def status(self, *, everything: bool = False) -> dict[str, Any]:
        """The status of the node: the worst parts of each kind, or everything. Raises NodeSilent."""
        found: dict[str, Any] = json.loads(await self.status_json(everything=everything))
        return found

    async def status_json(self, *, everything: bool = False) -> bytes:
        """As `status`, as JSON."""
        try:
            return bytes((await self._answer(ReadStatus(everything), NodeStatus)).health)
        except (LocalError, StateFolderUnusable) as error:
            raise NodeSilent(f"no answer from the node on {self._state_dir}: {error}") from error

    # --------------------------------------------------------------------------------------------------------- internal

    async def _ask_socket(self, request: AnyRequest, waits_ms: int) -> LocalReply:
        kept = self._kept
        try:
            return await ask(self._state_dir, request, waits_ms, self._instance, kept)
        except (FileNotFoundError, ConnectionRefusedError) as error:
            raise NodeSilent(f"no node runs on {self._state_dir}") from error
        finally:
            if kept is not self._kept:  # the block has ended meanwhile
                _close_all(kept)

    async def _answer(self, request: AnyRequest, kind: type[_AnswerT], waits_ms: int = 0) -> _AnswerT:
        return accepted(await self._ask(request, waits_ms), kind)

    async def _page(
        self, answer: PageAnswer, attached: Sequence[bytes], position: Position, end_offset: int
    ) -> FetchedPage:
        batches = parsed(answer, attached)
        await self._define(self._chains.lacking(batch for _, _, batch in batches if batch is not None))
        holes = [Hole(first, last, "damaged" if why == "damaged" else "expired") for first, last, why in answer.holes]
        facts = list(opened(batches, self._chains, holes))
        return FetchedPage(answer.stream, facts, holes, position, position.offset < end_offset)

    async def _define(self, lacking: Sequence[Any]) -> None:
        """Fetch tag definitions. Facts whose definitions the store has lost are shown as damaged."""
        for chain in lacking:
            fetch = DefinitionFetch([chain])
            while (request := fetch.request()) is not None:
                reply = await self._ask(request, 0)
                try:
                    complete = fetch.take_answer(reply.answer, reply.batches)  # type: ignore[arg-type]
                except DefinitionsUnavailable:
                    break
                for found in complete:
                    self._chains.put(found)


def _close_all(kept: Kept | None) -> None:
    while kept:
        kept.pop()[1].close()
