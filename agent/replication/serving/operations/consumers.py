"""FetchFacts, ConfirmReceipt, GetCursor and UnregisterConsumer: carries out what the consumer core decides.

A fetch that finds nothing is parked until its stream grows or its `wait_ms` have passed; a newer fetch of the same
consumer replaces it. While fetches are parked, each requester gets a heartbeat that names its own.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Mapping
from functools import partial
from typing import Any

from agent.pages import Consumer
from agent.replication.protocol.codec import encode_heartbeat
from agent.replication.protocol.messages import ConfirmReceipt, FetchFacts, GetCursor, UnregisterConsumer
from agent.replication.protocol.pacing import HEARTBEAT_MS
from agent.replication.serving import consumer_effects as effects
from agent.replication.serving.admission import Caller
from agent.replication.serving.consumer_core import ConsumerCore
from agent.replication.serving.consumer_effects import Effect, Parked, Steps, StreamState
from agent.replication.serving.operations.context import Context
from agent.replication.serving.outcomes import Outcome
from agent.replication.serving.pacing import Use
from agent.replication.serving.reading import PageQuery

_log = logging.getLogger(__name__)

REPORTED_MS = 600_000
"""Between two reports that a node has read another log. Each is a commit, and a peer repeats it with each request."""

Key = tuple[str, str]
"""Zone and consumer."""


class Consumers:
    """Serves consumers of one link's peers."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._waiters = Waiters()
        self._reported_ms: dict[str, int] = {}
        self._are_heartbeats_due = False
        self._commit_waiters = set[str]()  # nodes that wait for their next commit

    def parked(self) -> int:
        """How many fetches wait for facts."""
        return self._waiters.count()

    def committed(self, loop: asyncio.AbstractEventLoop, ends: Mapping[str, int]) -> None:
        """Streams have grown. Called in the store's writer thread."""
        if self._waiters.has_any():
            loop.call_soon_threadsafe(self._waiters.wake, dict(ends))

    async def fetch(self, caller: Caller, request: FetchFacts) -> Outcome:
        """FetchFacts. Raises the store's errors."""
        return await self._run(self._core(caller).fetch(request, self._context.now_ms()))

    async def confirm(self, caller: Caller, request: ConfirmReceipt) -> Outcome:
        """ConfirmReceipt. Raises the store's errors."""
        return await self._run(self._core(caller).confirm(request))

    async def get_cursor(self, caller: Caller, request: GetCursor) -> Outcome:
        """GetCursor."""
        return await self._run(self._core(caller).get_cursor(request))

    async def unregister(self, caller: Caller, request: UnregisterConsumer) -> Outcome:
        """UnregisterConsumer. Raises the store's errors."""
        return await self._run(self._core(caller).unregister(request))

    # --------------------------------------------------------------------------------------------------------- internal

    def _core(self, caller: Caller) -> ConsumerCore:
        return ConsumerCore(caller, self._context.exports[caller.node], self._context.store_name)

    async def _run(self, steps: Steps) -> Outcome:
        """Carry out one effect after another until the core says how the request ends."""
        result: Any = None
        while True:
            try:
                effect = steps.send(result)
            except StopIteration as over:
                outcome: Outcome = over.value
                return outcome
            result = await self._carry_out(effect)

    async def _carry_out(self, effect: Effect[Any]) -> Any:
        """The result of an effect. The effects of every fetch come first. Raises the store's errors."""
        context, store = self._context, self._context.store
        match effect:
            case effects.FindConsumer(name):
                return store.consumers.get(name)
            case effects.GetStreamState(stream, node):
                return StreamState(store.log(stream), self._waiters.count(node), context.now_ms())
            case effects.Resolve(stream, node, positions):
                return await context.resolve(node, stream, positions)
            case effects.ReadPage(plan, node, signers, held):
                query = PageQuery(plan, context.held_by(node, held), context.packet_bytes_max, signers)
                return await context.page(node, query)
            case effects.NoteServed(name, is_at_end):
                return store.consumers.seen(name, is_at_end=is_at_end)
            case effects.Park():
                return await self._park(effect)
            case effects.StartConfirm():
                return self._start_confirm(effect)
            case effects.AwaitConfirm(confirming, node):
                if not confirming.done():
                    self._commit_awaited(node)
                return await confirming
            case effects.CheckConfirm(confirming):
                return confirming.result() if confirming.done() else None
            case effects.ReportRestored(node, why):
                if self._is_due(node):
                    _log.warning("peer_read_more", extra={"peer": node, "reason": why})
                    store.peer_reads_more(node, why)
                return None
            case effects.RegisterConsumer():
                return await self._register(effect)
            case effects.Unregister(name, node, claim):
                context.changed(node)
                was_registered = await context.wrap(store.consumers.unregister(name, node, claim))
                self._waiters.supersede((node, name))
                _log.info("consumer_unregistered", extra={"consumer": name, "peer": node})
                return was_registered
            case effects.HoldLease(name, node, claim):
                context.changed(node)
                return await context.wrap(store.consumers.hold_lease(name, claim))
            case effects.AnnounceLease(name, node, before, lease):
                was = {"lease_before": before.epoch, "lease": lease.epoch, "instance": lease.holder}
                _log.info("lease_taken", extra={"consumer": name, "peer": node, **was})
                return self._waiters.supersede((node, name))  # the parked instance asks again and is fenced
        raise AssertionError(effect)

    def _is_due(self, node: str) -> bool:
        """Whether a report about a node is due: the last one was made long enough ago."""
        now_ms = self._context.now_ms()
        is_due = now_ms - self._reported_ms.get(node, -REPORTED_MS) >= REPORTED_MS
        if is_due:
            self._reported_ms[node] = now_ms
        return is_due

    async def _register(self, effect: effects.RegisterConsumer) -> Consumer:
        self._context.changed(effect.node)
        zone_max = self._context.limits_of(effect.node).consumers_max
        registering = self._context.store.consumers.register(
            effect.name, effect.node, effect.stream, effect.start, zone_max=zone_max
        )
        consumer = await self._context.wrap(registering)
        fields = {"consumer": effect.name, "peer": effect.node, "stream": effect.stream}
        _log.info("consumer_registered", extra=fields)
        return consumer

    def _start_confirm(self, effect: effects.StartConfirm) -> asyncio.Future[int]:
        confirm = effect.confirm
        confirming = self._context.wrap(
            self._context.store.consumers.confirm(
                effect.name,
                confirm.last_offset,
                confirm.first_offset,
                claim=effect.claim,
                life=bytes.fromhex(confirm.life),
                digest=bytes.fromhex(confirm.digest),
                is_awaited=False,
            )
        )
        confirming.add_done_callback(_take_exception)
        return confirming

    def _commit_awaited(self, node: str) -> None:
        """Commit the awaited confirmations at once, at a limited rate for each node; its further confirmations share
        the next commit."""
        context, now_ms = self._context, self._context.now_ms()
        at_ms = context.pacer.ready_ms(Use.CONFIRMS, node, now_ms)
        if at_ms <= now_ms:
            context.pacer.spend(Use.CONFIRMS, node, 1, now_ms)
            context.store.consumers.commit_deferred()
        elif node not in self._commit_waiters:
            self._commit_waiters.add(node)
            context.call_later((at_ms - now_ms) / 1000, partial(self._commit_awaited_later, node))

    def _commit_awaited_later(self, node: str) -> None:
        self._commit_waiters.remove(node)
        self._commit_awaited(node)

    async def _park(self, effect: effects.Park) -> Parked:
        context, store, waiters = self._context, self._context.store, self._waiters
        key, began_ns = (effect.node, effect.name), context.now_ns()
        wait_ms = max(0, effect.until_ms - began_ns // 1_000_000)
        store.consumers.seen(effect.name, is_at_end=True, waits_ms=wait_ms)
        ended = context.future()
        waiters.add(key, effect, ended)
        self._begin_heartbeats()
        # The log may have grown since the core looked, when the writer saw no fetch to wake.
        if store.end_offset(effect.stream) > effect.after_offset:
            end_wait(ended)
        cancel = context.call_later(wait_ms / 1000, partial(end_wait, ended))
        try:
            is_superseded = await ended
        finally:
            cancel()
            waiters.remove(key, ended)
        return Parked(is_superseded, context.now_ns() - began_ns)

    def _begin_heartbeats(self) -> None:
        if not self._are_heartbeats_due:
            self._are_heartbeats_due = True
            self._context.call_later(HEARTBEAT_MS / 1000, self._send_heartbeats)

    def _send_heartbeats(self) -> None:
        """Name the parked fetches to their requesters: one message to each, however many streams it reads."""
        for (node, answer_to), correlations in self._waiters.requesters().items():
            self._context.send(node, answer_to, encode_heartbeat(correlations), b"")
        self._are_heartbeats_due = False
        if self._waiters.has_any():
            self._begin_heartbeats()


class Waiters:
    """The parked fetches of one server. Used only in the event loop's thread.

    A consumer has one parked fetch: a newer fetch supersedes an earlier one, which then ends without an answer. The
    result of its wait is True. `admission` decides how many fetches may wait.
    """

    def __init__(self) -> None:
        self._waits: dict[Key, tuple[effects.Park, asyncio.Future[bool]]] = {}
        self._by_node: Counter[str] = Counter()

    def count(self, node: str | None = None) -> int:
        """How many wait, in all or of one node."""
        return len(self._waits) if node is None else self._by_node[node]

    def has_any(self) -> bool:
        """Whether any fetch waits. May be called from any thread."""
        return bool(self._waits)

    def requesters(self) -> dict[tuple[str, str], list[bytes]]:
        """The correlations of the parked fetches, by node and the topic of its answers."""
        found = dict[tuple[str, str], list[bytes]]()
        for park, _ in self._waits.values():
            found.setdefault((park.node, park.answer_to), []).append(park.correlation)
        return found

    def add(self, key: Key, park: effects.Park, ended: asyncio.Future[bool]) -> None:
        """Park a fetch; `ended` is resolved when the wait is over."""
        self.supersede(key)
        self._waits[key] = park, ended
        self._by_node[key[0]] += 1

    def wake(self, ends: Mapping[str, int]) -> None:
        """End the waits for these streams, which have grown."""
        for park, ended in self._waits.values():
            if park.stream in ends:
                end_wait(ended)

    def supersede(self, key: Key) -> None:
        """End an earlier wait of this consumer without an answer: a newer fetch, or another instance, has come."""
        if (wait := self._waits.get(key)) is not None:
            end_wait(wait[1], is_superseded=True)
            self.remove(key, wait[1])

    def remove(self, key: Key, ended: asyncio.Future[bool]) -> None:
        """Remove a wait, unless another has replaced it."""
        if key in self._waits and self._waits[key][1] is ended:
            del self._waits[key]
            self._by_node[key[0]] -= 1


def end_wait(ended: asyncio.Future[bool], *, is_superseded: bool = False) -> None:
    """Resolve a wait once."""
    if not ended.done():
        ended.set_result(is_superseded)


def _take_exception(confirming: asyncio.Future[int]) -> None:
    """A confirmation is not awaited if the page fails before."""
    if not confirming.cancelled():
        confirming.exception()
