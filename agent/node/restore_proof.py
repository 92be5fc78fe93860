"""The proof that this store is an old copy: a peer presents a record, signed by our own key, of a batch of our present
epoch that this store does not hold. Any other claim of a peer is unproven and changes nothing (decision 0047)."""

from __future__ import annotations

from agent.fact_store import FactStore
from agent.replication.protocol.messages import ConfirmReceipt, FetchFacts
from agent.replication.pulling import PageJudge
from agent.signing.chains import SignedEnd


class RestoreProof:
    """Judges the claims of peers about our own facts; called with the asking zone and its request."""

    def __init__(self, store: FactStore, judge: PageJudge) -> None:
        self._store = store
        self._judge = judge

    def __call__(self, _zone: str, request: FetchFacts | ConfirmReceipt) -> bool:
        """Whether the request proves it. Reads the disk if the claimed facts lie within what is held."""
        head = request.origin_head if isinstance(request, FetchFacts) else None
        stream = self._stream(request)
        if head is None or head.record is None or head.signed_digest is None or stream is None:
            return False
        end = SignedEnd(stream, self._store.origin, head.last_sequence, bytes.fromhex(head.signed_digest))
        # A signature of facts that are held, or were before retention, proves nothing.
        return self._judge.proves_own(head.record, end) and self._store.lacks_batch(stream, end[2:])

    def _stream(self, request: FetchFacts | ConfirmReceipt) -> str | None:
        consumer = self._store.consumers.get(request.consumer_name)
        if consumer is not None:
            return consumer.stream
        return request.stream if isinstance(request, FetchFacts) else None
