"""Whom a node believes: judges the pages of its peers by the heads that origins signed (`agent.signing.runs` decides),
with the certificates that came with a page or are held, and keeps what was declined as evidence.

One judge serves all pulls and comparisons of a node. `judge` is called in the threads that check pages, and for small
pages in the event loop; it reads the disk only for a certificate seen for the first time, and for facts that a page does
not prove.
"""

from __future__ import annotations

import contextlib
import re
import threading  # tidy: one lock around a cache that the checking threads share; nothing here waits
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple, TypeVar

from agent.batch import Batch
from agent.pages import Declined, HeldRange, KeptHead
from agent.replication.protocol.messages import SIGNERS_KNOWN_MAX
from agent.replication.protocol.ports import ReceivingStore
from agent.signing.certificates import Refusal, RefusalReason, Signer, SignerTrust, describe_signer, signer_of
from agent.signing.freshness import SignedEnd
from agent.signing.heads import KEY_ID_BYTES, key_id_in
from agent.signing.messages import MessagePlace, MessageProof, answer_bytes, request_bytes
from agent.signing.runs import ChainEnd, Judgement, Offered, Proof, Rule, Trust, check_head, judge_page, proves_own

PASSED_ON_MS = 60_000
"""For so long a peer need not send again the certificate of a key that is not trusted here, only passed on."""
DECLINED_MAX = 16
"""Ranges of one page that are named; each becomes an incident and a notice, and a page may have 2,048."""
EVIDENCE_FILES_MAX, EVIDENCE_BYTES_MAX = 16, 4 * 1024 * 1024
EVIDENCE_PER_PAGE_MAX = 4
_K = TypeVar("_K")
_V = TypeVar("_V")
_UNSAFE = re.compile(r"[^a-z0-9._-]")


@dataclass(frozen=True, slots=True)
class JudgedPage:
    """What of a page goes to the store. `signers` are key id and certificate (DER) of the kept heads' keys;
    `KeptHead.index` counts in `batches`."""

    batches: list[Batch]
    heads: tuple[KeptHead, ...] = ()
    signers: tuple[tuple[bytes, bytes], ...] = ()
    declined: tuple[Declined, ...] = ()


@dataclass(frozen=True, slots=True)
class Beliefs:
    """What the operator has configured. `rules` by zone; other zones have `if_present`. `own`: our zone and the
    certificates (DER) of our keys, if this node signs."""

    trust: SignerTrust = field(default_factory=SignerTrust)
    rules: Mapping[str, Rule] = field(default_factory=dict)
    own_zone: str = ""
    own_certificates: tuple[bytes, ...] = ()

    def rule_of(self, zone: str) -> Rule:
        """The rule for facts of a zone; our own come back only with our signature, if we sign."""
        if zone == self.own_zone:
            return "required" if self.own_certificates else "if_present"
        return self.rules.get(zone, "if_present")

    def signer(self, certificate: bytes, now_ms: int) -> Signer | Refusal:
        """The signer that a certificate names, if it is believed."""
        found = signer_of(certificate, self.trust, now_ms)
        if isinstance(found, Refusal) and found.reason is RefusalReason.UNKNOWN_ISSUER:
            return describe_signer(certificate) if certificate in self.own_certificates else found
        return found


@lru_cache(SIGNERS_KNOWN_MAX)
def _described(certificate: bytes) -> Signer | Refusal:
    """What a certificate says; the same one comes with each message."""
    return describe_signer(certificate)


class _Believed(NamedTuple):
    """A certificate, and the signer that it names."""

    certificate: bytes
    signer: Signer


