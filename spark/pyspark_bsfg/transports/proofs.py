"""Verifies batches that came over the network: which ones a trusted signature proves. Core: no IO.

A record proves its batch and the batches before it in the page that form a chain with it, by sequence and digest.
Records are verified from the end, so that one is enough for a chain. A slice is never proven: it has no record.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from agent.batch import Batch
from agent.fact_store import Verified
from agent.signing.certificates import CertificateRefusal, Signer, SignerTrust, describe_signer, signer_of
from agent.signing.chains import Proof, SignedEnd, check_record
from agent.signing.messages import signer_name
from agent.signing.records import key_id_in


class Signers:
    """The signers that a reader trusts, and the certificates that came with pages."""

    def __init__(self, trust: SignerTrust, now_ms: int) -> None:
        # A compromised key still names its zone: what it signed is suspect, not unproven.
        self._trust = replace(trust, compromised_since_ms={})
        self._compromised: Mapping[bytes, int] = trust.compromised_since_ms
        self._now_ms = now_ms
        self._trusted: dict[tuple[str, bytes], Signer] = {}
        self._received: set[tuple[str, bytes]] = set()

    def add(self, certificates: Sequence[bytes]) -> None:
        """Take the certificates of a page (DER)."""
        for certificate in certificates:
            named = describe_signer(certificate)
            if isinstance(named, Signer):
                self._received.add((named.zone, named.key_id))
                found = signer_of(certificate, self._trust, self._now_ms)
                if isinstance(found, Signer):
                    before = self._trusted.get((found.zone, found.key_id), found)
                    self._trusted[found.zone, found.key_id] = before.joined(found)

    def known(self) -> list[str]:
        """Names of the certificates that need not be sent again."""
        return sorted(signer_name(*named) for named in self._received)

    def verified(self, batches: Sequence[Batch]) -> list[Verified]:
        """Whether each batch of a page is proven."""
        found: list[Verified] = []
        after: Batch | None = None
        for batch in reversed(batches):
            proven: Verified = found[-1] if after is not None and after.follows(batch) else "no"
            if batch.header.is_signed and proven != "yes":
                proven = self._proven(batch) or proven
            found.append(proven)
            after = batch
        return found[::-1]

    def _proven(self, batch: Batch) -> Verified | None:
        zone, record = batch.header.origin.zone, batch.record
        if check_record(record, zone, self._resolve, lambda: SignedEnd.of(batch))[0] is not Proof.VERIFIED:
            return None
        since_ms = self._compromised.get(key_id_in(record))
        return "suspect" if since_ms is not None and self._now_ms >= since_ms else "yes"

    def _resolve(self, zone: str, key_id: bytes) -> Signer | CertificateRefusal | None:
        return self._trusted.get((zone, key_id))
