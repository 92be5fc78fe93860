"""GetHeads: the newest signed end of each origin of a stream, our own signed now. A requester learns how far each zone
has recorded, even if a relay passes on less."""

from __future__ import annotations

from agent.batch import Origin
from agent.replication.protocol.messages import HEADS_MAX, GetHeads, HeadsAnswer
from agent.replication.serving.admission import Caller, not_exported
from agent.replication.serving.operations.context import Context
from agent.replication.serving.outcomes import Outcome, Reply
from agent.signing.heads import key_id_in


async def get_heads(context: Context, caller: Caller, request: GetHeads) -> Outcome:
    """Our own end, signed now, and those that other nodes have passed on; none of the caller's own."""
    if request.stream not in context.exports[caller.zone]:
        return not_exported(request.stream, caller.zone)
    return await context.in_turn(caller.zone, _newest_ends, context, caller, request)


def _newest_ends(context: Context, caller: Caller, request: GetHeads) -> Reply:
    stream = request.stream
    own, own_origin = context.store.signed_end(stream), Origin(context.store.zone, context.store.epoch)
    passed_on = [end for end in context.ends_known(stream) if end.origin != own_origin]
    ends = [end for end in ([own] if own is not None else []) + passed_on if end.origin.zone != caller.zone][:HEADS_MAX]
    known = set(map(bytes.fromhex, request.signers_known))
    signers = {end.certificate for end in ends if end.certificate and key_id_in(end.head) not in known}
    answer = HeadsAnswer(
        **context.store_name,
        stream=stream,
        ends=[(str(end.origin), end.last_sequence, end.digest.hex()) for end in ends],
        signers=sorted(signers),
    )
    return Reply(answer, [end.head for end in ends])