class PageJudge:
    """Judges pages for one store. Without `beliefs` no signer is trusted, and heads are only passed on."""

    def __init__(
        self,
        store: ReceivingStore,
        beliefs: Beliefs | None = None,
        evidence: EvidenceFolder | None = None,
        clock_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
    ) -> None:
        self._store = store
        self._beliefs = beliefs or Beliefs()
        self._evidence = evidence
        self._clock_ms = clock_ms
        self._lock = threading.Lock()
        self._proven = frozenset[str]()
        self._signing = frozenset[str]()  # zones that have signed a request or an answer
        self._believed: dict[tuple[str, bytes], _Believed] = {}  # by zone and key id
        self._passed_on: dict[bytes, int] = {}  # key id -> when its certificate came

    def believe(self, trust: SignerTrust) -> None:
        """Believe these signers from the next page and message on. What a zone has proven to have a key stays known."""
        with self._lock:
            self._beliefs = replace(self._beliefs, trust=trust)
            self._believed = {}

    def signers_known(self) -> list[str]:
        """Key ids whose certificates a peer need not send."""
        since = self._clock_ms() - PASSED_ON_MS
        with self._lock:
            known = [key_id for _, key_id in self._believed]
            known += [key_id for key_id, came_ms in self._passed_on.items() if came_ms > since]
        return [key_id.hex() for key_id in dict.fromkeys(known)][-SIGNERS_KNOWN_MAX:]

    def judge(self, peer: str, stream: str, offered: Sequence[Offered], certificates: Sequence[bytes]) -> JudgedPage:
        """What of a page is stored, with which heads, and what is declined. Raises the store's errors."""
        signers = self._signers(certificates)
        trust = Trust(
            self._beliefs.rule_of,
            self._store.signed_zones() | self._proven,
            signers.resolve,
            lambda batch: is_held(self._store, stream, batch),
        )
        found = judge_page(offered, trust)
        batches = [offered[at].batch for at in found.accepted]
        kept = {(batches[one.index].header.origin.zone, key_id_in(one.record)) for one in found.heads}
        with self._lock:
            self._proven |= found.proven_zones
            _remember(signers.before, signers.believed)
            passed_on = [(key_id, one) for zone, key_id in sorted(kept) for one in signers.of(zone, key_id)]
            _remember(self._passed_on, {key_id: self._clock_ms() for key_id, _ in passed_on})
        self._keep_evidence(peer, stream, offered, found)
        return JudgedPage(batches, found.heads, tuple(passed_on), _bounded(found.declined))

    def proves_own(self, record: bytes, end: ChainEnd) -> bool:
        """Whether a present or former key of ours has signed the end of a chain of this zone. Reads the disk for a
        former key only."""
        key_id, beliefs = key_id_in(record), self._beliefs
        certificates = (*beliefs.own_certificates, *self._store.signers([key_id]))
        found = [beliefs.signer(one, self._clock_ms()) for one in certificates]
        own = [one for one in found if isinstance(one, Signer) and one.zone == beliefs.own_zone]
        return end.origin.zone == beliefs.own_zone and proves_own(record, end, own)

    def prove(self, end: SignedEnd, certificates: Sequence[bytes]) -> SignedEnd | None:
        """The end with the certificate of the trusted key of its zone that signed it; None where none did."""
        signers = self._signers(certificates)
        signed = ChainEnd(end.stream, end.origin, end.last_sequence, end.digest)
        if check_head(end.head, signed, signers.resolve)[0] is not Proof.VERIFIED:
            return None
        with self._lock:
            _remember(signers.before, signers.believed)
        return end._replace(certificate=signers.believed[end.origin.zone, key_id_in(end.head)].certificate)

    def refuses_request(self, place: MessagePlace, request: bytes, proof: MessageProof | None) -> str | None:
        """Why a request that changes something here is not taken for the asking zone's; None where it is, or where its
        zone need not sign."""
        return self._refuses_message(place.asking_zone, request_bytes(place, request), proof)

    def refuses_answer(self, place: MessagePlace, answer: bytes, proof: MessageProof | None) -> str | None:
        """Why an answer is not taken for the serving zone's; None as for a request."""
        return self._refuses_message(place.serving_zone, answer_bytes(place, answer), proof)

    def _refuses_message(self, zone: str, covered: bytes, proof: MessageProof | None) -> str | None:
        """A zone must sign once it has signed a message or facts, or where its signatures are required."""
        rule = self._beliefs.rule_of(zone)
        if rule == "off":
            return None
        must_sign = rule == "required" or zone in self._signing or zone in self._store.signed_zones()
        if proof is None:
            return f"{zone} did not sign it" if must_sign else None
        key_id, signers = proof.certificate, self._signers(())
        if len(key_id) != KEY_ID_BYTES:
            named = _described(proof.certificate)
            if isinstance(named, Refusal) or named.zone != zone:
                return f"its certificate is not one of {zone}"
            key_id, signers = named.key_id, self._signers([proof.certificate])
        signer = signers.resolve(zone, key_id)
        if not isinstance(signer, Signer):
            reason = signer.reason.value if isinstance(signer, Refusal) else "unknown"
            return f"the key {key_id.hex()} of {zone} is not believed: {reason}" if must_sign else None
        if refusal := signer.refuses(self._clock_ms()):
            return f"the certificate of {zone}: {refusal.reason.value}"
        if not signer.public.verify(covered, proof.signature):
            return f"the signature is not that of {zone}"
        with self._lock:
            _remember(signers.before, signers.believed)
            self._signing |= {zone}
        return None

    def _signers(self, certificates: Sequence[bytes]) -> _PageSigners:
        with self._lock:  # what is believed belongs to the beliefs under which it was found
            return _PageSigners(self._store, self._beliefs, certificates, self._believed, self._clock_ms())

    def _keep_evidence(self, peer: str, stream: str, offered: Sequence[Offered], found: Judgement) -> None:
        if self._evidence is not None:
            for at in found.evidence[:EVIDENCE_PER_PAGE_MAX]:
                one = offered[at]
                header = one.batch.header
                name = f"{peer}-{stream}-{header.origin.zone}-{header.first_sequence}-{one.batch.digest.hex()[:8]}"
                self._evidence.keep(name, one.batch.sealed + one.head)


