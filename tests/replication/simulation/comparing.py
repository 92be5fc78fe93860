"""Anti-entropy of a node, as `agent.replication.pulling.anti_entropy` does it: the product's own coroutines, stepped by
the world's events.

`AntiEntropy` requests, decides and repairs; the peer's server answers (`serving`). Where they wait for a message or a
commit they are suspended until its event. `steps` replaces asyncio.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from contextlib import suppress
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, TypeVar

import pytest

from agent.errors import StoreError
from agent.replication.mqtt.requester import PeerReply, peer_refused
from agent.replication.protocol.codec import ArrivedAnswer, encode_request
from agent.replication.protocol.errors import ReplicationError, TransportError
from agent.replication.protocol.messages import ErrorAnswer, Request
from agent.replication.pulling import anti_entropy, artifact_pull, definition_pull
from agent.replication.pulling.anti_entropy import AntiEntropy, AntiEntropySettings
from agent.replication.pulling.comparing import differences, repair
from agent.signing.messages import MessagePlace
from tests.replication.simulation.steps import Waiting, run
from tests.replication.simulation.trust import PAIR, zone_of

if TYPE_CHECKING:
    from tests.replication.simulation.pulling import Pull

PAGE_BYTES_MAX = 1_500
"""A handful of the batches made here, so that a backlog is many pages."""

T = TypeVar("T")


class _Lock:
    """A lock: only one comparison begins at a time."""

    async def __aenter__(self) -> None:
        """Acquire it; it is free."""

    async def __aexit__(self, *_: object) -> None:
        """Release it."""


async def _at_once(call: Callable[..., T], *arguments: object, **named: object) -> T:
    """Call at once instead of in a thread."""
    return call(*arguments, **named)


steps = SimpleNamespace(
    Lock=_Lock, CancelledError=asyncio.CancelledError, wrap_future=Waiting, to_thread=_at_once, Task=asyncio.Task
)
"""What the coroutines need of asyncio."""


def install(patch: pytest.MonkeyPatch) -> None:
    """Let the product's coroutines wait for the world's events."""
    for module in (anti_entropy, differences, repair, artifact_pull, definition_pull):
        patch.setattr(module, "asyncio", steps)


class Comparing:
    """The comparisons of a node with one peer, one at a time."""

    def __init__(self, pull: Pull) -> None:
        self._pull = pull
        self._running: Coroutine[Future[Any], None, None] | None = None

    def stop(self) -> None:
        """This life of the node has ended."""
        if self._running is not None:
            self._running.close()
        self._running = None

    def begin(self) -> bool:
        """Compare and repair, unless a comparison runs already; False then."""
        node = self._pull.node
        if not node.is_up or self._running is not None:
            return False
        peer = self._pull.peer.zone
        origins = node.world.origins - node.running.own_zones | {peer, zone_of(peer)}
        settings = AntiEntropySettings(
            peer, (self._pull.stream,), origins, every_hours=0, pair_zones=frozenset(PAIR.values())
        )
        requester: Any = PeerRequester(self._pull)
        comparer = AntiEntropy(requester, node.running, settings, judge=node.judge)
        self._running = self._compare(comparer)
        run(self._running, node.soon)
        return True

    async def _compare(self, comparer: AntiEntropy) -> None:
        with suppress(ReplicationError, StoreError):  # the next one restarts
            found = await comparer.compare(self._pull.stream, repair=True, scan=True)
            self._pull.node.world.injected["repaired"] += found.repaired_ranges
        self._running = None


class PeerRequester:
    """A requester over the world's network, with a time-out."""

    def __init__(self, pull: Pull) -> None:
        self._pull = pull
        self.peer_node = pull.peer.zone

    def page_bytes(self, bytes_max: int) -> int:
        return min(bytes_max, PAGE_BYTES_MAX)

    def pages_ahead(self, _: int, pages_max: int) -> int:
        return pages_max

    async def ask(self, request: Request, timeout_s: float) -> PeerReply:
        """As `Requester.ask`."""
        node, peer, world = self._pull.node, self._pull.peer, self._pull.node.world
        payload, life, answered = encode_request(request), node.life, Future[bytes]()
        place = MessagePlace(peer.zone, node.zone, node.instance, world.correlation())

        def answer(sent: bytes) -> None:
            passed_on = sent if world.broker is None else world.broker.passed_on(place, sent)
            world.carry(peer, node, lambda: arrived(passed_on))

        def arrived(sent: bytes) -> None:
            if life == node.life and node.is_up and not answered.done():
                answered.set_result(sent)

        def give_up() -> None:
            if life == node.life and not answered.done():  # the tasks of an earlier life have ended with it
                answered.set_exception(TransportError(self.peer_node, "no answer", ""))

        def arrive() -> None:
            if peer.serving is not None:
                peer.serving.request(node, place.instance, payload, place.correlation, answer)

        world.carry(node, peer, arrive)
        node.after(int(timeout_s * 1000), give_up)
        sent = await Waiting(answered)
        found, batches = ArrivedAnswer(sent, place, node.judge.messages.refuses_answer).open()
        if isinstance(found, ErrorAnswer):
            raise peer_refused(self.peer_node, found)
        return PeerReply(found, batches, len(sent))
