"""Verifies signed ends, and requests and answers of peers, with the certificates that came with a message, are trusted
already, or are held by the store.

A key may have several certificates, one for each renewal; it counts from the first's begin to the last's end. Calls may
come from several threads. The disk is read only for a key that is not believed yet.
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
from agent.signing.certificates import Refusal, RefusalReason, Signer, SignerTrust, describe_signer, signer_of
from agent.signing.heads import KEY_ID_BYTES
from agent.signing.messages import MessagePlace, MessageProof, answer_bytes, request_bytes
from agent.signing.runs import Rule

log = logging.getLogger(__name__)

RENEWED_BEFORE_MS = 86_400_000
"""For so long before the end of a certificate its key is not named as known, so that the next one comes in time."""
OTHERS_PER_SECOND = 20
"""Certificates and key ids in messages of one zone that are looked at, besides those that have counted before. A node
has one, and another one after a renewal; a forger a new one in each message, which takes two milliseconds of the event
loop if it has many names, and a look into the store."""
CERTIFICATES_BELIEVED_MAX = 16
"""Of one key, the newest: as many as pins of one zone."""
_K = TypeVar("_K")
_V = TypeVar("_V")


class HeldSigners(Protocol):
    """What a store says of signers."""

    def signers(self, key_ids: Iterable[bytes]) -> Sequence[bytes]:
        """The certificates (DER) held of keys."""
        ...

    def signed_zones(self) -> frozenset[str]:
        """The zones of which a signature of facts was ever verified."""
        ...


class NothingHeld:
    """Of a process without a store."""

    def signers(self, _key_ids: Iterable[bytes]) -> Sequence[bytes]:
        return ()

    def signed_zones(self) -> frozenset[str]:
        return frozenset()


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


class Believed(NamedTuple):
    """The believed certificates of a key of a zone, and the signer that they name together."""

    certificates: tuple[bytes, ...]
    signer: Signer

    def joined(self, other: Believed) -> Believed:
        """With the certificates of another as the newest."""
        new = [one for one in other.certificates if one not in self.certificates]
        kept = (*self.certificates, *new)[-CERTIFICATES_BELIEVED_MAX:]
        return Believed(kept, self.signer.joined(other.signer))


class MessageJudge:
    """Judges what zones have signed. `held` is the store of the process, if it has one."""

    def __init__(
        self,
        beliefs: Beliefs | None = None,
        held: HeldSigners | None = None,
        clock_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
    ) -> None:
        self._beliefs = beliefs or Beliefs()
        self._held = held or NothingHeld()
        self._clock_ms = clock_ms
        self._lock = threading.Lock()
        self._signing = frozenset[str]()  # zones that have signed a request or an answer
        self._outside_dates = frozenset[tuple[str, bytes]]()  # keys of peers that were reported
        self._believed: dict[tuple[str, bytes], Believed] = {}  # by zone and key id
        self._counted: dict[
            tuple[str, bytes], None
        ] = {}  # zone, and certificate or key id, of messages that were taken
        self._others: dict[str, TokenBucket] = {}  # by zone: what else of it is looked at

    def believe(self, trust: SignerTrust, rules: Mapping[str, Rule]) -> None:
        """Believe these signers, by these rules, from the next page and message on. What a zone has proven to have a
        key stays known."""
        with self._lock:
            self._beliefs = replace(self._beliefs, trust=trust, rules=rules)
            self._believed = {}

    def sign_as(self, certificate: bytes | None) -> None:
        """Our own key is another one, or none. What the keys of this process before it have signed stays ours."""
        with self._lock:
            before = [one for one in self._beliefs.own_certificates if one != certificate]
            own = () if certificate is None else (certificate, *before)[:CERTIFICATES_BELIEVED_MAX]
            self._beliefs = replace(self._beliefs, own_certificates=own)

    def signers_known(self) -> list[str]:
        """Key ids whose certificates a peer need not send."""
        until_ms = self._clock_ms() + RENEWED_BEFORE_MS
        with self._lock:
            known = [key_id for (_, key_id), one in self._believed.items() if one.signer.not_after_ms > until_ms]
        return [key_id.hex() for key_id in dict.fromkeys(known)][-SIGNERS_KNOWN_MAX:]

    def demands(self, zone: str) -> bool:
        """Whether messages of a zone are taken with its signature only."""
        rule = self._beliefs.rule_of(zone)
        return rule == "required" or (rule != "off" and (zone in self._signing or zone in self._held.signed_zones()))

    def refuses_request(
        self, place: MessagePlace, request: bytes | memoryview, proof: MessageProof | None, *, is_writing: bool
    ) -> str | None:
        """Why a request that changes something here is not taken for the asking zone's; None where it is, or where its
        zone need not sign. `is_writing`: it adds to what is stored here."""
        covered = partial(request_bytes, place, request)
        return self._refuses_message(place.asking_zone, covered, proof, is_writing=is_writing)

    def refuses_answer(self, place: MessagePlace, answer: bytes | memoryview, proof: MessageProof | None) -> str | None:
        """Why an answer is not taken for the serving zone's; None as for a request."""
        covered = partial(answer_bytes, place, answer)
        return self._refuses_message(place.serving_zone, covered, proof, is_writing=False)

    def _refuses_message(
        self, zone: str, covered: Callable[[], bytes], proof: MessageProof | None, *, is_writing: bool
    ) -> str | None:
        """A zone must sign once it has signed a message or facts, or where its signatures are required. The message
        itself (`covered`) is looked at last: all else costs nothing for a large one."""
        if self._beliefs.rule_of(zone) == "off":
            return None
        must_sign = self.demands(zone)
        if proof is None:
            return f"{zone} did not sign it" if must_sign else None
        if not self._may_look_at(zone, proof.certificate):
            return f"{zone} sends other certificates too often" if must_sign else None
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
        # The dates of a certificate limit what its zone may write. They do not limit who carries facts of other zones,
        # which those have signed themselves (decision 0056).
        refusal = signer.refuses(self._clock_ms())
        if refusal is not None and is_writing:
            return f"the certificate of {zone}: {refusal.reason.value}"
        if not signer.public.verify(covered(), proof.signature):
            return f"the signature is not that of {zone}"
        if refusal is not None:
            self._report_dates(zone, key_id, refusal)
        with self._lock:
            remember(signers.before, signers.believed)
            # A false certificate of a key that is believed would displace true ones.
            if proof.certificate in {key_id, *signers.believed[zone, key_id].certificates}:
                remember(self._counted, {(zone, proof.certificate): None})
            self._signing |= {zone}
        return None

    def _may_look_at(self, zone: str, certificate: bytes) -> bool:
        """Whether the certificate or key id of a message is looked at: one that has counted before, and of others so
        many a second."""
        now_ms = self._clock_ms()
        with self._lock:
            if (zone, certificate) in self._counted:
                return True
            others = self._others.setdefault(zone, TokenBucket(OTHERS_PER_SECOND))
            if others.ready_ms(now_ms, Priority.BACKLOG) > now_ms:
                return False
            others.spend(1, now_ms)
            return True

    def _report_dates(self, zone: str, key_id: bytes, refusal: Refusal) -> None:
        """One line in the log for each key of a peer whose certificate has ended."""
        with self._lock:
            is_known = (zone, key_id) in self._outside_dates
            self._outside_dates |= {(zone, key_id)}
        if not is_known:
            why = f"the certificate of {zone}: {refusal.reason.value}; what it relays is taken, its own facts are not"
            log.warning("peer_key_outside_dates", extra={"peer": zone, "key": key_id.hex(), "why": why})

    def _signers(self, certificates: Sequence[bytes]) -> MessageSigners:
        with self._lock:  # what is believed belongs to the beliefs under which it was found
            return MessageSigners(self._held, self._beliefs, certificates, self._believed, self._clock_ms())


