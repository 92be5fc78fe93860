"""Verifies the pages of peers by the records that their origins signed (`agent.signing.chains` decides), with
certificates from the page or from the store, and keeps declined batches as evidence.

One judge serves all pulls and comparisons of a node. `check` and `judge` are called in the threads that check pages,
and for small pages in the event loop. It reads the disk only for a certificate seen for the first time, and for facts
that the page itself does not prove.
"""

from __future__ import annotations

import contextlib
import re
import threading  # tidy: one lock around the evidence of several threads; nothing here waits
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from agent.batch import Batch, Origin
from agent.pages import BatchEnd, Declined, ReceivedPage, SignerCertificate
from agent.replication.protocol.messages import SIGNERS_KNOWN_MAX
from agent.replication.protocol.ports import ReceivingStore
from agent.replication.pulling.message_judge import MessageJudge, TrustPolicy, remember
from agent.replication.pulling.page_check import PageContent, check_batches
from agent.signing.chains import Judgement, Offered, Trust, judge_page
from agent.signing.messages import signer_name
from agent.signing.records import key_id_in

PASSED_ON_MS = 60_000
"""For this long a peer need not send the certificate of an untrusted key again, which this node only relays."""
DECLINED_MAX = 16
"""Declined ranges of one page that are named. Each becomes an incident and a fact, and a page may have 2,048."""
EVIDENCE_FILES_MAX, EVIDENCE_BYTES_MAX = 16, 4 * 1024 * 1024
EVIDENCE_PER_PAGE_MAX = 4
_UNSAFE = re.compile(r"[^a-z0-9._-]")


class PageJudge:
    """Judges pages for one store, and holds the judge of the messages that bring them. Without `policy` no signer is
    trusted, and records are only relayed."""

    def __init__(
        self,
        store: ReceivingStore,
        policy: TrustPolicy | None = None,
        evidence: EvidenceFolder | None = None,
        clock_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
    ) -> None:
        self.messages = MessageJudge(policy, store, clock_ms)
        self._store = store
        self._evidence = evidence
        self._clock_ms = clock_ms
        self._lock = threading.Lock()
        self._proven = frozenset[str]()  # zones with a verified signature in this life of the process
        self._relayed: dict[tuple[str, bytes], int] = {}  # zone and key id -> when its certificate arrived

    def signers_known(self) -> list[str]:
        """Names of the certificates that a peer need not send."""
        since = self._clock_ms() - PASSED_ON_MS
        with self._lock:
            relayed = [signer_name(*named) for named, arrived_ms in self._relayed.items() if arrived_ms > since]
        return list(dict.fromkeys([*self.messages.signers_known(), *relayed]))[-SIGNERS_KNOWN_MAX:]

    def check(self, peer: str, stream: str, origins: frozenset[str], content: PageContent) -> ReceivedPage:
        """Check the batches of a page, and decide. Raises PageRefused, and the store's errors."""
        return self.judge(peer, stream, check_batches(content, stream, origins), content.signers)

    def judge(
        self,
        peer: str,
        stream: str,
        offered: Sequence[Offered],
        certificates: Sequence[bytes],
    ) -> ReceivedPage:
        """Decide which batches of a page are stored and which are declined. Raises the store's errors."""
        signers = self.messages.signers(certificates)
        trust = Trust(
            self.messages.policy.rule_of,
            self._store.signed_zones() | self._proven,
            signers.resolve,
            HeldProofs(self._store, stream).proves,
        )
        found = judge_page(offered, trust)
        batches = [offered[at].batch for at in found.accepted]
        kept = {(batch.header.origin.zone, key_id_in(batch.record)) for batch in batches if batch.header.is_signed}
        verified = frozenset(place for place, at in enumerate(found.accepted) if at in found.verified)
        now_ms = self._clock_ms()
        self.messages.remember_signers(signers)
        with self._lock:
            self._proven |= found.proven_zones
            to_store = [
                SignerCertificate(key_id, certificate, is_trusted, zone)
                for zone, key_id in sorted(kept)
                for certificates, is_trusted in [signers.of(zone, key_id)]
                for certificate in certificates
            ]
            remember(self._relayed, {(row.zone, row.key_id): now_ms for row in to_store if not row.is_trusted})
        self._keep_evidence(peer, stream, offered, found)
        return ReceivedPage(
            peer, stream, batches, verified=verified, signers=tuple(to_store), declined=_bounded(found.declined)
        )

    def _keep_evidence(self, peer: str, stream: str, offered: Sequence[Offered], found: Judgement) -> None:
        if self._evidence is not None:
            for at in found.evidence[:EVIDENCE_PER_PAGE_MAX]:
                declined = offered[at]
                header = declined.batch.header
                name = f"{peer}-{stream}-{header.origin.zone}-{header.first_sequence}-{declined.batch.digest.hex()[:8]}"
                self._evidence.keep(name, declined.batch.sealed)


class HeldProofs:
    """Proof of the batches of one page by what is held here. The ranges of a zone are read once."""

    def __init__(self, store: ReceivingStore, stream: str) -> None:
        self._store, self._stream = store, stream
        self._starts: dict[str, Mapping[tuple[int, bytes], Sequence[bytes]]] = {}

    def proves(self, batch: Batch) -> bool:
        """Whether a batch is held and proven here, or directly precedes such a batch of any life, which names its
        digest."""
        zone, life, end = batch.header.origin.zone, batch.header.origin.life, batch.header.last_sequence
        if zone not in self._starts:
            self._starts[zone] = self._store.reader.range_starts(self._stream, zone)
        proofs = [(known_life, end + 1) for known_life in self._starts[zone].get((end + 1, batch.digest), ())]
        if BatchEnd(end, batch.digest) in self._store.reader.batch_ends(self._stream, batch.header.origin, [end]):
            proofs.append((life, end))
        return any(
            self._store.reader.is_proven(self._stream, Origin(zone, known_life), sequence)
            for known_life, sequence in proofs
        )


def _bounded(declined: tuple[Declined, ...]) -> tuple[Declined, ...]:
    """The first DECLINED_MAX ranges; the last of them says that there are others."""
    if len(declined) <= DECLINED_MAX:
        return declined
    *kept, last = declined[:DECLINED_MAX]
    return (
        *kept,
        last._replace(reason=f"{last.reason}; and so were other facts of the same page, for this or other reasons"),
    )


class EvidenceFolder:
    """The folder `declined` beside the store. It keeps the newest batches that peers sent and this node declined, for
    an operator to examine: at most EVIDENCE_FILES_MAX files and EVIDENCE_BYTES_MAX bytes. If the disk is full, only the
    evidence is lost."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._lock = threading.Lock()

    def keep(self, name: str, data: bytes) -> None:
        """Keep a batch under a name. An existing file of this name is not changed."""
        path = self._folder / f"{_UNSAFE.sub('_', name)}.batch"
        with self._lock, contextlib.suppress(OSError):
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            if path.exists():
                return
            path.touch(mode=0o600)
            path.write_bytes(data)
            self._remove_oldest()

    def _remove_oldest(self) -> None:
        files = sorted(self._folder.glob("*.batch"), key=lambda file: file.stat().st_mtime_ns, reverse=True)
        kept = 0
        for number, file in enumerate(files):
            kept += file.stat().st_size
            if number >= EVIDENCE_FILES_MAX or (number and kept > EVIDENCE_BYTES_MAX):
                file.unlink()
