"""Signs own facts: the last batch of each append to a stream, and one batch in every RUN_BYTES_MAX before it.

So every run of own batches ends with a head, no fact is committed without a signature that covers it, and a commit
costs one signature for each stream (21 us). Batches that were sealed without a key, or resealed under a new epoch, get
their heads when the store begins to sign with a key. That transaction precedes every further append, because after the
next append they would no longer be the last batches.
"""

from __future__ import annotations

from collections.abc import Sequence

from agent.batch import DIGEST_BYTES, Batch
from agent.fact_store.sqlite import Transaction
from agent.pages import KeptHead, SignerCertificate
from agent.signing.heads import RUN_BYTES_MAX, HeadSigner

ROWS_AT_ONCE = 4096
"""Rows in memory while a backlog is signed. About a tenth of its batches is rewritten; the others are not read."""


def own_heads(transaction: Transaction, batches: Sequence[Batch]) -> list[KeptHead]:
    """The heads of batches just sealed; none if this store does not sign."""
    if transaction.signer is None:
        return []
    heads, unsigned_bytes = list[KeptHead](), 0
    for index, batch in enumerate(batches):
        unsigned_bytes += len(batch.sealed)
        if index == len(batches) - 1 or unsigned_bytes >= RUN_BYTES_MAX:
            header = batch.header
            record = transaction.sign(header.stream, header.last_sequence, batch.digest)
            heads.append(KeptHead(index, record, is_verified=True))
            unsigned_bytes = 0
    return heads


def begin_signing(transaction: Transaction, signer: HeadSigner | None) -> None:
    """Sign with this key from this transaction on, and store its certificate. Own batches after the last head of each
    stream are signed at once."""
    transaction.signer = signer
    if signer is None:
        return
    if signer.certificate:
        zone = transaction.catalog.origin.zone
        transaction.add_signers([SignerCertificate(signer.key_id, signer.certificate, is_trusted=True, zone=zone)])
    for stream in transaction.catalog.streams.values():
        while rows := transaction.unsigned(stream.id, ROWS_AT_ONCE):
            unsigned_bytes = 0
            following = [first_offset for _, first_offset, *_ in rows[1:]] + [0]
            for (row, _, last_offset, body_bytes, last_sequence, digest), next_offset in zip(
                rows, following, strict=True
            ):
                unsigned_bytes += body_bytes + DIGEST_BYTES  # sealed bytes, as a receiver counts them
                # A run ends at the last batch, and where facts of other origins follow.
                if next_offset != last_offset + 1 or unsigned_bytes >= RUN_BYTES_MAX:
                    transaction.add_head(row, transaction.sign(stream.name, last_sequence, digest))
                    unsigned_bytes = 0
