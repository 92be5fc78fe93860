"""ListStreams, GetBounds and GetDigests: which streams a zone may read, and what they hold.

Digests let another store be compared with this one without a fact being sent: batches form a chain, so two stores with
the same digest at one sequence have the same history before it. All of it comes from indexes, and costs nothing for
zones and lives that are not asked for.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from itertools import accumulate

from agent.batch import Origin
from agent.pages import HeldRange, HeldSum, ZoneHeld
from agent.positions import Position
from agent.replication.protocol.digest_diff import spread
from agent.replication.protocol.messages import (
    BoundsAnswer,
    DigestsAnswer,
    GetBounds,
    GetDigests,
    ListStreams,
    LogPosition,
    StreamEntry,
    StreamsAnswer,
    origin_named,
)
from agent.replication.serving.admission import Caller, not_exported
from agent.replication.serving.operations.context import Context
from agent.replication.serving.outcomes import Outcome, Reply

RANGES_PER_ANSWER, ZONES_AT_ONCE = 1000, 100
"""An answer with this many ranges begins no further life and no further hundred of zones."""


async def list_streams(context: Context, caller: Caller, _: ListStreams) -> Outcome:
    """Every stream exported to the caller, by name."""
    unix_ms = time.time_ns() // 1_000_000
    return Reply(StreamsAnswer(**context.store_name, streams=_exported(context, caller), unix_ms=unix_ms), [])


async def get_bounds(context: Context, caller: Caller, request: GetBounds) -> Outcome:
    """First and last offset of one stream."""
    for entry in _exported(context, caller):
        if entry.name == request.stream:
            first, end = entry.first_offset, entry.end_offset
            resolved = None
            if request.position is not None:
                ((named, here),) = await context.resolve(caller.node, entry.name, [request.position.position])
                resolved = None if here.how == "unknown" else LogPosition.of(Position(named.life, here.offset))
            answer = BoundsAnswer(
                **context.store_name,
                stream=entry.name,
                first_offset=first,
                end_offset=end,
                end_life=context.store.log(entry.name).at(end).hex(),
                resolved=resolved,
            )
            return Reply(answer, [])
    return not_exported(request.stream, caller.node)


def _exported(context: Context, caller: Caller) -> list[StreamEntry]:
    """A stream that is exported but holds nothing yet is listed as empty."""
    bounds = {stream.name: stream for stream in context.store.streams()}
    entries = []
    for name in sorted(context.peers[caller.node].exports):
        stream = bounds.get(name)
        first, end = (stream.first_offset, stream.end_offset) if stream is not None else (1, 0)
        entries.append(StreamEntry(name=name, first_offset=max(first, 1), end_offset=end))
    return entries


async def get_digests(context: Context, caller: Caller, request: GetDigests) -> Outcome:
    """Digests of what is held, or of batches in a range."""
    stream = request.stream
    if stream not in context.peers[caller.node].exports:
        return not_exported(stream, caller.node)
    if refusal := await context.refuse_position(caller.node, stream, request.position):
        return refusal
    if request.origin is None or request.first_sequence is None or request.last_sequence is None:
        if request.zone is None or request.below is None:
            return Reply(await context.in_turn(caller.node, _zones, context, stream, request.after_zone or ""), [])
        span = bytes.fromhex(request.below), bytes.fromhex(request.down_to or "")
        return Reply(await context.in_turn(caller.node, _lives, context, stream, request.zone, *span), [])
    targets = spread(request.first_sequence, request.last_sequence, request.ends_max)
    origin = origin_named(request.origin)
    found = await context.in_thread(caller.node, context.store.reader.batch_ends, stream, origin, targets)
    ends = [(held.last_sequence, held.digest.hex()) for held in found if held.last_sequence <= request.last_sequence]
    end = context.store.log(stream).end
    named = DigestsAnswer(
        **context.store_name, stream=stream, end_offset=end.offset, end_life=end.life.hex(), ends=ends
    )
    return Reply(named, [])


def _zones(context: Context, stream: str, after_zone: str) -> DigestsAnswer:
    """What is held of zones, in the order of their names."""
    found, after, more = list[ZoneHeld](), after_zone, True
    while more and sum(len(held.ranges) for held in found) < RANGES_PER_ANSWER:
        some = context.store.reader.zones_held(stream, after, ZONES_AT_ONCE)
        found += some
        more = len(some) == ZONES_AT_ONCE
        after = some[-1].newest.zone if some else after
    totals = accumulate(len(held.ranges) for held in found)
    fitting = [held for held, total in zip(found, totals, strict=True) if total <= RANGES_PER_ANSWER] or found[:1]
    ranges, more = {held.newest: held.ranges for held in fitting}, more or len(fitting) < len(found)
    return _answer(context, stream, ranges, [(held.newest.zone, held.before) for held in fitting], more=more)


def _lives(context: Context, stream: str, zone: str, below: bytes, down_to: bytes) -> DigestsAnswer:
    """What is held of lives of a zone, from one downwards."""
    ranges = context.store.reader.earlier_lives(stream, zone, below, RANGES_PER_ANSWER, down_to)
    lowest = min((origin.life for origin in ranges), default=below)
    return _answer(context, stream, ranges, [(zone, context.store.reader.held_below(stream, zone, lowest)[0])])


def _answer(
    context: Context,
    stream: str,
    held: Mapping[Origin, Sequence[HeldRange]],
    before: Sequence[tuple[str, HeldSum]],
    *,
    more: bool = False,
) -> DigestsAnswer:
    """The end is read last, so every range is before it."""
    ranges = [
        (str(origin), part.first_sequence, part.last_sequence, part.first_previous_digest.hex(), part.last_digest.hex())
        for origin, those in sorted(held.items(), key=lambda of: str(of[0]))
        for part in those
    ]
    sums = [(zone, total.ranges, total.digest_hex) for zone, total in before]
    end = context.store.log(stream).end
    return DigestsAnswer(
        **context.store_name,
        stream=stream,
        end_offset=end.offset,
        end_life=end.life.hex(),
        ranges=ranges,
        before=sums,
        more=more,
    )
