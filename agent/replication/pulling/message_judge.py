"""Verifies signed ends, and the requests and answers of peers. The certificates come with the message, are trusted
already, or are in the store.

A key may have several certificates, one for each renewal: it is valid from the start of the first to the end of the
last. The methods may be called from several threads. The disk is read only for a key that is not yet trusted.
"""

from __future__ import annotations

import logging
import threading  # tidy: one lock around a cache that the checking threads share; nothing here waits
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from typing import NamedTuple, Protocol, TypeVar

from agent.pages import CERTIFICATES_OF_KEY_MAX
from agent.replication.protocol.messages import SIGNERS_KNOWN_MAX
from agent.replication.protocol.token_bucket import Priority, TokenBucket
from agent.signing.certificates import (
    CertificateRefusal,
    RefusalReason,
    Signer,
    SignerTrust,
    describe_signer,
    signer_of,
)
from agent.signing.chains import Rule
from agent.signing.messages import MessagePlace, MessageProof, answer_bytes, request_bytes, signer_name
from agent.signing.records import KEY_ID_BYTES

log = logging.getLogger(__name__)

RENEWED_BEFORE_MS = 86_400_000
"""A key whose certificate ends within this time is not named as known, so that the peer sends the renewed certificate
in time."""
UNKNOWN_PER_SECOND = 20
"""Unknown certificates and key ids of one zone that are examined. A node has one, and another one after a renewal. A
forger can send a new one in each message: a certificate with many names takes two milliseconds of the event loop and a
read of the store."""
CERTIFICATES_TRUSTED_MAX = 16
"""The newest certificates of one key that are kept: as many as there may be pins of one zone."""
_K = TypeVar("_K")
_V = TypeVar("_V")


class SignerStore(Protocol):
    """What a store knows of signers."""

    def signers(self, key_ids: Iterable[bytes]) -> Sequence[bytes]:
        """The stored certificates (DER) of these keys."""
        ...

    def signed_zones(self) -> frozenset[str]:
        """The zones with at least one verified signature of facts."""
        ...


class NoSignerStore:
    """For a process without a store."""

    def signers(self, _key_ids: Iterable[bytes]) -> Sequence[bytes]:
        return ()

    def signed_zones(self) -> frozenset[str]:
        return frozenset()


@dataclass(frozen=True, slots=True)
class TrustPolicy:
    """What the operator has configured. `rules` are by zone; the rule of any other zone is `if_present`. `own_zone`,
    `own_certificates` (DER) and `own_node` (its name, also a zone) are those of this node; without certificates it does
    not sign."""

    trust: SignerTrust = field(default_factory=SignerTrust)
    rules: Mapping[str, Rule] = field(default_factory=dict)
    own_zone: str = ""
    own_certificates: tuple[bytes, ...] = ()
    own_node: str = ""

    def rule_of(self, zone: str) -> Rule:
        """The rule for facts of a zone. Facts of this node's zones are accepted only signed, if it signs."""
        if zone in {self.own_zone, self.own_node}:
            return "required" if self.own_certificates else "if_present"
        return self.rules.get(zone, "if_present")

    def signer(self, certificate: bytes, now_ms: int) -> Signer | CertificateRefusal:
        """The signer that a certificate names, if it is trusted."""
        found = signer_of(certificate, self.trust, now_ms)
        if isinstance(found, CertificateRefusal) and found.reason is RefusalReason.UNKNOWN_ISSUER:
            return describe_signer(certificate) if certificate in self.own_certificates else found
        return found


@lru_cache(SIGNERS_KNOWN_MAX)
def _described(certificate: bytes) -> Signer | CertificateRefusal:
    """The signer that a certificate names. Cached, because the same certificate comes with each message."""
    return describe_signer(certificate)


class TrustedKey(NamedTuple):
    """The trusted certificates of a zone's key, and the signer that they name together."""

    certificates: tuple[bytes, ...]
    signer: Signer

    def joined(self, other: TrustedKey) -> TrustedKey:
        """This key with the certificates of `other` added as the newest."""
        new = [certificate for certificate in other.certificates if certificate not in self.certificates]
        kept = (*self.certificates, *new)[-CERTIFICATES_TRUSTED_MAX:]
        return TrustedKey(kept, self.signer.joined(other.signer))


