"""Stores a page of a peer. Tag definitions that it lacks are fetched from the peer and stored before it.

They are stored as soon as a chain is complete, so memory holds one answer and the beginning of one chain.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence

from agent.errors import StoreError
from agent.pages import DefinitionChain, LackingDefinitions, PutResult, ReceivedPage
from agent.replication.protocol.definition_fetch import DefinitionFetch
from agent.replication.protocol.errors import DefinitionsUnavailable, PeerRefused, TransportError
from agent.replication.protocol.messages import BYTES_MAX_DEFAULT
from agent.replication.protocol.ports import Inbound
from agent.replication.pulling.throttled_requester import ThrottledRequester

ANSWER_S = 10.0
ATTEMPTS_MAX = 100
"""To store one page: each stores the definitions of all its zones, but of one chain of each."""


class DefinitionPull:
    """Tag definitions of one peer."""

    def __init__(self, requester: ThrottledRequester, inbound: Inbound) -> None:
        self._requester, self._inbound = requester, inbound

    async def put_page(self, page: ReceivedPage) -> PutResult:
        """Store a page with all definitions that it needs. Raises errors of the store and of replication."""
        for _ in range(ATTEMPTS_MAX):
            try:
                return await asyncio.wrap_future(self._inbound.put_page(page))
            except StoreError as error:
                lacking: Sequence[LackingDefinitions] = getattr(error, "lacking", ())
                if not lacking:
                    raise
            await self.get(lacking, self._store)
        raise DefinitionsUnavailable(
            f"batches of a page name more than {ATTEMPTS_MAX} chains of one zone's definitions"
        )

    async def get(
        self, lacking: Sequence[LackingDefinitions], take: Callable[[list[DefinitionChain]], Awaitable[object]]
    ) -> None:
        """Pass each chain to `take` when it is complete. Raises TransportError for what may pass, other errors of
        replication, and those of `take`."""
        fetch = DefinitionFetch(lacking)
        while (request := fetch.request(self._requester.page_bytes(BYTES_MAX_DEFAULT))) is not None:
            try:
                reply = await self._requester.ask(request, ANSWER_S)
            except PeerRefused as error:
                if error.retryable:
                    raise TransportError(error.node, error.message, error.hint) from error
                raise
            if complete := fetch.take_answer(reply.answer, reply.batches):
                await take(complete)

    async def _store(self, chains: list[DefinitionChain]) -> None:
        await asyncio.wrap_future(self._inbound.put_definitions(self._requester.peer_node, chains))
