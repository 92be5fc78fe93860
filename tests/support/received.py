"""Pages of a peer, given to a store as a pull does: first the tag definitions, then the batches."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future
from functools import reduce
from typing import Any

from agent.batch import Batch, Definitions
from agent.fact_store import FactStore
from agent.pages import DefinitionChain, PutResult, ReceivedPage
from agent.positions import Position


def definitions_of(bodies: Sequence[bytes]) -> Definitions:
    """How a batch names these definitions."""
    return reduce(Definitions.extended, bodies, Definitions())


def chain_of(zone: str, bodies: Sequence[bytes], first: int = 1) -> DefinitionChain:
    """Definitions of a zone from a number on, as a peer sends them."""
    return DefinitionChain(zone, definitions_of(bodies), definitions_of(bodies[: first - 1]), list(bodies[first - 1 :]))


def put_page(
    store: FactStore,
    peer: str,
    stream: str,
    batches: Sequence[Batch],
    chains: Sequence[DefinitionChain],
    position: Position | None,
    **how: Any,
) -> Future[PutResult]:
    """Hand definitions and batches to a store."""
    if chains:
        store.inbound.put_definitions(peer, chains)
    return store.inbound.put_page(page_of(peer, stream, batches, position, **how))


def page_of(
    peer: str,
    stream: str,
    batches: Sequence[Batch],
    position: Position | None,
    *,
    passed: Sequence[Position] = (),
    **how: Any,
) -> ReceivedPage:
    """A page that ends at a position, after the lives that end in it."""
    return ReceivedPage(peer, stream, batches, () if position is None else (*passed, position), **how)


def chains_in(store: FactStore) -> list[DefinitionChain]:
    """All definitions of a store."""
    found = [store.reader.definitions(zone, end.digest) for zone, end in store.reader.definition_ends()]
    return [value for value in found if value is not None]
