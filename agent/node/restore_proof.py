"""The proof that this store is an old copy: a peer presents a head, signed by our own key, of facts of our present
epoch that this store does not hold. Any other claim of a peer is unproven and changes nothing (decision 0047)."""

from __future__ import annotations

from agent.fact_store import FactStore
from agent.replication.protocol.messages import ConfirmReceipt, FetchFacts
from agent.replication.pulling import PageJudge
from agent.signing.runs import ChainEnd


class RestoreProof:
    """Judges the claims of peers about our own facts; called with the asking zone and its request."""

    def __init__(self, store: FactStore, judge: PageJudge) -> None:
        self._store = store
        self._judge = judge

    def __call__(self, _zone: str, request: FetchFacts | ConfirmReceipt) -> bool:
        """Whether the request proves it. Reads the disk where the claimed facts lie within what is held."""
        head = request.origin_head if isinstance(request, FetchFacts) else None
        stream = self._stream(request)
        if head is None or head.head is None or stream is None:
            return False
        end = ChainEnd(stream, self._store.origin, head.last_sequence, bytes.fromhex(head.digest))
        return self._judge.proves_own(head.head, end) and not self._holds(end)

    def _stream(self, request: FetchFacts | ConfirmReceipt) -> str | None:
        consumer = self._store.consumers.get(request.consumer_name)
        if consumer is not None:
            return consumer.stream
        return request.stream if isinstance(request, FetchFacts) else None

    def _holds(self, end: ChainEnd) -> bool:
        """Whether the chain is here, or was before retention: a signature of what is held proves nothing."""
        for held in self._store.held(end.stream).get(end.origin, ()):
            if held.last_sequence == end.last_sequence:
                return held.last_digest == end.digest
            if held.first_sequence <= end.last_sequence < held.last_sequence:
                found = self._store.batch_ends(end.stream, end.origin, [end.last_sequence])
                return not found or tuple(found[0]) == (end.last_sequence, end.digest)
        return False
