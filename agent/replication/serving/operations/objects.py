"""GetObject and PutObject: artifacts, chunk by chunk, in the reader threads.

A node that may read a fact that refers to an artifact may read the artifact; a node that may append may put one. The
side that receives the last bytes compares the digest: the requester of a read, the store of a write.
"""

from __future__ import annotations

from collections.abc import Set as AbstractSet

from agent.replication.protocol.messages import GetObject, ObjectAnswer, PutAnswer, PutObject
from agent.replication.serving.admission import Caller
from agent.replication.serving.operations.context import Context
from agent.replication.serving.outcomes import Outcome, Refuse, Reply
from agent.replication.serving.page import ANSWER_OVERHEAD_BYTES


async def get_object(context: Context, caller: Caller, request: GetObject) -> Outcome:
    """Bytes from an offset on, as many as are asked for and fit the broker's packet."""
    room = context.packet_bytes_max - ANSWER_OVERHEAD_BYTES
    exports = context.peers[caller.node].exports
    return await context.in_thread(caller.node, _read, context, request, min(request.bytes_max, room), exports)


def _read(context: Context, request: GetObject, length: int, exports: AbstractSet[str]) -> Outcome:
    artifacts = context.store.artifacts
    if exports.isdisjoint(artifacts.streams(request.digest)):
        return Refuse("unknown_artifact", f"no fact that you may read refers to {request.digest}")
    size, data = artifacts.read_chunk(request.digest, request.offset, length)
    answer = ObjectAnswer(**context.store_name, size=size, offset=request.offset, bytes=len(data))
    return Reply(answer, [data] if data else [])


async def put_object(context: Context, caller: Caller, request: PutObject) -> Outcome:
    """Store the bytes of the request; returns how many are here."""
    if not context.peers[caller.node].appends:
        return Refuse(
            "append_not_allowed", f"{caller.node} may not append here, so none of its facts can refer to artifacts"
        )
    put = context.store.artifacts.put_chunk
    held = await context.in_thread(
        caller.node, put, caller.node, request.digest, request.size, request.offset, request.data
    )
    return Reply(PutAnswer(**context.store_name, received=held.received, is_complete=held.is_complete), [])
