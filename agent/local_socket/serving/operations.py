"""The operations of the replication protocol for programs of this machine: the handlers that serve peers, for the
caller `local`, who may read and append to every stream.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from collections.abc import Set as AbstractSet
from functools import partial

from agent.fact_store import FactStore
from agent.local_socket.client import LocalReply
from agent.local_socket.transport import ANSWER_BYTES_MAX
from agent.message import LOCAL_ZONE
from agent.replication.protocol.messages import FetchFacts, Request
from agent.replication.serving import Caller, Consumers, Context, Drop, LookUp, PeerRights, Refuse, handlers
from agent.settings.peers import PeerLimits

LIMITS = PeerLimits(consumers_max=10_000, requests_per_second_max=1_000_000)


class EveryStream(AbstractSet[str]):
    """All streams: those that the store has, and any that a first fact may begin."""

    def __init__(self, store: FactStore) -> None:
        self._store = store

    def __contains__(self, _: object) -> bool:
        return True

    def __iter__(self) -> Iterator[str]:
        return iter([stream.name for stream in self._store.streams()])

    def __len__(self) -> int:
        return len(self._store.streams())

    def __bool__(self) -> bool:
        return True


class _Socket:
    """The socket as a carrier. Answers are returned to it (`LocalOperations.answer`); what else a server sends, the
    heartbeats of waiting fetches, is dropped, because a broken socket shows by itself."""

    packet_bytes_max = ANSWER_BYTES_MAX
    outgoing_bytes = 0

    def require(self) -> _Socket:
        return self

    def publish_answer(self, topic: str, payload: bytes, correlation: bytes) -> None:
        pass


class LocalOperations:
    """Carries out the protocol's requests for programs of this machine. `look_up` finds latest values."""

    def __init__(self, store: FactStore, look_up: LookUp | None = None) -> None:
        every = EveryStream(store)
        self._store = store
        self._context = Context(_Socket(), store, {LOCAL_ZONE: PeerRights(every, every, limits=LIMITS)})
        self._consumers = Consumers(self._context)
        self._handlers = handlers(self._context, self._consumers, look_up)

    async def answer(self, request: Request, instance: str) -> LocalReply | Refuse:
        """The answer to a request of an instance. Raises the store's errors."""
        handler = self._handlers.get(type(request))
        if handler is None:
            return Refuse("unknown_operation", f"{type(request).__name__} is not served by this process")
        unsubscribe = None
        if isinstance(request, FetchFacts) and request.wait_ms:
            woken = partial(self._consumers.committed, asyncio.get_running_loop())
            unsubscribe = self._store.on_commit(woken)
        try:
            outcome = await handler(Caller(LOCAL_ZONE, instance, b"\0"), request)
        finally:
            if unsubscribe is not None:
                unsubscribe()
        match outcome:
            case Drop():
                return Refuse("busy", "a newer fetch of this consumer has taken the place of this one")
            case Refuse():
                return outcome
        return LocalReply(outcome.answer, outcome.attachment)