class MessageJudge:
    """Decides whether signed messages of zones are accepted. `held` is the store of the process, if it has one."""

    def __init__(
        self,
        policy: TrustPolicy | None = None,
        held: SignerStore | None = None,
        clock_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
    ) -> None:
        self.policy = policy or TrustPolicy()
        self._held = held or NoSignerStore()
        self._clock_ms = clock_ms
        self._lock = threading.Lock()
        self._signing_zones = frozenset[str]()  # have signed a request or an answer
        self._reported_keys = frozenset[tuple[str, bytes]]()  # outside their dates
        self._trusted: dict[tuple[str, bytes], TrustedKey] = {}  # by zone and key id
        # Zone and certificate, or key id, of accepted messages.
        self._accepted: dict[tuple[str, bytes], None] = {}
        self._untrusted: dict[str, bytes] = {}  # by zone: the last certificate of a right signature
        self._unknown: dict[str, TokenBucket] = {}  # by zone: limits how many others are examined

    def set_trust(self, trust: SignerTrust, rules: Mapping[str, Rule]) -> None:
        """Trust these signers, by these rules, from the next page and message on. Which zones are known to sign does
        not change."""
        with self._lock:
            self.policy = replace(self.policy, trust=trust, rules=rules)
            self._trusted = {}

    def sign_as(self, *certificates: bytes) -> None:
        """Replace this node's own certificates. Facts signed with an earlier key of this process still count as its
        own."""
        with self._lock:
            before = [certificate for certificate in self.policy.own_certificates if certificate not in certificates]
            own = (*certificates, *before)[:CERTIFICATES_TRUSTED_MAX] if certificates else ()
            self.policy = replace(self.policy, own_certificates=own)

    def signers_known(self) -> list[str]:
        """Names of the certificates that a peer need not send."""
        until_ms = self._clock_ms() + RENEWED_BEFORE_MS
        with self._lock:
            known = [named for named, key in self._trusted.items() if key.signer.not_after_ms > until_ms]
        return [signer_name(*named) for named in known][-SIGNERS_KNOWN_MAX:]

    def signers(self, certificates: Sequence[bytes]) -> MessageSigners:
        """The signers of a message, or a page, with these certificates."""
        with self._lock:  # one policy together with the keys that are trusted under it
            return MessageSigners(self._held, self.policy, certificates, self._trusted, self._clock_ms())

    def remember_signers(self, signers: MessageSigners) -> None:
        """Trust from now on the keys that a message or a page has confirmed."""
        with self._lock:
            remember(signers.known, signers.trusted)

    def demands(self, zone: str) -> bool:
        """Whether messages of a zone are accepted only with its signature."""
        rule = self.policy.rule_of(zone)
        return rule == "required" or (
            rule != "off" and (zone in self._signing_zones or zone in self._held.signed_zones())
        )

    def refuses_request(
        self, place: MessagePlace, request: bytes | memoryview, proof: MessageProof | None, *, is_writing: bool
    ) -> str | None:
        """Why a request that changes something here is refused: nothing proves that the asking zone sent it. None if it
        is accepted. `is_writing`: it adds facts or artifacts to this store."""
        covered = partial(request_bytes, place, request)
        return self._refuses_message(place.asking_node, covered, proof, is_writing=is_writing, is_request=True)

    def refuses_answer(self, place: MessagePlace, answer: bytes | memoryview, proof: MessageProof | None) -> str | None:
        """Why an answer is refused: nothing proves that the serving zone sent it. None if it is accepted."""
        covered = partial(answer_bytes, place, answer)
        return self._refuses_message(place.serving_node, covered, proof, is_writing=False)

    def _refuses_message(
        self,
        zone: str,
        covered: Callable[[], bytes],
        proof: MessageProof | None,
        *,
        is_writing: bool,
        is_request: bool = False,
    ) -> str | None:
        """A zone must sign if its signatures are required, or once it has signed a message or facts. A message of any
        other may have no signature, or that of a key which is not trusted here, but not a wrong one. The message itself
        (`covered`) is read last, because only that step takes longer for a large message."""
        if self.policy.rule_of(zone) == "off":
            return None
        must_sign = self.demands(zone)
        if proof is None:
            return f"{zone} did not sign it" if must_sign else None
        # An answer may have the id of a key in place of its certificate, which came with an earlier one.
        is_id_of_answer = len(proof.certificate) == KEY_ID_BYTES and not is_request
        if not self._may_examine(zone, proof.certificate):
            return f"{zone} sends other certificates too often" if must_sign or not is_id_of_answer else None
        key_id, signers, named = proof.certificate, self.signers(()), None
        if len(key_id) != KEY_ID_BYTES:
            named = _described(proof.certificate)
            if isinstance(named, CertificateRefusal) or named.zone != zone:
                return f"its certificate is not one of {zone}"
            key_id, signers = named.key_id, self.signers([proof.certificate])
        signer = signers.resolve(zone, key_id)
        if not isinstance(signer, Signer):
            reason = signer.reason.value if isinstance(signer, CertificateRefusal) else "unknown"
            if must_sign or not (is_id_of_answer or isinstance(named, Signer)):
                return f"the key {key_id.hex()} of {zone} is not trusted: {reason}"
            if not isinstance(named, Signer):
                return None
            if not named.public.verify(covered(), proof.signature):
                return f"the signature is not that of {zone}"
            with self._lock:
                self._untrusted[zone] = proof.certificate
            return None
        # The dates of a certificate limit what its zone may write. They do not limit which facts of other zones it may
        # relay, because those zones have signed them (decision 0052).
        refusal = signer.refuses(self._clock_ms())
        if refusal is not None and is_writing:
            return f"the certificate of {zone}: {refusal.reason.value}"
        if not signer.public.verify(covered(), proof.signature):
            return f"the signature is not that of {zone}"
        if refusal is not None:
            self._report_dates(zone, key_id, refusal)
        with self._lock:
            remember(signers.known, signers.trusted)
            # Only a trusted certificate: false certificates of a trusted key would displace the true ones.
            if proof.certificate in {key_id, *signers.trusted[zone, key_id].certificates}:
                remember(self._accepted, {(zone, proof.certificate): None})
            self._signing_zones |= {zone}
        return None

    def _may_examine(self, zone: str, certificate: bytes) -> bool:
        """Whether the certificate or key id of a message is examined: always if a message with it was accepted before;
        others at a limited rate."""
        now_ms = self._clock_ms()
        with self._lock:
            if (zone, certificate) in self._accepted or self._untrusted.get(zone) == certificate:
                return True
            unknown = self._unknown.setdefault(zone, TokenBucket(UNKNOWN_PER_SECOND))
            if unknown.ready_ms(now_ms, Priority.BACKLOG) > now_ms:
                return False
            unknown.spend(1, now_ms)
            return True

    def _report_dates(self, zone: str, key_id: bytes, refusal: CertificateRefusal) -> None:
        """Log once for each key of a peer whose certificate is outside its dates."""
        with self._lock:
            is_known = (zone, key_id) in self._reported_keys
            self._reported_keys |= {(zone, key_id)}
        if not is_known:
            why = (
                f"the certificate of {zone}: {refusal.reason.value}; facts that it relays are accepted, its own are not"
            )
            log.warning("peer_key_outside_dates", extra={"peer": zone, "key": key_id.hex(), "why": why})


