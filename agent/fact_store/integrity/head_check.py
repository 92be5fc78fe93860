"""Checks stored heads: whether each is the signature of its batch's chain by a key whose certificate is stored.

This detects changes by the disk. It does not apply this node's trust settings, because programs with other settings
also read the store.
"""

from __future__ import annotations

import sqlite3

from agent.batch import Batch
from agent.fact_store.sqlite import QUERIES
from agent.pages import CERTIFICATES_OF_KEY_MAX
from agent.signing.certificates import Signer, describe_signer
from agent.signing.heads import HeadError, parse_head, signed_bytes


class HeadCheck:
    """The certificates of one store."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection
        self._signers: dict[bytes, list[Signer]] = {}

    def problem(self, head: object, batch: Batch) -> str | None:
        """What is wrong with the head of a batch; None if it is valid, or if its certificate is not stored here."""
        if not isinstance(head, bytes):
            return "its head is missing"
        try:
            found = parse_head(head)
        except HeadError as error:
            return f"its head is damaged: {error}"
        header = batch.header
        signers = [one for one in self._of(found.key_id) if one.zone == header.origin.zone]
        data = signed_bytes(
            header.stream, header.origin, header.last_sequence, batch.digest, found.key_id, found.signed_at_ms
        )
        if signers and not any(one.public.verify(data, found.signature) for one in signers):
            return f"its head is not a signature by key {found.key_id.hex()} of {header.origin.zone}"
        return None

    def _of(self, key_id: bytes) -> list[Signer]:
        if (known := self._signers.get(key_id)) is None:
            rows = self._connection.execute(
                QUERIES["select_signers"], {"key_id": key_id, "limit": CERTIFICATES_OF_KEY_MAX}
            ).fetchall()
            described = [describe_signer(der) for (der,) in rows if isinstance(der, bytes)]
            known = self._signers[key_id] = [one for one in described if isinstance(one, Signer)]
        return known
