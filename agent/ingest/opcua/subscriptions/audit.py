"""Reads some items now and then to find out whether the server still publishes their changes.

A server may stop sampling one item or all, while its connection, its keep-alives and its clock continue. Some do not
report that the node of an item was deleted (asyncua, gopcua, open62541 with sampling 0). If a Read gives a value that
the item should have published, the item is suspect. If it still has not published when sampling and publishing should
be done, the item is dead, and the values since its last sign of life are lost. Tags that this user may not read are
read in each round, because their items may not report when that changes.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any, NamedTuple

from agent.ingest import quality
from agent.ingest.completeness import Moment
from agent.ingest.errors import SourceLost
from agent.ingest.opcua.address import TagPoint
from agent.ingest.opcua.decode import DataChange, DecodeError
from agent.ingest.opcua.session import TOO_LARGE_STATUSES, CallTooLarge, OpcuaSession, read_in_parts
from agent.ingest.opcua.subscriptions.monitoring import Monitoring, Trigger
from agent.ingest.opcua.subscriptions.subscription import Subscription
from agent.ingest.sampling import Sampler
from agent.message import Json, Value

NODES_MAX = 50  # of one Read; the next one continues
BYTES_MAX = 20_000  # of one Read, by the published values: some seconds of a slow line. A single value may have more
ROUNDING = 1.001  # of a deadband: a server may compute in single precision
ARRIVES_S = 2.0  # plus some sampling and publishing intervals, until a value has arrived


class Findings(NamedTuple):
    """Tags whose node does not exist any more, with the status; tags whose item does not publish; and the last sign of
    life of each."""

    gone: dict[int, int]
    dead: list[int]
    since: dict[int, Moment]


_NOTHING = Findings({}, [], {})
_TOO_LARGE = TOO_LARGE_STATUSES | {quality.BAD_ENCODING_LIMITS_EXCEEDED}  # of a value; some servers give the former


class _Suspicion(NamedTuple):
    """The item of a tag, its last published value, and the status and source time (0: none) of the different value that
    was read."""

    item: int | None
    published: tuple[int, Value]
    status: int
    read_ns: int


@dataclass(slots=True)
class _AuditState:
    """The state of the audit of a subscription."""

    due_s: float
    asked: Moment  # the time before the suspects were read
    place: int = 0
    rounds: int = 0
    suspects: dict[int, _Suspicion] = field(default_factory=dict)


class Audit:
    """The audits of one session. `now` gives a time on the server's clock that is not later than the present."""

    def __init__(self, session: OpcuaSession, sampler: Sampler, nodes_per_read: int, now: Callable[[], Moment]) -> None:
        self._session, self._sampler, self._now = session, sampler, now
        self._count = self._count_max = min(NODES_MAX, nodes_per_read or NODES_MAX)
        self._states: dict[int, _AuditState] = {}
        self._alive: dict[int, Moment] = {}  # by tag: everything up to this time is published; bounded by the tags

    async def check(self, subscription: Subscription, points: Mapping[int, TagPoint]) -> Findings:
        """Read items of a subscription if that is due. Raises SourceLost if the server does not publish any more and
        has no monitored clock that would show it."""
        now_s = time.monotonic()
        state = self._states.setdefault(subscription.id, _AuditState(now_s + subscription.silence_max_s, self._now()))
        if now_s < state.due_s:
            return _NOTHING
        suspects, state.suspects, state.due_s = state.suspects, {}, now_s + subscription.silence_max_s
        if not suspects:
            state.asked = self._now()
            state.suspects = await self._differing(subscription, self._next_tags(subscription, state, points), points)
            sampling_ms = max((subscription.sampling_ms(tag, points[tag]) for tag in state.suspects), default=0.0)
            if state.suspects:
                state.due_s = time.monotonic() + ARRIVES_S + (2 * sampling_ms + 3 * subscription.publishing_ms) / 1000
            return _NOTHING
        still = []
        for tag, suspicion in suspects.items():
            published = self._sampler.last(tag)[1:3]
            if published == suspicion.published:
                still.append(tag)
            elif 0 < suspicion.read_ns <= published[0]:  # the value that was read has been published since
                self._alive[tag] = state.asked
        live = subscription.plan.live
        found = await self._differing(subscription, [tag for tag in still if tag in points and tag in live], points)
        # An item that was created again meanwhile may be about to publish.
        found = {tag: again for tag, again in found.items() if again.item == suspects[tag].item}
        gone = {tag: suspicion.status for tag, suspicion in found.items() if quality.is_bad(suspicion.status)}
        dead = [tag for tag in found if tag not in gone]
        silent_s = now_s - subscription.liveness.proven_s
        if dead and not subscription.liveness.has_clock and silent_s > subscription.silence_max_s:
            raise SourceLost(
                f"the server answers, but it has published no value for {silent_s:.0f} s, and a Read shows others"
            )
        return Findings(gone, dead, {tag: self.last_life(subscription, tag) for tag in found})

    def last_life(self, subscription: Subscription, tag: int) -> Moment:
        """The time up to which everything of an item was published, by a Read or by its last value."""
        now, since = self._now(), self._alive.get(tag, subscription.opened)
        published_ns = self._sampler.last(tag).source_time_ns
        if since.set_back_ns == now.set_back_ns and since.time_ns < published_ns <= now.time_ns:
            since = Moment(published_ns, now.set_back_ns)
        return since

    async def too_large(self, subscription: Subscription, points: Mapping[int, TagPoint]) -> list[int]:
        """The tags of a subscription whose value is too large for a fact, or even for an answer, which is found by
        Reads of fewer and fewer nodes."""
        tags = [tag for tag in sorted(subscription.plan.live) if tag in points]
        readings = [points[tag].reading for tag in tags]
        try:
            namespaces = await self._session.namespaces()
            values, _ = await read_in_parts(self._session, readings, namespaces, self._count_max)
        except SourceLost:
            return []  # proves nothing; a lost session is noticed elsewhere
        return [tag for tag, value in zip(tags, values, strict=True) if value.quality & quality.CODE_BITS in _TOO_LARGE]

    def _next_tags(self, subscription: Subscription, state: _AuditState, points: Mapping[int, TagPoint]) -> list[int]:
        """The tags to read in this round: first some of the denied ones, which the server may allow at any time, then
        the next live ones."""
        subscription.denied = {
            tag for tag in subscription.denied & subscription.plan.live if self._sampler.last(tag).value is None
        }
        waiting = [tag for tag in sorted(subscription.denied) if tag in points]
        start = state.rounds * (self._count // 2) % max(1, len(waiting))
        waiting, state.rounds = (waiting[start:] + waiting[:start])[: self._count // 2], state.rounds + 1
        able = [tag for tag in sorted(subscription.plan.live.difference(waiting)) if tag in points]
        part = self._within_bytes(able[state.place : state.place + self._count - len(waiting)])
        state.place += len(part)
        if state.place >= len(able):
            state.place = 0
        return waiting + part

    def _within_bytes(self, tags: list[int]) -> list[int]:
        """The first of these tags, as many as fit into BYTES_MAX, and at least one."""
        sizes = accumulate(map(self._size, tags))
        return [
            tag for place, (tag, size) in enumerate(zip(tags, sizes, strict=True)) if size <= BYTES_MAX or not place
        ]

    def _size(self, tag: int) -> int:
        """The approximate number of bytes of a value."""
        last = self._sampler.last(tag)
        value = last.value
        if last.quality == quality.BAD_ENCODING_LIMITS_EXCEEDED:
            return BYTES_MAX  # it was too large for a fact
        if isinstance(value, Json):
            return len(value.data)
        return len(value) if isinstance(value, str | bytes) else 8

    async def _differing(
        self, subscription: Subscription, tags: list[int], points: Mapping[int, TagPoint]
    ) -> dict[int, _Suspicion]:
        """The tags among these whose node does not exist, or whose value should have been published. The same value
        with the same source time is a sign of life."""
        if not tags:
            return {}
        asked = self._now()
        try:
            namespaces = await self._session.namespaces()
            found = await self._session.read_values([points[tag].reading for tag in tags], namespaces)
        except DecodeError:
            return {}  # proves nothing
        except (CallTooLarge, SourceLost):  # a lost session is noticed elsewhere
            self._count = max(1, min(self._count, len(tags)) // 2)
            return {}
        self._count = min(self._count + 1, self._count_max)
        suspects: dict[int, _Suspicion] = {}
        for tag, change in zip(tags, found, strict=True):
            published = self._sampler.last(tag)[1:3]
            if change.quality & quality.CODE_BITS in quality.GONE or is_missed(
                self._sampler, tag, change, points[tag].monitoring
            ):
                suspects[tag] = _Suspicion(
                    subscription.plan.item(tag), published, change.quality, change.source_time_ns
                )
            elif _is_same(change.value, published[1]) and 0 < change.source_time_ns == published[0]:
                self._alive[tag] = asked
        return suspects


def is_missed(sampler: Sampler, tag: int, change: DataChange, monitoring: Monitoring) -> bool:
    """Whether an item should have published this value after its last one. A bad status does not count, because it may
    concern the Read only."""
    if quality.is_bad(change.quality):
        return False
    if monitoring.trigger is Trigger.STATUS:
        return (change.quality ^ sampler.last(tag).quality) & quality.CODE_BITS != 0
    published = sampler.last(tag).value
    if monitoring.deadband and monitoring.deadband_is_percent and published is not None:
        return False  # percent of a range that only the server knows
    return _has_moved(change.value, published, monitoring.deadband)


def _has_moved(value: Any, published: Any, deadband: float) -> bool:
    """Whether a value differs from the published one; numbers, also in arrays, by more than the deadband."""
    if not deadband or _is_same(value, published):
        return not _is_same(value, published)
    if isinstance(value, Json) and isinstance(published, Json):
        value, published = json.loads(value.data), json.loads(published.data)
    if isinstance(value, list) and isinstance(published, list) and len(value) == len(published):
        return any(map(_has_moved, value, published, [deadband] * len(value)))
    if isinstance(value, int | float) and isinstance(published, int | float):
        return abs(value - published) > deadband * ROUNDING
    return not _is_same(value, published)


def _is_same(left: Any, right: Any) -> bool:
    return bool(left == right or (left != left and right != right))  # noqa: PLR0124 only NaN differs from itself
