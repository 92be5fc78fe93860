"""FetchRange and FetchSequences: facts by offset, or by sequence of an origin, for callers that keep their own
position; and GetDefinitions, the tag definitions that their batches name.

Nothing is registered, confirmed or waited for, so any number of tasks may read in parallel. A range that ends inside a
batch gets a slice of it, or with `whole_batches` all of it.
"""

from __future__ import annotations

from agent.replication.protocol.messages import (
    DefinitionsAnswer,
    FetchRange,
    FetchSequences,
    GetDefinitions,
    LogPosition,
    RangeAnswer,
    SequencesAnswer,
    origin_named,
)
from agent.replication.serving.admission import Caller, admit_range, admit_sequences
from agent.replication.serving.operations.context import Context
from agent.replication.serving.outcomes import Outcome, Refuse, Reply
from agent.replication.serving.page import ANSWER_OVERHEAD_BYTES, HeldThere
from agent.replication.serving.reading import PageQuery, read_definitions, read_sequences, read_whole


async def fetch_sequences(context: Context, caller: Caller, request: FetchSequences) -> Outcome:
    """The page from `first_sequence` on. Nothing is omitted: a caller that asks for its own facts wants them
    back."""
    plan = admit_sequences(request, caller.node, context.peers[caller.node].exports)
    if isinstance(plan, Refuse):
        return plan
    if refusal := await context.refuse_position(caller.node, request.stream, request.position):
        return refusal
    asked = PageQuery(plan, HeldThere(), context.packet_bytes_max, request.signers_known)
    origin = origin_named(request.origin)
    read = await context.in_thread(caller.node, read_sequences, context.store, origin, asked)
    if isinstance(read, Refuse):
        return read
    answer = SequencesAnswer(
        **context.store_name,
        stream=request.stream,
        origin=request.origin,
        batches=read.entries,
        holes=read.holes,
        more=read.last_offset < request.last_sequence,
        signers=read.signers,
    )
    return Reply(answer, read.batches, read.facts)


async def fetch_range(context: Context, caller: Caller, request: FetchRange) -> Outcome:
    """The page from `first_offset` on."""
    plan = admit_range(request, caller.node, context.peers[caller.node].exports)
    if isinstance(plan, Refuse):
        return plan
    last = LogPosition(offset=request.last_offset, life=request.life, digest=request.digest)
    if refusal := await context.refuse_position(caller.node, request.stream, last):
        return refusal
    asked = PageQuery(plan, context.held_by(caller.node), context.packet_bytes_max, request.signers_known)
    if request.whole_batches:
        read = await context.in_thread(caller.node, read_whole, context.store, asked)
    else:
        read = await context.page(caller.node, asked)
    if isinstance(read, Refuse):
        return read
    answer = RangeAnswer(
        **context.store_name,
        stream=request.stream,
        end_offset=read.end_offset,
        batches=read.entries,
        omitted=read.omitted,
        holes=read.holes,
        more=read.last_offset < min(request.last_offset, read.end_offset),
        signers=read.signers,
    )
    return Reply(answer, read.batches, read.facts)


async def get_definitions(context: Context, caller: Caller, request: GetDefinitions) -> Outcome:
    """Tag definitions. Only a batch that the caller has names their digest, so no stream is asked for."""
    if not context.peers[caller.node].exports:
        return Refuse("stream_not_exported", f"no stream is exported to {caller.node}")
    limit = min(request.bytes_max, context.packet_bytes_max - ANSWER_OVERHEAD_BYTES)
    runs, bodies = await context.in_thread(caller.node, read_definitions, context.store, request.wanted, limit)
    return Reply(DefinitionsAnswer(**context.store_name, runs=runs), bodies)
