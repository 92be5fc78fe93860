"""The serving side of a node: the product's own server, from the arrival of a request to the bytes of its answer.

`Server` and its operations run unchanged. What stands in the place of asyncio is `SteppedContext`:
the clock is the world's, a thread is a call, and a coroutine that waits goes on with an event of its node. A `Carrier`
stands in the place of the broker.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Coroutine, Generator
from concurrent.futures import Future
from functools import partial
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import pytest

from agent.lease import Lease, LeaseClaim
from agent.replication.mqtt.carrier import Incoming
from agent.replication.protocol.codec import decode_answer, decode_heartbeat, decode_request
from agent.replication.protocol.errors import MalformedMessage
from agent.replication.protocol.messages import FetchAnswer, FetchFacts, Request
from agent.replication.protocol.topics import request_topic, response_topic
from agent.replication.serving import server
from agent.replication.serving.admission import PeerRights
from agent.replication.serving.operations.context import Context
from agent.signing.messages import split_answer
from tests.replication.simulation.checkers import STREAM
from tests.replication.simulation.trust import zone_of

if TYPE_CHECKING:
    from tests.replication.simulation.node import Node

PACKET_BYTES_MAX = 16 * 1024
EXPIRY_S = 60

Send = Callable[[bytes], None]
T = TypeVar("T")


class Pending(Future[T]):
    """A future that can be awaited: the coroutine yields it to `Serving._step`."""

    def __await__(self) -> Generator[Future[T], None, T]:
        if not self.done():
            yield self
        return self.result()


class SteppedContext(Context):
    """Waits for the world's events."""

    @property
    def node(self) -> Node:
        return self.answers._link.node  # type: ignore[attr-defined]

    def now_ns(self) -> int:
        return self.node.world.now_ms * 1_000_000

    def cpu_ns(self) -> int:
        return 0  # else two runs of a seed would differ

    def wrap(self, future: Future[T]) -> Any:
        pending = Pending[T]()
        future.add_done_callback(partial(_resolve, pending))
        return pending

    def future(self) -> Any:
        return Pending[bool]()

    def call_later(self, delay_s: float, callback: Callable[[], object]) -> Callable[[], None]:
        is_cancelled = False

        def act() -> None:
            if not is_cancelled:
                callback()

        def cancel() -> None:
            nonlocal is_cancelled
            is_cancelled = True

        self.node.after(round(delay_s * 1000), act)
        return cancel

    async def in_executor(self, call: Callable[..., T], *arguments: object) -> T:
        return call(*arguments)


def install(patch: pytest.MonkeyPatch) -> None:
    """Have servers made from now on wait for the world's events."""
    patch.setattr(server, "Context", SteppedContext)


class Asked(NamedTuple):
    """A request, and the node's life that sent it."""

    requester: Node
    instance: str
    request: Request | None