class _PageSigners:
    """The signers of one page: certificates that came with it, that are believed already, or that the store holds."""

    def __init__(
        self,
        store: ReceivingStore,
        beliefs: Beliefs,
        certificates: Sequence[bytes],
        believed: dict[tuple[str, bytes], _Believed],
        now_ms: int,
    ) -> None:
        self._store, self._beliefs, self._now_ms, self.before = store, beliefs, now_ms, believed
        self._came: dict[tuple[str, bytes], list[bytes]] = {}
        for one in certificates:
            named = _described(one)
            if isinstance(named, Signer):
                self._came.setdefault((named.zone, named.key_id), []).append(one)
        self._resolved: dict[tuple[str, bytes], Signer | Refusal | None] = {}
        self.believed: dict[tuple[str, bytes], _Believed] = {}

    def of(self, zone: str, key_id: bytes) -> list[bytes]:
        """The certificates to be stored with a head. The believed one, with each page: the page that it came with may
        not have been stored. Else those that came with this page."""
        believed = self.believed.get((zone, key_id))
        return self._came.get((zone, key_id), []) if believed is None else [believed.certificate]

    def resolve(self, zone: str, key_id: bytes) -> Signer | Refusal | None:
        """The signer of a zone with this key; the reason of the last refusal where none is believed."""
        key = zone, key_id
        if key not in self._resolved:
            self._resolved[key] = self._find(zone, key_id)
        return self._resolved[key]

    def _find(self, zone: str, key_id: bytes) -> Signer | Refusal | None:
        before = self.before.get((zone, key_id))
        if before is not None and not self._beliefs.trust.is_suspect(key_id, self._now_ms):
            self.believed[zone, key_id] = before
            return before.signer
        refused: Refusal | None = None
        own = self._beliefs.own_certificates if zone == self._beliefs.own_zone else ()
        for source in (lambda: (*own, *self._came.get((zone, key_id), ())), lambda: self._store.signers([key_id])):
            for certificate in source():
                found = self._beliefs.signer(certificate, self._now_ms)
                if isinstance(found, Refusal):
                    refused = found
                elif (found.zone, found.key_id) == (zone, key_id):
                    self.believed[zone, key_id] = _Believed(certificate, found)
                    return found
        return refused


def is_held(store: ReceivingStore, stream: str, batch: Batch) -> bool:
    """Whether a batch, or its successor by digest, is held in a range that a head verified here covers."""
    header = batch.header
    for held in store.held(stream).get(header.origin, ()):
        is_before = held.first_sequence == header.last_sequence + 1 and held.first_previous_digest == batch.digest
        if is_before or _is_inside(store, stream, batch, held):
            head = store.next_head(stream, header.origin, header.last_sequence)
            if head is not None and head.verified_unix_ms is not None:
                return head.last_sequence <= held.last_sequence
    return False


def _is_inside(store: ReceivingStore, stream: str, batch: Batch, held: HeldRange) -> bool:
    header = batch.header
    if not held.first_sequence <= header.first_sequence <= header.last_sequence <= held.last_sequence:
        return False
    ends = store.batch_ends(stream, header.origin, [header.last_sequence])
    return any(tuple(one) == (header.last_sequence, batch.digest) for one in ends)


def _remember(known: dict[_K, _V], new: Mapping[_K, _V]) -> None:
    """Add entries as the newest; the oldest are dropped beyond SIGNERS_KNOWN_MAX."""
    for key, value in new.items():
        known.pop(key, None)
        known[key] = value
    while len(known) > SIGNERS_KNOWN_MAX:
        del known[next(iter(known))]


def _bounded(declined: tuple[Declined, ...]) -> tuple[Declined, ...]:
    """The first ranges; the last of them says that there are others."""
    if len(declined) <= DECLINED_MAX:
        return declined
    *kept, last = declined[:DECLINED_MAX]
    return (
        *kept,
        last._replace(reason=f"{last.reason}; and so were other facts of the same page, for this or other reasons"),
    )


class EvidenceFolder:
    """The folder `declined` beside the store: what a peer sent and this node did not store, for an operator who looks
    into it. At most EVIDENCE_FILES_MAX files and EVIDENCE_BYTES_MAX bytes, the newest. A disk that does not take them
    costs the evidence, and nothing else."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._lock = threading.Lock()

    def keep(self, name: str, data: bytes) -> None:
        """Keep a batch, with its head if it has one, under a name; one of this name stays as it is."""
        path = self._folder / f"{_UNSAFE.sub('_', name)}.batch"
        with self._lock, contextlib.suppress(OSError):
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            if path.exists():
                return
            path.touch(mode=0o600)
            path.write_bytes(data)
            self._remove_oldest()

    def _remove_oldest(self) -> None:
        files = sorted(self._folder.glob("*.batch"), key=lambda one: one.stat().st_mtime_ns, reverse=True)
        kept = 0
        for number, one in enumerate(files):
            kept += one.stat().st_size
            if number >= EVIDENCE_FILES_MAX or (number and kept > EVIDENCE_BYTES_MAX):
                one.unlink()
