"""Core: the zone and key that a signer certificate names, and whether the certificate is trusted.

A signer certificate is X.509 with an Ed25519 key, the zone as its only common name, and `FACT_SIGNING` as its only
extended key usage. TLS software refuses it because of that usage, and `signer_of` refuses every certificate with
another usage, so neither can be used as the other even if both are in one file. The authority that issues it must have
the same usage, alone: an authority for TLS cannot issue signers, and an authority for facts cannot issue certificates
for a broker.

Nothing here reads a file or a clock. A malformed certificate returns a refusal and raises nothing.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from enum import Enum

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from cryptography.x509.oid import NameOID

from agent.message import ZONE
from agent.signing.keys import SignerPublic

FACT_SIGNING = x509.ObjectIdentifier("2.25.64333063498152089396918625502270076693")
"""Extended key usage "signs the facts of a zone": UUID 306618eb-4f06-454c-9b0c-84f2f4bc3715 under the arc for UUIDs
(ITU-T X.667), which needs no registration."""

CERTIFICATE_BYTES_MAX = 4096
"""Ours have about 450 bytes; a certificate issued by an RSA authority of 4,096 bits has 1,500."""

_CRITICAL_KNOWN = (x509.BasicConstraints, x509.KeyUsage, x509.ExtendedKeyUsage)
# Everything that the parser raises for foreign bytes; some of these are not a ValueError.
_UNREADABLE = (
    ValueError,
    TypeError,
    UnsupportedAlgorithm,
    x509.InvalidVersion,
    x509.DuplicateExtension,
    x509.UnsupportedGeneralNameType,
)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class RefusalReason(Enum):
    """Why a signer, or one of its signatures, is not trusted."""

    MALFORMED = "not a certificate"
    WRONG_KEY = "not an Ed25519 key"
    NOT_A_SIGNER = "not for signing facts"
    NO_ZONE = "no zone as its common name"
    UNKNOWN_ISSUER = "neither issued by a trusted facts authority nor pinned"
    COMPROMISED = "the key is compromised"
    TOO_EARLY = "signed before the certificate was valid"
    EXPIRED = "signed after the certificate had expired"


@dataclass(frozen=True, slots=True)
class CertificateRefusal:
    """A certificate or a signing time that is refused. `detail` is for the operator; the only peer-controlled content
    in it is zone names and numbers."""

    reason: RefusalReason
    detail: str = ""

    def __str__(self) -> str:
        return f"{self.reason.value}: {self.detail}" if self.detail else self.reason.value


@dataclass(frozen=True, slots=True)
class Signer:
    """A zone's key, as a certificate names it. Times are ms since 1970, both inclusive; `signer_of` also limits them to
    the validity of the issuing authority."""

    zone: str
    public: SignerPublic
    not_before_ms: int
    not_after_ms: int

    @property
    def key_id(self) -> bytes:
        """8 bytes; see `keys.key_id_of`."""
        return self.public.key_id

    def joined(self, other: Signer) -> Signer:
        """The signer of two certificates of this key for this zone, as after a renewal: valid from the earlier
        beginning to the later end."""
        assert (self.zone, self.public) == (other.zone, other.public)
        begins_ms, ends_ms = min(self.not_before_ms, other.not_before_ms), max(self.not_after_ms, other.not_after_ms)
        return replace(self, not_before_ms=begins_ms, not_after_ms=ends_ms)

    def refuses(self, signed_at_ms: int) -> CertificateRefusal | None:
        """Why a signature made at this time does not count; None if it counts. The signer chooses the time, so this
        does not stop a stolen key; compromise dates do."""
        if signed_at_ms < self.not_before_ms:
            return CertificateRefusal(RefusalReason.TOO_EARLY, f"{signed_at_ms} < {self.not_before_ms} ms")
        if signed_at_ms > self.not_after_ms:
            return CertificateRefusal(RefusalReason.EXPIRED, f"{signed_at_ms} > {self.not_after_ms} ms")
        return None


@dataclass(frozen=True, slots=True)
class SignerTrust:
    """What the operator trusts.

    `anchors`: certificates of facts authorities, none of them refused by `refuse_anchor`. `pins`: for a zone, the
    SHA-256 of the only signer certificates accepted for it, regardless of the issuer. `compromised_since_ms`: for a key
    id, the time from which its signatures prove nothing.
    """

    anchors: Sequence[x509.Certificate] = ()
    pins: Mapping[str, frozenset[bytes]] = field(default_factory=dict)
    compromised_since_ms: Mapping[bytes, int] = field(default_factory=dict)

    def is_suspect(self, key_id: bytes, verified_at_ms: int) -> bool:
        """Whether facts of this key that were verified here at that time may be forged, because it is at or after the
        compromise. The time is the receiver's own, because the holder of a stolen key can write any `signed_at`."""
        since_ms = self.compromised_since_ms.get(key_id)
        return since_ms is not None and verified_at_ms >= since_ms