class Serving:
    """One life of the serving side. It is the carrier, the task group and the event loop of its server."""

    def __init__(self, node: Node) -> None:
        self.node = node
        self.now = Asked(node, "", None)
        """The request of the coroutine that is being stepped."""
        self._answers: dict[bytes, Send] = {}
        self._heartbeats: dict[bytes, Callable[[], None]] = {}
        self._streams: dict[bytes, str] = {}
        self._arrived: dict[str, Callable[[Incoming], None]] = {}
        self._asked = self.now
        exports = frozenset(node.world.streams)
        peers = {zone: PeerRights(exports, zones=frozenset({zone, zone_of(zone)})) for zone in node.world.zones}
        carrier: Any = SimpleNamespace(node=node, route=self._arrived.__setitem__, require=lambda: self)
        store: Any = WatchedStore(self)
        self.server = server.Server(carrier, store, peers)
        self.server._group = self  # type: ignore[assignment]
        node.running.on_commit(partial(self.server._consumers.committed, self))  # type: ignore[arg-type]

    def request(
        self,
        requester: Node,
        instance: str,
        payload: bytes,
        correlation: bytes,
        send: Send,
        on_heartbeat: Callable[[], None] = lambda: None,
    ) -> None:
        """A request of `requester` has arrived, of the life that `instance` names."""
        zone = self.node.zone
        self._answers[correlation], self._heartbeats[correlation] = send, on_heartbeat
        self._asked = Asked(requester, instance, _decoded(payload))
        self._streams[correlation] = getattr(self._asked.request, "stream", STREAM)
        topic, answer_to = request_topic(zone, requester.zone), response_topic(zone, requester.zone, instance)
        self._arrived[topic](Incoming(topic, payload, answer_to, correlation, EXPIRY_S, is_retained=False))

    # --- as a connection

    packet_bytes_max = PACKET_BYTES_MAX
    outgoing_bytes = 0

    def publish_answer(self, _topic: str, payload: bytes, correlation: bytes) -> None:
        if not correlation:
            for named in decode_heartbeat(payload):
                self._heartbeats[named]()
            return
        with contextlib.suppress(MalformedMessage):  # from a server broken on purpose; the receiver refuses the page
            answer, _ = decode_answer(split_answer(payload)[0])
            if isinstance(answer, FetchAnswer) and self._streams[correlation] == STREAM:
                self.node.world.check.holes_announced(self.node, answer.holes)
        self._answers[correlation](payload)

    # --- as a task group and an event loop

    def create_task(self, coroutine: Coroutine[Any, Any, None], *, name: str) -> None:  # noqa: ARG002
        self._step(coroutine, self._asked)

    def _step(self, coroutine: Coroutine[Any, Any, None], asked: Asked) -> None:
        self.now = asked
        try:
            waits_for = coroutine.send(None)
        except StopIteration:
            return
        waits_for.add_done_callback(lambda _: self.node.soon(partial(self._step, coroutine, asked)))

    def call_soon_threadsafe(self, callback: Callable[..., None], *arguments: object) -> None:
        self.node.soon(partial(callback, *arguments))


class WatchedStore:
    """The node's store, with its consumers watched."""

    def __init__(self, serving: Serving) -> None:
        self._store = serving.node.running
        self.consumers = WatchedConsumers(serving)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)


class WatchedConsumers:
    """The consumers of the node's store; the checkers see the leases and confirmations that its server requests."""

    def __init__(self, serving: Serving) -> None:
        self._serving = serving
        self._consumers = serving.node.running.consumers

    def __getattr__(self, name: str) -> Any:
        return getattr(self._consumers, name)

    def hold_lease(self, consumer: str, claim: LeaseClaim) -> Future[Lease]:
        holding, node = self._consumers.hold_lease(consumer, claim), self._serving.node

        def leased(future: Future[Lease]) -> None:
            if future.exception() is None:
                node.world.check.lease_held(node, consumer, future.result())

        holding.add_done_callback(leased)
        return holding

    def confirm(
        self,
        consumer: str,
        last_offset: int,
        first_offset: int | None = None,
        *,
        claim: LeaseClaim | None = None,
        life: bytes | None = None,
        digest: bytes = b"",
        is_awaited: bool = True,
    ) -> Future[int]:
        (requester, instance, request), node = self._serving.now, self._serving.node
        assert isinstance(request, FetchFacts)
        check = node.world.check
        assert life is not None
        check.confirmation_arrived(requester, node, request.stream or STREAM, life, last_offset)

        def confirmed(future: Future[int]) -> None:
            if future.exception() is None:
                check.confirmation_durable(node, consumer, instance, request.lease)

        confirming = self._consumers.confirm(
            consumer, last_offset, first_offset, claim=claim, life=life, digest=digest, is_awaited=is_awaited
        )
        confirming.add_done_callback(confirmed)
        return confirming


def _resolve(pending: Pending[T], future: Future[T]) -> None:
    if (error := future.exception()) is not None:
        pending.set_exception(error)
    else:
        pending.set_result(future.result())


def _decoded(payload: bytes) -> Request | None:
    try:
        return decode_request(payload)
    except MalformedMessage:
        return None
