"""Brings the artifacts to which a page's facts refer, before the page is stored.

Chunk by chunk, in order, from where an earlier attempt ended, also in another life of this node: what came so far lies in the store. The next
chunks are under way while one is written, so that a long way costs little more than a short one. A
loss of the connection or a full disk is waited out, and the page with it, so that no fact stands here before what it refers to. What
the peer does not have, or this node does not take, is told as an incident, and the facts are stored all the same: a
missing drawing must not keep the facts behind it from arriving (decision 0039).
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Sequence

from agent.batch import Batch
from agent.pages import ArtifactProgress, ArtifactReference
from agent.replication.protocol import (
    BYTES_MAX_MIN,
    CHUNK_BYTES_MAX,
    Artifacts,
    GetObject,
    MalformedMessage,
    ObjectAnswer,
    PeerRefused,
    TransportError,
)
from agent.replication.pulling.throttled_requester import ThrottledRequester

ANSWER_S = 10.0
ATTEMPTS = 2
"""What came may have been spoilt by what lay here from before; spoilt twice, it is spoilt at the peer."""
CHUNKS_AHEAD_MAX = 3
"""Under way or in memory at once: 768 KiB for each pull. Over 50 ms there and back they bring 15 MB/s; one alone, 5."""

_log = logging.getLogger(__name__)


class NotComing(Exception):
    """An artifact will not come from this peer; why."""


class ArtifactPull:
    """What comes from one peer."""

    def __init__(
        self, asker: ThrottledRequester, artifacts: Artifacts, store_errors: tuple[type[Exception], ...]
    ) -> None:
        self._asker = asker
        self._artifacts = artifacts
        self._store_errors = store_errors
        self._chunk_bytes = asker.page_bytes(CHUNK_BYTES_MAX)
        self._chunks_ahead = asker.pages_ahead(self._chunk_bytes, CHUNKS_AHEAD_MAX)

    async def bring(self, batches: Sequence[Batch]) -> None:
        """Return when everything to which the facts refer is here, or known not to come. Raises what may pass: TransportError, and
        those errors of the store that are retryable."""
        lost = set[ArtifactReference]()
        while missing := [one for one in await asyncio.to_thread(self._artifacts.missing, batches) if one not in lost]:
            for reference in missing:  # then all are looked at again: a large one may have taken days
                if (why := await self._brought(reference)) is not None:
                    lost.add(reference)
                    self._artifacts.unavailable(self._asker.peer_zone, reference.digest, why)

    async def mend(self, stream: str) -> tuple[int, int]:
        """Bring what held facts of a stream refer to and did not come with them, as far as the peer has it now; how many came, and how
        many still are not here. Raises as `bring`."""
        absent = await asyncio.to_thread(self._artifacts.absent, stream)
        left = 0
        for digest in absent:
            try:
                answer, _ = await self._ask(GetObject(digest=digest, bytes_max=BYTES_MAX_MIN))
            except NotComing:
                left += 1
            else:
                left += await self._brought(ArtifactReference(digest, answer.size)) is not None
        return len(absent) - left, left

    async def _brought(self, reference: ArtifactReference) -> str | None:
        """Bring one; why not, where it will not come."""
        fields = {"peer": self._asker.peer_zone, "digest": reference.digest, "bytes": reference.size}
        try:
            await self._bring(reference)
        except NotComing as error:
            _log.warning("artifact_missing", extra={**fields, "reason": str(error)})
            return str(error)
        _log.info("artifact_received", extra=fields)
        return None

    async def _bring(self, reference: ArtifactReference) -> None:
        for attempt in range(1, ATTEMPTS + 1):
            try:
                await self._bring_rest(reference, await self._put(reference, 0, b""))
            except self._store_errors as error:
                if getattr(error, "retryable", False):
                    raise
                if attempt == ATTEMPTS:
                    raise NotComing(str(error)) from error
            else:
                return

    async def _bring_rest(self, reference: ArtifactReference, held: ArtifactProgress) -> None:
        """Ask for chunks ahead and store them in their order. One that is not where the store goes on is of no use, nor are those behind it:
        the peer gives less at once than was asked for, or somebody else brings the same artifact."""
        failure: Exception | None = None
        chunk_bytes, asked = self._chunk_bytes, held.received
        ahead = deque[tuple[int, asyncio.Task[bytes | Exception]]]()
        async with asyncio.TaskGroup() as group:
            while failure is None and not held.is_complete:
                if ahead and ahead[0][0] != held.received:
                    _cancel(ahead)
                if not ahead:
                    asked = held.received
                while not ahead or (asked < reference.size and len(ahead) < self._chunks_ahead):
                    getting = self._get_or_why(reference, asked, chunk_bytes)
                    ahead.append((asked, group.create_task(getting, name="chunk")))
                    asked += chunk_bytes
                offset, task = ahead.popleft()
                data = await task
                if isinstance(data, Exception):
                    failure = data
                    break
                try:
                    held = await self._put(reference, offset, data)
                except self._store_errors as error:
                    failure = error
                chunk_bytes = min(chunk_bytes, max(len(data), BYTES_MAX_MIN))
            _cancel(ahead)
        if failure is not None:
            raise failure

    async def _get_or_why(self, reference: ArtifactReference, offset: int, size: int) -> bytes | Exception:
        """A chunk, or the reason why there is none: raised, it would end the group of those beside it as several errors."""
        try:
            return await self._get(reference, offset, size)
        except (NotComing, TransportError) as error:
            return error

    async def _get(self, reference: ArtifactReference, offset: int, size: int) -> bytes:
        answer, data = await self._ask(GetObject(digest=reference.digest, offset=offset, bytes_max=size))
        if (answer.size, answer.offset) != (reference.size, offset) or not data:
            raise NotComing(f"{self._asker.peer_zone} has other bytes than the {reference.size} that the fact tells of")
        return data

    async def _ask(self, request: GetObject) -> tuple[ObjectAnswer, bytes]:
        """The answer and what is attached. NotComing for what is final; TransportError for what may pass, or was spoilt on its way."""
        try:
            reply = await self._asker.ask(request, ANSWER_S)
        except PeerRefused as error:
            if error.retryable:
                raise TransportError(error.zone, error.message, error.hint) from error
            raise NotComing(str(error)) from error
        except MalformedMessage as error:
            raise TransportError(self._asker.peer_zone, f"unreadable answer: {error.why}") from error
        if not isinstance(reply.answer, ObjectAnswer):
            raise NotComing(f"{self._asker.peer_zone} gave another answer than an artifact")
        return reply.answer, b"".join(reply.batches)

    async def _put(self, reference: ArtifactReference, offset: int, data: bytes) -> ArtifactProgress:
        put = self._artifacts.put_chunk
        return await asyncio.to_thread(put, reference.digest, reference.size, offset, data)


def _cancel(ahead: deque[tuple[int, asyncio.Task[bytes | Exception]]]) -> None:
    """Their answers, if they still come, are strangers."""
    for _, task in ahead:
        task.cancel()
    ahead.clear()
