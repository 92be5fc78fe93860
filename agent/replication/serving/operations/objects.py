"""GetObject and PutObject: artifacts, chunk by chunk, in the reader threads.

Who may read the facts that refer to an artifact may read it, and nobody learns of others; who may append may put. The
The side that receives the last bytes compares the digest: the requester of a read, the store of a write.
"""

from __future__ import annotations

from collections.abc import Mapping

from agent.replication.protocol.messages import GetObject, ObjectAnswer, PutAnswer, PutObject
from agent.replication.serving.admission import Caller
from agent.replication.serving.operations.context import Context
from agent.replication.serving.outcomes import Outcome, Refuse, Reply
from agent.replication.serving.page import ANSWER_OVERHEAD_BYTES


class Objects:
    """Serves artifacts. `appends`: each peer zone and the streams it may append to."""

    def __init__(self, context: Context, appends: Mapping[str, frozenset[str]]) -> None:
        self._context = context
        self._appends = appends

    async def get_object(self, caller: Caller, request: GetObject) -> Outcome:
        """Bytes from an offset on, as many as are asked for and fit the broker's packet."""
        room = self._context.link.require().packet_bytes_max - ANSWER_OVERHEAD_BYTES
        exports = self._context.exports[caller.zone]
        return await self._context.in_thread(self._read, request, min(request.bytes_max, room), exports)

    def _read(self, request: GetObject, length: int, exports: frozenset[str]) -> Outcome:
        artifacts = self._context.store.artifacts
        if exports.isdisjoint(artifacts.streams(request.digest)):
            return Refuse("unknown_artifact", f"no fact that you may read refers to {request.digest}")
        size, data = artifacts.read_chunk(request.digest, request.offset, length)
        answer = ObjectAnswer(**self._context.own, size=size, offset=request.offset, bytes=len(data))
        return Reply(answer, [data] if data else [])

    async def put_object(self, caller: Caller, request: PutObject) -> Outcome:
        """How much is here, once the bytes of the request are."""
        if not self._appends.get(caller.zone):
            return Refuse(
                "append_not_allowed", f"{caller.zone} may not append here, so it has nothing to refer to artifacts"
            )
        put = self._context.store.artifacts.put_chunk
        held = await self._context.in_thread(put, request.digest, request.size, request.offset, request.data)
        return Reply(PutAnswer(**self._context.own, received=held.received, is_complete=held.is_complete), [])
