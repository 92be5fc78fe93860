"""The inbound API for facts of peers: pages of their streams, stored as a whole or not at all, and copies that replace
damaged batches and tag definitions.

The pulling side parses the batches and verifies their content before it calls; receive.py and repair.py decide what is
written.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from functools import partial

from agent.batch import Batch
from agent.fact_store.append import store_definitions, store_page
from agent.fact_store.integrity import (
    DamageRegistry,
    damaged_batches,
    repair_batches,
    repair_definitions,
)
from agent.fact_store.read import StoreReader
from agent.fact_store.sqlite import Transaction
from agent.fact_store.writer import Writer
from agent.pages import (
    ComparedSums,
    DefinitionChain,
    OriginRange,
    PutResult,
    ReceivedPage,
    RepairedRange,
)
from agent.positions import Position, Trail, last_of


class Inbound:
    """`FactStore.inbound`."""

    def __init__(self, writer: Writer, reader: StoreReader, damages: DamageRegistry) -> None:
        self._writer = writer
        self.damaged_definitions = reader.damaged_definitions
        self._damages = damages

    def trail(self, peer: str, stream: str) -> Trail:
        """How far each of the newest lives of a peer's log has been stored here, from memory."""
        return self._writer.catalog.trails.get((peer, stream), ())

    def peer_position(self, peer: str, stream: str) -> Position | None:
        """How far a peer's stream has been stored here, from memory."""
        trail = self.trail(peer, stream)
        return last_of(trail) if trail else None

    def put_page(self, page: ReceivedPage) -> Future[PutResult]:
        """Store a peer's batches that are not held yet, and the peer's position: all or nothing.

        A batch that overlaps other facts held of its life is skipped and reported as an incident and as `refused` in
        the result.

        At once: StoreBusy. Through the future: FactsRefused, StoreFull, and DefinitionsMissing, which names all that
        the page lacks.
        """
        _assert_whole(page.stream, page.batches)
        size = sum(len(batch.sealed) for batch in page.batches)
        adds_to = page.stream if page.batches else None
        run = partial(store_page, page=page, limits=self._writer.committer.limits)
        return self._writer.submit(f"{page.stream} from {page.peer}", run, size=size, stream=adds_to, zone=page.peer)

    def damaged(self, stream: str) -> Future[list[OriginRange]]:
        """The batches of a stream that are damaged and not repaired, including all damage found before this call."""
        return self._writer.submit("damaged", partial(damaged_batches, stream=stream))

    def repair(self, stream: str, peer: str, batches: Sequence[Batch]) -> Future[list[RepairedRange]]:
        """Replace damaged batches by copies, byte for byte, at the same offsets (repair.py). The caller has
        parsed each batch and read its content.

        At once: StoreBusy. Through the future: FactsRefused, ForkError (another history), StoreFull.
        """
        _assert_whole(stream, batches)
        run = partial(repair_batches, stream=stream, peer=peer, batches=batches)
        size = sum(len(batch.sealed) for batch in batches)
        repairing = self._writer.submit(f"{stream} from {peer}", run, size=size, stream=stream, zone=peer)
        repairing.add_done_callback(partial(self._repaired, stream))
        return repairing

    def put_definitions(self, peer: str, chains: Sequence[DefinitionChain]) -> Future[int]:
        """Store tag definitions that a page lacks (append/definitions.py).

        At once: StoreBusy. Through the future: FactsRefused, StoreFull.
        """
        run = partial(store_definitions, chains=chains)
        return self._writer.submit(f"definitions from {peer}", run, size=_size(chains))

    def repair_definitions(self, stream: str, peer: str, chain: DefinitionChain) -> Future[int]:
        """Replace damaged tag definitions by copies that their digest proves (repair.py); returns how many.

        At once: StoreBusy. Through the future: FactsRefused, StoreFull.
        """
        run = partial(repair_definitions, stream=stream, peer=peer, chain=chain)
        return self._writer.submit(f"{stream} from {peer}", run, size=_size([chain]))

    def _repaired(self, stream: str, done: Future[list[RepairedRange]]) -> None:
        if done.exception() is None:
            for repaired in done.result():
                self._damages.remove_repaired(stream, repaired.first_offset, repaired.last_offset)

    def note_compared(self, peer: str, stream: str, sums: Mapping[str, ComparedSums]) -> Future[None]:
        """Remember what was compared with a peer, by zone, and found to lack nothing."""

        def run(transaction: Transaction) -> None:
            transaction.set_compared(peer, transaction.stream(stream).id, sums)

        return self._writer.submit(f"compared with {peer}", run)

    def note_incident(self, kind: str, stream: str, peer: str, why: str) -> Future[None]:
        """Record an incident about a peer's stream."""
        return self._writer.note_incident(kind, f"{stream} from {peer}", why)


def _assert_whole(stream: str, batches: Sequence[Batch]) -> None:
    """The caller has refused slices, which would break the chain, and batches of other streams, whose facts would get
    another identity."""
    for batch in batches:
        assert not batch.header.is_slice, batch.header
        assert batch.header.stream == stream, batch.header


def _size(chains: Sequence[DefinitionChain]) -> int:
    return sum(len(body) for chain in chains for body in chain.bodies)