def signer_of(certificate_der: bytes, trust: SignerTrust, now_ms: int) -> Signer | CertificateRefusal:
    """The zone and key that a certificate names, if it is trusted at `now_ms`, the receiver's clock.

    An expired certificate still names its signer: what was signed while it was valid stays verifiable
    (`Signer.refuses`). A key that is compromised at `now_ms` is refused.
    """
    certificate = _parsed(certificate_der)
    if isinstance(certificate, CertificateRefusal):
        return certificate
    signer = _described(certificate)
    if isinstance(signer, CertificateRefusal):
        return signer
    what = f"{signer.zone}, key {signer.key_id.hex()}"
    if trust.is_suspect(signer.key_id, now_ms):
        return CertificateRefusal(
            RefusalReason.COMPROMISED, f"{what}, since {trust.compromised_since_ms[signer.key_id]} ms"
        )
    # Pins replace the authorities, so a compromised facts authority cannot add a signer to a pinned zone.
    if pins := trust.pins.get(signer.zone):
        if hashlib.sha256(certificate_der).digest() not in pins:
            return CertificateRefusal(RefusalReason.UNKNOWN_ISSUER, f"{what}, is not pinned")
        return signer
    # A site's own authority may have several certificates of one key: it was renewed.
    issuers = [anchor for anchor in trust.anchors if is_signed_by(certificate, anchor)]
    if not issuers:
        return CertificateRefusal(RefusalReason.UNKNOWN_ISSUER, what)
    return replace(
        signer,
        not_before_ms=max(signer.not_before_ms, min(_ms(issuer.not_valid_before_utc) for issuer in issuers)),
        not_after_ms=min(signer.not_after_ms, max(_ms(issuer.not_valid_after_utc) for issuer in issuers)),
    )


def describe_signer(certificate_der: bytes) -> Signer | CertificateRefusal:
    """The zone and key that a certificate names, trusted or not: for this node's own certificate, and for display."""
    certificate = _parsed(certificate_der)
    return certificate if isinstance(certificate, CertificateRefusal) else _described(certificate)


def refuse_anchor(certificate: x509.Certificate) -> CertificateRefusal | None:
    """Why a certificate, for example of a TLS authority, cannot be a facts authority; None if it can."""
    try:
        return _refuse_usage(certificate, is_authority=True)
    except _UNREADABLE:
        return CertificateRefusal(RefusalReason.MALFORMED)


def _parsed(certificate_der: bytes) -> x509.Certificate | CertificateRefusal:
    if len(certificate_der) > CERTIFICATE_BYTES_MAX:
        return CertificateRefusal(
            RefusalReason.MALFORMED, f"{len(certificate_der)} bytes; at most {CERTIFICATE_BYTES_MAX}"
        )
    try:
        return x509.load_der_x509_certificate(certificate_der)
    except _UNREADABLE:
        return CertificateRefusal(RefusalReason.MALFORMED)


def _described(certificate: x509.Certificate) -> Signer | CertificateRefusal:
    try:  # the parser reads these parts only when they are asked for
        begins_ms, ends_ms = _ms(certificate.not_valid_before_utc), _ms(certificate.not_valid_after_utc)
        key = certificate.public_key()
        refusal = _refuse_usage(certificate, is_authority=False)
        zone = common_name_in(certificate.subject)
    except _UNREADABLE:
        return CertificateRefusal(RefusalReason.MALFORMED)
    if refusal is not None:
        return refusal
    if not isinstance(key, Ed25519PublicKey):
        return CertificateRefusal(RefusalReason.WRONG_KEY)
    if not ZONE.fullmatch(zone):
        return CertificateRefusal(RefusalReason.NO_ZONE)
    return Signer(zone, SignerPublic(key.public_bytes_raw()), begins_ms, ends_ms)


def _refuse_usage(certificate: x509.Certificate, *, is_authority: bool) -> CertificateRefusal | None:
    """Why the extensions of a certificate do not make it one for facts alone; None if they do."""
    extensions = certificate.extensions
    for extension in extensions:
        # RFC 5280, 4.2: a critical extension that is not understood makes a certificate unusable.
        if extension.critical and not isinstance(extension.value, _CRITICAL_KNOWN):
            return CertificateRefusal(RefusalReason.NOT_A_SIGNER, f"critical extension {extension.oid.dotted_string}")
    by_kind = {type(extension.value): extension.value for extension in extensions}
    usage = by_kind.get(x509.ExtendedKeyUsage)
    if not isinstance(usage, x509.ExtendedKeyUsage) or list(usage) != [FACT_SIGNING]:
        return CertificateRefusal(
            RefusalReason.NOT_A_SIGNER, f"its extended key usage is not {FACT_SIGNING.dotted_string} alone"
        )
    constraints = by_kind.get(x509.BasicConstraints)
    if (isinstance(constraints, x509.BasicConstraints) and constraints.ca) != is_authority:
        return CertificateRefusal(RefusalReason.NOT_A_SIGNER, f"it is {'no' if is_authority else 'an'} authority")
    key_usage = by_kind.get(x509.KeyUsage)
    if not isinstance(key_usage, x509.KeyUsage):
        return CertificateRefusal(RefusalReason.NOT_A_SIGNER, "it has no key usage")
    if not (key_usage.key_cert_sign if is_authority else key_usage.digital_signature):
        return CertificateRefusal(RefusalReason.NOT_A_SIGNER, "its key usage does not allow it")
    return None


def common_name_in(name: x509.Name) -> str:
    """The common name; empty if there are none or several, because broker and node might then use different ones."""
    names = name.get_attributes_for_oid(NameOID.COMMON_NAME)
    return str(names[0].value) if len(names) == 1 else ""


def is_signed_by(certificate: x509.Certificate, issuer: x509.Certificate) -> bool:
    """Whether `issuer` signed it."""
    try:
        certificate.verify_directly_issued_by(issuer)
    except (InvalidSignature, *_UNREADABLE):
        return False  # another authority's name, another key, or a kind of key that cannot be verified here
    return True


def _ms(moment: datetime) -> int:
    return (moment - _EPOCH) // timedelta(milliseconds=1)
