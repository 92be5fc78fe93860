"""The door for facts of other zones: pages of a peer, all or nothing, and what a peer gives back of damaged batches.

Batches are checked in a thread of their own, in the order in which they came, while the writer commits those before; what writing them
then means is decided in receive.py and batch_repair.py. A pulling node uses it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial

from agent.batch import EPOCH_BYTES, Batch, Origin
from agent.fact_store.append import Call, ReceivedPage, begin_check, check, put
from agent.fact_store.integrity import add_peer_incident, damaged_batches, repair_batches, repair_definitions
from agent.fact_store.log import (
    FactsRefused,
    OriginRange,
    PeerPosition,
    PutResult,
    ReceivedDefinition,
    RepairedRange,
    StoreClosed,
)
from agent.fact_store.running import Parts, RunningStore
from agent.message import STREAM, ZONE, check_name

_OFFSET_MAX = 2**63 - 1


class PeersFacts(RunningStore):
    """What a store takes from its peers."""

    def __init__(self, parts: Parts) -> None:
        super().__init__(parts)
        # One thread, so pages are checked in the order they came while the writer commits the one before; its queue is
        # bounded by the writer's, where room is taken first.
        self._checker = ThreadPoolExecutor(1, thread_name_prefix="store-check")

    def put_batches(
        self,
        peer: str,
        stream: str,
        sealed: Sequence[bytes | Batch],
        definitions: Sequence[ReceivedDefinition],
        position: PeerPosition,
        *,
        holes: Sequence[tuple[int, int, str]] = (),
        verify: bool = True,
        is_backlog: bool = False,
    ) -> Future[PutResult]:
        """Store a peer's batches that are not held yet, their definitions and the peer's position: all or nothing.

        `holes` are (first_offset, last_offset, reason) of what the peer says it no longer has; each becomes an incident.
        `is_backlog`: the peer had kept them for us, so no forecast counts them as what comes in.

        What contradicts the facts held, and is not of the peer's present epoch, is passed over: an incident, and `refused` in the result.

        Bytes are parsed and, with `verify`, opened in another thread before the transaction; a `Batch` has been parsed by
        whoever made it. Through the future: BatchError, ForkError, DefinitionsMissing, StoreFull; at once: StoreBusy.
        """
        check_name("peer", peer, ZONE)
        check_name("stream", stream, STREAM)
        if len(position.epoch) != EPOCH_BYTES or not 0 <= position.offset <= _OFFSET_MAX:
            raise FactsRefused(f"{position} is no position", "an epoch has 16 bytes, an offset is not negative")
        lengths = [len(one.sealed if isinstance(one, Batch) else one) for one in sealed]
        size = sum(lengths) + sum(len(one.body) for one in definitions)
        call = Call(f"{stream} from {peer}", size, time.monotonic_ns(), stream=stream if sealed else None)
        self._writer.reserve(call)
        page = partial(
            ReceivedPage,
            peer=peer,
            stream=stream,
            definitions=definitions,
            position=position,
            holes=tuple(holes),
            is_backlog=is_backlog,
        )
        try:
            checked = begin_check(self._checker, stream, sealed, definitions, is_opened=verify)
        except RuntimeError as error:  # `close` has come between
            self._writer.release(call)
            raise StoreClosed(f"{self.path} is closed") from error
        checked.add_done_callback(partial(self._put_checked, call, page))
        return call.future

    def _put_checked(self, call: Call, page: Callable[..., ReceivedPage], checked: Future[list[Batch]]) -> None:
        """Mostly in the checking thread: hand a checked page to the writer, in the room that was taken for it."""
        if (error := checked.exception()) is not None:
            self._writer.release(call)
            call.future.set_exception(error)
            return
        call.run = partial(put, page=page(batches=checked.result()))
        self._writer.call_reserved(call)

    def damaged(self, stream: str) -> Future[list[OriginRange]]:
        """The batches of a stream that were found damaged and are not repaired: what was told before this call is in it."""
        return self._call("damaged", partial(damaged_batches, stream=stream))

    def repair(self, stream: str, peer: str, sealed: Sequence[bytes]) -> Future[list[RepairedRange]]:
        """Put damaged batches back, byte for byte, at the offsets where they lay; see batch_repair.py.

        At once: BatchError, StoreBusy. Through the future: FactsRefused, ForkError (another history), StoreFull.
        """
        check_name("peer", peer, ZONE)
        check_name("stream", stream, STREAM)
        batches = check(stream, sealed, (), is_opened=True)
        call = Call(f"{stream} from {peer}", sum(map(len, sealed)), time.monotonic_ns(), stream=stream)
        call.run = partial(repair_batches, stream=stream, peer=peer, batches=batches)
        call.future.add_done_callback(partial(self._repaired, stream))
        self._writer.call(call)
        return call.future

    def damaged_definition(self, stream: str, origin: Origin, last_sequence: int) -> int | None:
        """As `StoreReader.damaged_definition`, read in the calling thread."""
        return self._reader.damaged_definition(stream, origin, last_sequence)

    def repair_definitions(
        self, stream: str, peer: str, batch: Batch, received: Sequence[ReceivedDefinition]
    ) -> Future[int]:
        """Put damaged tag definitions back, for which a batch that is held vouches; how many were (definition_repair.py).

        At once: BatchError, FactsRefused, StoreBusy. Through the future: FactsRefused, ForkError, StoreFull.
        """
        check_name("peer", peer, ZONE)
        check(stream, [batch], received, is_opened=True)
        run = partial(repair_definitions, stream=stream, peer=peer, batch=batch, received=received)
        return self._call(f"{stream} from {peer}", run, size=sum(len(one.body) for one in received))

    def _repaired(self, stream: str, done: Future[list[RepairedRange]]) -> None:
        if done.exception() is None:
            for one in done.result():
                self._damages.remove_repaired(stream, one.first_offset, one.last_offset)

    def note(self, kind: str, stream: str, peer: str, why: str) -> Future[None]:
        """An incident about a peer's stream, and nothing else."""
        return self._call(kind, partial(add_peer_incident, kind=kind, stream=stream, peer=peer, why=why))
