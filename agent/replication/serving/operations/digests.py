"""GetDigests: what is held of whom, so that another store can be compared with this one without a fact being sent.

Batches form a chain: two stores with the same digest at one sequence have the same history before it. What is held is a look into
memory; the digests inside a range are a look into an index for each, and no batch is opened.
"""

from __future__ import annotations

from agent.replication.protocol.digest_diff import spread
from agent.replication.protocol.messages import DigestsAnswer, GetDigests, origin_named
from agent.replication.serving.operations.context import Context, Outcome, Reply
from agent.replication.serving.sender import Caller, not_exported

RANGES_ENOUGH = 1000
"""No further origin is begun in an answer that has so many ranges."""


class Digests:
    """Serves comparisons."""

    def __init__(self, context: Context) -> None:
        self._context = context

    async def get_digests(self, caller: Caller, request: GetDigests) -> Outcome:
        """What is held, or what lies inside a range."""
        context, stream = self._context, request.stream
        if stream not in context.exports[caller.zone]:
            return not_exported(stream, caller.zone)
        if request.origin is None or request.first_sequence is None or request.last_sequence is None:
            return Reply(self._ranges(stream, request.after_origin or ""), [])
        targets = spread(request.first_sequence, request.last_sequence, request.ends_max)
        origin = origin_named(request.origin)
        found = await context.in_thread(context.store.batch_ends, stream, origin, targets)
        ends = [(one.last_sequence, one.digest.hex()) for one in found if one.last_sequence <= request.last_sequence]
        return Reply(
            DigestsAnswer(**context.own, stream=stream, end_offset=context.store.end_offset(stream), ends=ends), []
        )

    def _ranges(self, stream: str, after_origin: str) -> DigestsAnswer:
        """Whole origins, in the order of their names. The end is looked at last: what is named lies before it."""
        held = {str(origin): ranges for origin, ranges in self._context.store.held(stream).items()}
        ranges, more = list[tuple[str, int, int, str, str]](), False
        for name in sorted(name for name in held if name > after_origin):
            if len(ranges) >= RANGES_ENOUGH:
                more = True
                break
            for one in held[name]:
                digests = one.first_previous_digest.hex(), one.last_digest.hex()
                ranges.append((name, one.first_sequence, one.last_sequence, *digests))
        end_offset = self._context.store.end_offset(stream)
        return DigestsAnswer(**self._context.own, stream=stream, end_offset=end_offset, ranges=ranges, more=more)
