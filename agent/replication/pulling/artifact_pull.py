"""Fetches the artifacts to which a page's facts refer, before the page is stored.

Chunks are fetched in order, from where an earlier attempt ended, even after a restart of this node, because the store
keeps what has arrived. While one chunk is written the next ones are under way, so that a long round trip costs little.
If the connection is lost or the disk is full, the page waits, so that no fact is stored before the artifact to which it
refers. If the peer lacks an artifact, or this node refuses it, an incident is recorded and the facts are stored all the
same: a missing drawing must not stop the facts behind it (decision 0039).
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence

from agent.batch import Batch
from agent.concurrency import TaskGroup
from agent.errors import StoreError
from agent.pages import ArtifactProgress, ArtifactReference
from agent.replication.protocol.errors import MalformedMessage, PeerRefused, TransportError
from agent.replication.protocol.messages import BYTES_MAX_MIN, CHUNK_BYTES_MAX, GetObject, ObjectAnswer
from agent.replication.protocol.ports import Artifacts
from agent.replication.pulling.throttled_requester import ThrottledRequester

ANSWER_S = 10.0
ATTEMPTS = 2
"""A first mismatch may be due to bytes of an earlier attempt; after a second one the peer's artifact is wrong."""
CHUNKS_AHEAD_MAX = 3
"""Chunks under way or in memory: 768 KiB for each pull. With a round trip of 50 ms they carry 15 MB/s; one alone, 5."""

SLOW_S = 10.0
"""An artifact that takes longer is named: the facts that refer to it wait."""
LOST_OF_PAGE_MAX = 16
"""If the peer lacks this many artifacts of a page, the others are left to the next comparison. A page may refer to
thousands, each costs a round trip, and facts of other zones wait behind it."""

_log = logging.getLogger(__name__)


class ArtifactUnavailable(Exception):
    """The peer cannot supply the artifact; the text says why."""