class MessageSigners:
    """The signers of one message. Their certificates came with it (`_received`), are trusted already (`known`), or are
    in the store. `trusted` collects the keys that this message confirms."""

    def __init__(
        self,
        held: SignerStore,
        policy: TrustPolicy,
        certificates: Sequence[bytes],
        trusted: dict[tuple[str, bytes], TrustedKey],
        now_ms: int,
    ) -> None:
        self._held, self._policy, self._now_ms, self.known = held, policy, now_ms, trusted
        self._received: dict[tuple[str, bytes], list[bytes]] = {}
        for certificate in certificates:
            named = _described(certificate)
            if isinstance(named, Signer):
                of_key = self._received.setdefault((named.zone, named.key_id), [])
                if len(of_key) < CERTIFICATES_OF_KEY_MAX:  # an honest peer never sends more
                    of_key.append(certificate)
        self._resolved: dict[tuple[str, bytes], Signer | CertificateRefusal | None] = {}
        self.trusted: dict[tuple[str, bytes], TrustedKey] = {}

    def of(self, zone: str, key_id: bytes) -> tuple[Sequence[bytes], bool]:
        """The certificates to store with a head, and whether they are trusted. Trusted ones are stored with each page,
        because the page with which they came may not have been stored; others only with the page that brought them."""
        trusted = self.trusted.get((zone, key_id))
        return (self._received.get((zone, key_id), ()), False) if trusted is None else (trusted.certificates, True)

    def resolve(self, zone: str, key_id: bytes) -> Signer | CertificateRefusal | None:
        """The signer of a zone with this key; if none is trusted, the last refusal; None for an unknown key."""
        key = zone, key_id
        if key not in self._resolved:
            self._resolved[key] = self._find(zone, key_id)
        return self._resolved[key]

    def _find(self, zone: str, key_id: bytes) -> Signer | CertificateRefusal | None:
        trusted, refused = self.known.get((zone, key_id)), None
        if trusted is not None and self._policy.trust.is_suspect(key_id, self._now_ms):
            trusted = None
        own = self._policy.own_certificates if zone in {self._policy.own_zone, self._policy.own_node} else ()
        came = [*own, *self._received.get((zone, key_id), ())]
        # Stored certificates are read only for a key that is not yet trusted: after a restart they join the renewals of
        # years.
        for certificate in came if trusted is not None else [*self._held.signers([key_id]), *came]:
            if trusted is not None and certificate in trusted.certificates:
                continue
            found = self._policy.signer(certificate, self._now_ms)
            if isinstance(found, CertificateRefusal):
                refused = found
            elif (found.zone, found.key_id) == (zone, key_id):
                new = TrustedKey((certificate,), found)
                trusted = new if trusted is None else trusted.joined(new)
        if trusted is None:
            return refused
        self.trusted[zone, key_id] = trusted
        return trusted.signer


def remember(known: dict[_K, _V], new: Mapping[_K, _V]) -> None:
    """Add entries as the newest; the oldest are dropped beyond SIGNERS_KNOWN_MAX."""
    for key, value in new.items():
        known.pop(key, None)
        known[key] = value
    while len(known) > SIGNERS_KNOWN_MAX:
        del known[next(iter(known))]
