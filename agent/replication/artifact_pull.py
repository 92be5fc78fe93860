"""Brings the artifacts to which a page's facts refer, before the page is stored.

A chunk at a time, from where an earlier attempt ended, also in another life of this node: what came so far lies in the store. A
loss of the connection or a full disk is waited out, and the page with it, so that no fact stands here before what it refers to. What
the peer does not have, or this node does not take, is told as an incident, and the facts are stored all the same: a
missing drawing must not keep the facts behind it from arriving (decision 0039).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from dataclasses import dataclass

from agent.batch import Batch
from agent.replication.errors import MalformedMessage, PeerRefused, TransportError
from agent.replication.messages import BYTES_MAX_MIN, CHUNK_BYTES_MAX, GetObject, ObjectAnswer
from agent.replication.paying import PayingAsker
from agent.replication.ports import Artifacts, Held, Reference

ANSWER_S = 10.0
ATTEMPTS = 2
"""What came may have been spoilt by what lay here from before; spoilt twice, it is spoilt at the peer."""

_log = logging.getLogger(__name__)


class NotComing(Exception):
    """An artifact will not come from this peer; why."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """An artifact by name and its size in bytes, as the peer tells it."""

    digest: str
    size: int


class ArtifactPull:
    """What comes from one peer."""

    def __init__(self, asker: PayingAsker, artifacts: Artifacts, store_errors: tuple[type[Exception], ...]) -> None:
        self._asker = asker
        self._artifacts = artifacts
        self._store_errors = store_errors
        self._chunk_bytes = asker.page_bytes(CHUNK_BYTES_MAX)

    async def bring(self, batches: Sequence[Batch]) -> None:
        """Return when everything to which the facts refer is here, or known not to come. Raises what may pass: TransportError, and
        those errors of the store that are retryable."""
        lost = set[Reference]()
        while missing := [one for one in await asyncio.to_thread(self._artifacts.missing, batches) if one not in lost]:
            for reference in missing:  # then all are looked at again: a large one may have taken days
                if (why := await self._brought(reference)) is not None:
                    lost.add(reference)
                    self._artifacts.unavailable(self._asker.peer_zone, reference.digest, why)

    async def mend(self, stream: str) -> int:
        """Bring what held facts of a stream refer to and did not come with them, as far as the peer has it now; how many still are
        not here. Raises as `bring`."""
        absent = await asyncio.to_thread(self._artifacts.absent, stream)
        left = 0
        for digest in absent:
            try:
                answer, _ = await self._ask(GetObject(digest=digest, bytes_max=BYTES_MAX_MIN))
            except NotComing:
                left += 1
            else:
                left += await self._brought(Wanted(digest, answer.size)) is not None
        return left

    async def _brought(self, reference: Reference) -> str | None:
        """Bring one; why not, where it will not come."""
        fields = {"peer": self._asker.peer_zone, "digest": reference.digest, "bytes": reference.size}
        try:
            await self._bring(reference)
        except NotComing as error:
            _log.warning("artifact_missing", extra={**fields, "reason": str(error)})
            return str(error)
        _log.info("artifact_received", extra=fields)
        return None

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
        answer, data = await self._ask(GetObject(digest=reference.digest, offset=offset, bytes_max=self._chunk_bytes))
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

    async def _put(self, reference: Reference, offset: int, data: bytes) -> Held:
        put = self._artifacts.put_chunk
        return await asyncio.to_thread(put, reference.digest, reference.size, offset, data)
