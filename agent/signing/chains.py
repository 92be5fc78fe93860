"""Decides which batches of a page are proven by their zone, and which are declined.

A batch is proven by its own record or by a proven successor, because the digests cover the records: the successor
continues its sequence and names its digest, in this life or a later one. So of each chain only the newest record is
verified, and earlier ones only until one is valid. The table of rules is in DESIGN.md.

Core: no IO. The same page, rules and signers give the same judgement.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import cache
from typing import Literal, NamedTuple

from agent.batch import Batch, Origin
from agent.pages import Declined, OriginRange
from agent.signing.certificates import CertificateRefusal, RefusalReason, Signer
from agent.signing.records import RecordError, parse_record, signed_bytes

Rule = Literal["required", "if_present", "off"]
Resolve = Callable[[str, bytes], Signer | CertificateRefusal | None]
"""The signer of a zone with a key id, why it is not trusted, or None if no certificate of it is known."""

WRONG_RECORDS_MAX = 16
"""Signatures of one zone in one page that may fail; each costs 67 us, and an honest page has none. After that, every
signature of the zone counts as failed."""

NO_RECORD = "no signature, which this node demands of the zone"
WRONG = "the signature is not that of the key it names"
MALFORMED_RECORD = "the signature is malformed"
_UNTRUSTED = {RefusalReason.UNKNOWN_ISSUER, RefusalReason.NOT_A_SIGNER, RefusalReason.MALFORMED}


class Offered(NamedTuple):
    """A batch of a page whose framing and digest were checked, and its offsets at the peer. `unreadable` says why its
    content cannot be opened; empty if it can."""

    batch: Batch
    first_offset: int
    last_offset: int
    unreadable: str = ""


class SignedEnd(NamedTuple):
    """What a record signs in addition to its time: the end of a chain, by the digest of its last batch without the
    record."""

    stream: str
    origin: Origin
    last_sequence: int
    digest: bytes

    @classmethod
    def of(cls, batch: Batch) -> SignedEnd:
        """The chain that ends with a batch."""
        header = batch.header
        return cls(header.stream, header.origin, header.last_sequence, batch.signed_digest)


class Proof(Enum):
    """What a record proves."""

    VERIFIED = "signed by a trusted key of the zone"
    UNKNOWN = "signed by a key of which this node has no trusted certificate"
    WRONG = "not a signature that counts"


@dataclass(frozen=True, slots=True)
class Trust:
    """What a receiver trusts. `proven_zones`: zones of which a record was verified here before. `is_held`: whether a
    batch, or its successor, is held here and proven."""

    rule_of: Callable[[str], Rule]
    proven_zones: frozenset[str]
    resolve: Resolve
    is_held: Callable[[Batch], bool]


@dataclass(frozen=True, slots=True)
class Judgement:
    """`accepted` are positions in the page, in order; `verified` are those of them whose own record was verified.
    `evidence` are positions of batches that cannot be read or whose record is wrong."""

    accepted: tuple[int, ...]
    verified: frozenset[int]
    declined: tuple[Declined, ...]
    proven_zones: frozenset[str]
    evidence: tuple[int, ...] = ()


def judge_page(offered: Sequence[Offered], trust: Trust) -> Judgement:
    """Judge the batches of a page. Once one of a zone is proven, those of the zone behind it in the page must be."""
    return _Judge(offered, trust).result()


class _Judge:
    """The judgement in the making. `_why` has the reason of each declined batch, "" for an accepted one."""

    def __init__(self, offered: Sequence[Offered], trust: Trust) -> None:
        self._offered = offered
        self._trust = trust
        self._rule_of = cache(trust.rule_of)
        self._proven = set(trust.proven_zones)
        self._why = [offer.unreadable and f"unreadable: {offer.unreadable}" for offer in offered]
        self._verified = set[int]()
        self._wrong = set[int]()
        self._wrong_count: Counter[str] = Counter()
        # What cannot be read is not stored, so it proves nothing before it.
        judged = [at for at, why in enumerate(self._why) if not why and self._rule_of(self._zone(at)) != "off"]
        unproven = self._find_unproven(judged)
        for at in judged:
            proof, why = unproven.get(at, (Proof.VERIFIED, ""))
            if not why:
                self._proven.add(self._zone(at))
            elif proof is Proof.WRONG or self._is_strict(self._zone(at)):
                self._why[at] = why

    def _zone(self, at: int) -> str:
        return self._offered[at].batch.header.origin.zone

    def _is_strict(self, zone: str) -> bool:
        return zone in self._proven or self._rule_of(zone) == "required"

    def _find_unproven(self, places: Sequence[int]) -> dict[int, tuple[Proof | None, str]]:
        """The batches that nothing proves, each with what its own record proves and why not more."""
        unproven = dict[int, tuple[Proof | None, str]]()
        named = set[tuple[str, int, bytes]]()  # as their predecessors, by proven batches
        # From the highest sequence down: each batch after all that could prove it, wherever they are in the page.
        for at in sorted(places, key=lambda at: self._offered[at].batch.header.last_sequence, reverse=True):
            batch, zone = self._offered[at].batch, self._zone(at)
            if (zone, batch.header.last_sequence + 1, batch.digest) not in named:
                found = self._check(at)
                if found[0] is Proof.VERIFIED:
                    self._verified.add(at)
                elif not (self._is_strict(zone) and self._trust.is_held(batch)):
                    unproven[at] = found
                    continue
            named.add((zone, batch.header.first_sequence, batch.header.previous_digest))
        return unproven

    def _check(self, at: int) -> tuple[Proof | None, str]:
        """What the record of a batch proves, and the reason to decline the batch if it does not prove it; None if it
        has no record."""
        batch = self._offered[at].batch
        if not batch.header.is_signed:
            return None, NO_RECORD
        zone = batch.header.origin.zone
        if self._wrong_count[zone] >= WRONG_RECORDS_MAX:
            return Proof.WRONG, WRONG
        proof, why = check_record(batch.record, zone, self._trust.resolve, lambda: SignedEnd.of(batch))
        if proof is Proof.WRONG:
            self._wrong_count[zone] += 1
            self._wrong.add(at)
        return proof, why

    def result(self) -> Judgement:
        """The judgement."""
        offered, why = self._offered, self._why
        accepted = tuple(at for at, reason in enumerate(why) if not reason)
        evidence = tuple(at for at, offer in enumerate(offered) if offer.unreadable or (why[at] and at in self._wrong))
        declined = tuple(_joined(offered, why))
        return Judgement(accepted, frozenset(self._verified), declined, frozenset(self._proven), evidence)


def check_record(record: bytes, zone: str, resolve: Resolve, find_end: Callable[[], SignedEnd]) -> tuple[Proof, str]:
    """What a record of a zone proves, and the reason if it proves nothing. `find_end` hashes a batch, and is called
    only for a trusted key."""
    try:
        found = parse_record(record)
    except RecordError:
        return Proof.WRONG, MALFORMED_RECORD
    signer = resolve(zone, found.key_id)
    key = f"signed by key {found.key_id.hex()}"
    if signer is None:
        return Proof.UNKNOWN, f"{key}, whose certificate this node does not have"
    if isinstance(signer, CertificateRefusal):
        proof = Proof.UNKNOWN if signer.reason in _UNTRUSTED else Proof.WRONG
        return proof, f"{key}, which is not trusted: {signer.reason.value}"
    if signer.zone != zone:
        return Proof.WRONG, f"{key}, which is of zone {signer.zone}"
    if refusal := signer.refuses(found.signed_at_ms):
        return Proof.WRONG, f"{key}: {refusal.reason.value}"
    if not signer.public.verify(signed_bytes(*find_end(), found.key_id, found.signed_at_ms), found.signature):
        return Proof.WRONG, WRONG
    return Proof.VERIFIED, ""


def _joined(offered: Sequence[Offered], why: Sequence[str]) -> Iterator[Declined]:
    """The declined batches as ranges: consecutive ones of one origin with one reason are one range."""
    last: Declined | None = None
    for offer, reason in zip(offered, why, strict=True):
        if not reason:
            continue
        header = offer.batch.header
        facts = OriginRange(header.origin.zone, header.origin.life, header.first_sequence, header.last_sequence)
        if last is not None and _continues(last, offer.first_offset, facts, reason):
            joined = facts._replace(first_sequence=last.facts.first_sequence)
            last = Declined(last.first_offset, offer.last_offset, joined, reason)
            continue
        if last is not None:
            yield last
        last = Declined(offer.first_offset, offer.last_offset, facts, reason)
    if last is not None:
        yield last


def _continues(last: Declined, first_offset: int, facts: OriginRange, reason: str) -> bool:
    return (last.reason, last.last_offset + 1, last.facts.zone, last.facts.life, last.facts.last_sequence + 1) == (
        reason,
        first_offset,
        facts.zone,
        facts.life,
        facts.first_sequence,
    )
