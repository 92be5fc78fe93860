"""Brings the artifacts to which a page's facts refer, before the page is stored.

A chunk at a time, from where an earlier attempt ended, also in another life of this node: what came so far lies in the store. A
loss of the connection or a full disk is waited out, and the page with it, so that no fact stands here before what it refers to. What
the peer does not have, or this node does not take, is told as an incident, and the facts are stored all the same: a
missing drawing must not keep the facts behind it from arriving (decision 0039).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence

from agent.batch import Batch
from agent.replication.asker import Asker
from agent.replication.errors import MalformedMessage, PeerRefused, TransportError
from agent.replication.messages import CHUNK_BYTES_MAX, GetObject, ObjectAnswer
from agent.replication.ports import Artifacts, Held, Reference

ANSWER_S = 10.0
ATTEMPTS = 2
"""What came may have been spoilt by what lay here from before; spoilt twice, it is spoilt at the peer."""

_log = logging.getLogger(__name__)


class NotComing(Exception):
    """An artifact will not come from this peer; why."""


class ArtifactPull:
    """One pull's artifacts. `received` is told the bytes of each answer."""

    def __init__(
        self,
        asker: Asker,
        artifacts: Artifacts,
        store_errors: tuple[type[Exception], ...],
        received: Callable[[int], None] = lambda _: None,
    ) -> None:
        self._asker = asker
        self._artifacts = artifacts
        self._store_errors = store_errors
        self._received = received

    async def bring(self, batches: Sequence[Batch]) -> None:
        """Return when everything to which the facts refer is here, or known not to come. Raises what may pass: TransportError, and
        those errors of the store that are retryable."""
        for reference in await asyncio.to_thread(self._artifacts.missing, batches):
            try:
                await self._bring(reference)
            except NotComing as error:
                peer = self._asker.peer_zone
                _log.warning("artifact_missing", extra={"peer": peer, "digest": reference.digest, "reason": str(error)})
                self._artifacts.unavailable(peer, reference.digest, str(error))
            else:
                _log.info("artifact_received", extra={"digest": reference.digest, "bytes": reference.size})

    async def _bring(self, reference: Reference) -> None:
        for attempt in range(1, ATTEMPTS + 1):
            try:
                held = await self._put(reference, 0, b"")
                while not held.is_complete:
                    data = await self._get(reference, held.received)
                    held = await self._put(reference, held.received, data)
            except self._store_errors as error:
                if getattr(error, "retryable", False):
                    raise
                if attempt == ATTEMPTS:
                    raise NotComing(str(error)) from error
            else:
                return

    async def _get(self, reference: Reference, offset: int) -> bytes:
        try:
            request = GetObject(digest=reference.digest, offset=offset, bytes_max=CHUNK_BYTES_MAX)
            reply = await self._asker.ask(request, ANSWER_S)
        except PeerRefused as error:
            if error.retryable:
                raise TransportError(error.zone, error.message, error.hint) from error
            raise NotComing(str(error)) from error
        except MalformedMessage as error:
            raise TransportError(self._asker.peer_zone, f"unreadable answer: {error.why}") from error
        data = b"".join(reply.batches)
        self._received(len(data))
        answer = reply.answer
        if not isinstance(answer, ObjectAnswer) or (answer.size, answer.offset) != (reference.size, offset) or not data:
            raise NotComing(f"{self._asker.peer_zone} has other bytes than the {reference.size} that the fact tells of")
        return data

    async def _put(self, reference: Reference, offset: int, data: bytes) -> Held:
        put = self._artifacts.put_chunk
        return await asyncio.to_thread(put, reference.digest, reference.size, offset, data)