class MessageSigners:
    """The signers of one message: certificates that came with it, that are believed already, or that the store
    holds."""

    def __init__(
        self,
        held: HeldSigners,
        beliefs: Beliefs,
        certificates: Sequence[bytes],
        believed: dict[tuple[str, bytes], Believed],
        now_ms: int,
    ) -> None:
        self._held, self._beliefs, self._now_ms, self.before = held, beliefs, now_ms, believed
        self._came: dict[tuple[str, bytes], list[bytes]] = {}
        for one in certificates:
            named = _described(one)
            if isinstance(named, Signer):
                of_key = self._came.setdefault((named.zone, named.key_id), [])
                if len(of_key) < CERTIFICATES_OF_KEY_MAX:  # an honest peer sends no more
                    of_key.append(one)
        self._resolved: dict[tuple[str, bytes], Signer | Refusal | None] = {}
        self.believed: dict[tuple[str, bytes], Believed] = {}

    def of(self, zone: str, key_id: bytes) -> tuple[Sequence[bytes], bool]:
        """The certificates to be stored with a head, and whether they are believed. Those that are, with each page: the
        page that they came with may not have been stored. Else those that came with this page."""
        believed = self.believed.get((zone, key_id))
        return (self._came.get((zone, key_id), ()), False) if believed is None else (believed.certificates, True)

    def resolve(self, zone: str, key_id: bytes) -> Signer | Refusal | None:
        """The signer of a zone with this key; the reason of the last refusal where none is believed."""
        key = zone, key_id
        if key not in self._resolved:
            self._resolved[key] = self._find(zone, key_id)
        return self._resolved[key]

    def _find(self, zone: str, key_id: bytes) -> Signer | Refusal | None:
        believed, refused = self.before.get((zone, key_id)), None
        if believed is not None and self._beliefs.trust.is_suspect(key_id, self._now_ms):
            believed = None
        own = self._beliefs.own_certificates if zone == self._beliefs.own_zone else ()
        came = [*own, *self._came.get((zone, key_id), ())]
        # What is held counts where nothing is believed yet, so that renewals of years are joined after a restart.
        for certificate in came if believed is not None else [*self._held.signers([key_id]), *came]:
            if believed is not None and certificate in believed.certificates:
                continue
            found = self._beliefs.signer(certificate, self._now_ms)
            if isinstance(found, Refusal):
                refused = found
            elif (found.zone, found.key_id) == (zone, key_id):
                new = Believed((certificate,), found)
                believed = new if believed is None else believed.joined(new)
        if believed is None:
            return refused
        self.believed[zone, key_id] = believed
        return believed.signer


def remember(known: dict[_K, _V], new: Mapping[_K, _V]) -> None:
    """Add entries as the newest; the oldest are dropped beyond SIGNERS_KNOWN_MAX."""
    for key, value in new.items():
        known.pop(key, None)
        known[key] = value
    while len(known) > SIGNERS_KNOWN_MAX:
        del known[next(iter(known))]