class ArtifactPull:
    """Artifacts of one peer."""

    def __init__(
        self,
        requester: ThrottledRequester,
        artifacts: Artifacts,
        clock_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._requester = requester
        self._artifacts = artifacts
        self._chunk_bytes = requester.page_bytes(CHUNK_BYTES_MAX)
        self._chunks_ahead = requester.pages_ahead(self._chunk_bytes, CHUNKS_AHEAD_MAX)
        self._clock_s = clock_s
        self.waits = ""
        """For which artifact the page waits, if it takes long."""

    async def fetch(self, batches: Sequence[Batch]) -> bool:
        """Return when every artifact to which the facts refer is here or known to be unavailable. False if some exceed
        the peer's quota of unreferenced bytes: they fit once the facts are stored. Raises TransportError and the
        retryable errors of the store."""
        lost, left = set[ArtifactReference](), set[ArtifactReference]()
        while missing := [
            reference
            for reference in await asyncio.to_thread(self._artifacts.missing, batches)
            if not (reference in lost or reference in left)
        ]:
            for place, reference in enumerate(missing):  # then all are checked again: a large one may have taken days
                if len(lost) >= LOST_OF_PAGE_MAX:
                    others = len(missing) - place - 1
                    reason = f"not requested, like {others} others: the peer lacks {len(lost)} artifacts of this page"
                    self._artifacts.unavailable(self._requester.peer_node, reference.digest, reason)
                    return not left  # a comparison requests the absent ones
                try:
                    why = await self._fetch_or_why(reference)
                except StoreError as error:
                    if not getattr(error, "waits_for_facts", False):
                        raise
                    left.add(reference)
                else:
                    if why is not None:
                        lost.add(reference)
                        self._artifacts.unavailable(self._requester.peer_node, reference.digest, why)
        return not left

    async def fetch_absent(self, stream: str) -> tuple[int, int]:
        """Fetch the absent artifacts of a stream, as far as the peer has them now. Returns how many arrived and how
        many are still absent. Raises the same errors as `fetch`."""
        count = left = 0
        async for some in self.absent(stream):
            count += len(some)
            for digest in some:
                try:
                    answer, _ = await self._ask(GetObject(digest=digest, bytes_max=BYTES_MAX_MIN))
                except ArtifactUnavailable:
                    left += 1
                else:
                    left += await self._fetch_or_why(ArtifactReference(digest, answer.size)) is not None
        return count - left, left

    async def absent(self, stream: str) -> AsyncIterator[Sequence[str]]:
        """The artifacts to which held facts of a stream refer and that are not here, some at a time: facts may refer to
        any number, which would fill the memory."""
        after: str | None = ""
        while after is not None:
            some, after = await asyncio.to_thread(self._artifacts.absent, stream, after)
            yield some

    async def _fetch_or_why(self, reference: ArtifactReference) -> str | None:
        """Fetch one artifact. Returns the reason if it is unavailable, else None."""
        fields = {"peer": self._requester.peer_node, "digest": reference.digest, "bytes": reference.size}
        try:
            await self._fetch(reference)
        except ArtifactUnavailable as error:
            _log.warning("artifact_missing", extra={**fields, "reason": str(error)})
            return str(error)
        finally:
            self.waits = ""
        _log.info("artifact_received", extra=fields)
        return None

    async def _fetch(self, reference: ArtifactReference) -> None:
        for attempt in range(1, ATTEMPTS + 1):
            try:
                await self._fetch_rest(reference, await self._put(reference, 0, b""))
            except StoreError as error:
                if error.retryable:
                    raise
                if attempt == ATTEMPTS:
                    raise ArtifactUnavailable(str(error)) from error
            else:
                return

    async def _fetch_rest(self, reference: ArtifactReference, held: ArtifactProgress) -> None:
        """Request chunks ahead and store them in order. If a chunk does not start at the end of what is stored, it and
        those behind it are useless: the peer sends smaller chunks than requested, or another pull fetches the same
        artifact."""
        failure: Exception | None = None
        chunk_bytes, asked, begun_s = self._chunk_bytes, held.received, self._clock_s()
        ahead = deque[tuple[int, asyncio.Task[bytes | Exception]]]()
        async with TaskGroup() as group:
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
                except StoreError as error:
                    failure = error
                self._note_slow(reference, held, self._clock_s() - begun_s)
                chunk_bytes = min(chunk_bytes, max(len(data), BYTES_MAX_MIN))
            _cancel(ahead)
        if failure is not None:
            raise failure

    def _note_slow(self, reference: ArtifactReference, held: ArtifactProgress, took_s: float) -> None:
        """Say for what the facts wait: in the log once for an artifact, in the status with how far it is."""
        if took_s < SLOW_S:
            return
        peer = self._requester.peer_node
        if not self.waits:
            fields = {"peer": peer, "digest": reference.digest, "bytes": reference.size, "received": held.received}
            _log.warning("artifact_slow", extra=fields)
        self.waits = f"{peer} has sent {held.received:,} of {reference.size:,} bytes of an artifact in {took_s:.0f} s"

    async def _get_or_why(self, reference: ArtifactReference, offset: int, size: int) -> bytes | Exception:
        """A chunk, or the error instead of it: raised, it would end the task group."""
        try:
            return await self._get(reference, offset, size)
        except (ArtifactUnavailable, TransportError) as error:
            return error

    async def _get(self, reference: ArtifactReference, offset: int, size: int) -> bytes:
        answer, data = await self._ask(GetObject(digest=reference.digest, offset=offset, bytes_max=size))
        if (answer.size, answer.offset) != (reference.size, offset) or not data:
            raise ArtifactUnavailable(
                f"{self._requester.peer_node} has other bytes than the {reference.size} that the fact names"
            )
        return data

    async def _ask(self, request: GetObject, attempts: int = ATTEMPTS) -> tuple[ObjectAnswer, bytes]:
        """The answer and its attachment. Raises ArtifactUnavailable for a final error, TransportError for one that may
        pass."""
        try:
            reply = await self._requester.ask(request, ANSWER_S)
        except PeerRefused as error:
            if error.retryable:
                raise TransportError(error.node, error.message, error.hint) from error
            raise ArtifactUnavailable(str(error)) from error
        except MalformedMessage as error:
            # TLS delivers answers intact, so the peer sent it like this. If its answers stay unreadable, waiting would
            # stop the facts behind this page for ever.
            if attempts > 1:
                return await self._ask(request, attempts - 1)
            raise ArtifactUnavailable(f"{self._requester.peer_node} sent an unreadable answer: {error.why}") from error
        if not isinstance(reply.answer, ObjectAnswer):
            raise ArtifactUnavailable(f"{self._requester.peer_node} gave another answer than an artifact")
        return reply.answer, b"".join(reply.batches)

    async def _put(self, reference: ArtifactReference, offset: int, data: bytes) -> ArtifactProgress:
        put = self._artifacts.put_chunk
        peer = self._requester.peer_node
        return await asyncio.to_thread(put, peer, reference.digest, reference.size, offset, data)


def _cancel(ahead: deque[tuple[int, asyncio.Task[bytes | Exception]]]) -> None:
    """Cancel the chunks under way; late answers to them are ignored."""
    for _, task in ahead:
        task.cancel()
    ahead.clear()
