"""FetchRange and FetchSequences: facts by where they lie, here or at their origin, for whoever keeps his own count. Nothing is registered, confirmed or waited for.

Any number of askers may read side by side, so a job that reads a year is cut into tasks, and what was read is read again. Whoever
cuts a range in the middle of a batch gets a slice of it from both sides.
"""

from __future__ import annotations

from agent.replication.protocol.messages import FetchRange, FetchSequences, RangeAnswer, SequencesAnswer, origin_named
from agent.replication.serving import sender
from agent.replication.serving.operations.context import Context, Outcome, Reply
from agent.replication.serving.page import Refuse
from agent.replication.serving.reading import PageAsked, read_sequences
from agent.replication.serving.sender import Caller, LogView


class Ranges:
    """Serves what is asked for by position."""

    def __init__(self, context: Context) -> None:
        self._context = context

    async def fetch_sequences(self, caller: Caller, request: FetchSequences) -> Outcome:
        """The page from `first_sequence` on. An asker who names his own facts wants them back: nothing is omitted."""
        context = self._context
        plan = sender.admit_sequences(request, caller.zone, context.exports[caller.zone])
        if isinstance(plan, Refuse):
            return plan
        packet_bytes_max = context.link.require().packet_bytes_max
        asked = PageAsked(plan, "", request.definitions_known, packet_bytes_max)
        read = await context.in_thread(read_sequences, context.store, origin_named(request.origin), asked)
        if isinstance(read, Refuse):
            return read
        answer = SequencesAnswer(
            **context.own,
            stream=request.stream,
            origin=request.origin,
            batches=read.entries,
            holes=read.holes,
            definitions=read.definitions,
            more=read.last_offset < request.last_sequence,
        )
        return Reply(answer, read.batches, read.facts)

    async def fetch_range(self, caller: Caller, request: FetchRange) -> Outcome:
        """The page from `first_offset` on."""
        context = self._context
        log = LogView(context.epoch, context.store.end_offset(request.stream))
        plan = sender.admit_range(request, caller.zone, context.exports[caller.zone], log)
        if isinstance(plan, Refuse):
            return plan
        packet_bytes_max = context.link.require().packet_bytes_max
        asked = PageAsked(plan, caller.zone, request.definitions_known, packet_bytes_max)
        read = await context.page(asked)
        if isinstance(read, Refuse):
            return read
        answer = RangeAnswer(
            **context.own,
            stream=request.stream,
            end_offset=read.end_offset,
            batches=read.entries,
            omitted=read.omitted,
            holes=read.holes,
            definitions=read.definitions,
            more=read.last_offset < plan.until(read.end_offset),
        )
        return Reply(answer, read.batches, read.facts)
