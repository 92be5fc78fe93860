"""Certificates: their contents as plain values, whether key, certificate and issuer belong together, and the parts of
those that the authority signs, each with the reason for its form.

Only signatures are checked here; dates, names and purposes are checked in `checks`. Signs nothing and touches no file.
"""

from __future__ import annotations

import hashlib
import ipaddress
import re
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TypeVar

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric.types import CertificatePublicKeyTypes
from cryptography.x509.oid import ExtendedKeyUsageOID

from agent.replication.pki.problem import PkiError
from agent.replication.protocol.topics import is_node
from agent.signing.certificates import FACT_SIGNING, common_name_in
from agent.signing.x509_parts import Key, public_key_of

_T = TypeVar("_T", bound=x509.ExtensionType)

BACKDATED = timedelta(hours=1)
"""A certificate is valid from this long before it was signed, for gateways whose clock is behind."""

WARN_DAYS = 30
"""With fewer days left, the end of a certificate or of a revocation list is reported."""

_DNS_NAME = re.compile(r"(?=.{1,253}\Z)[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?(\.[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?)*")


@dataclass(frozen=True, slots=True)
class CertificateDetails:
    """The contents of a certificate for display. `zone` is empty if the common name is not a valid zone, `key_sha256`
    if the kind of key is not known here."""

    subject: str
    zone: str
    issuer: str
    serial: str
    purposes: tuple[str, ...]
    hosts: tuple[str, ...]
    not_before: datetime
    not_after: datetime
    days_left: int
    valid_now: bool
    is_ca: bool
    fingerprint_sha256: str
    key_sha256: str


def describe(certificate: x509.Certificate, now: datetime) -> CertificateDetails:
    """The contents of `certificate`; `days_left` and `valid_now` as of `now`."""
    common_name, key = common_name_in(certificate.subject), public_key_of(certificate)
    usage = extension_of(certificate, x509.ExtendedKeyUsage)
    hosts = extension_of(certificate, x509.SubjectAlternativeName)
    purposes = {
        ExtendedKeyUsageOID.CLIENT_AUTH: "client",
        ExtendedKeyUsageOID.SERVER_AUTH: "server",
        FACT_SIGNING: "signing facts",
    }
    return CertificateDetails(
        subject=certificate.subject.rfc4514_string(),
        zone=common_name if is_node(common_name) else "",
        issuer=certificate.issuer.rfc4514_string(),
        serial=f"{certificate.serial_number:x}",
        purposes=tuple(purposes.get(oid, oid.dotted_string) for oid in usage) if usage else (),
        hosts=tuple(str(host.value) for host in hosts) if hosts else (),
        not_before=certificate.not_valid_before_utc,
        not_after=certificate.not_valid_after_utc,
        days_left=(certificate.not_valid_after_utc - now).days,
        valid_now=certificate.not_valid_before_utc <= now <= certificate.not_valid_after_utc,
        is_ca=is_ca(certificate),
        fingerprint_sha256=certificate.fingerprint(hashes.SHA256()).hex(":"),
        key_sha256="" if key is None else key_fingerprint(key),
    )


def is_ca(certificate: x509.Certificate) -> bool:
    """Whether it may sign other certificates."""
    constraints = extension_of(certificate, x509.BasicConstraints)
    return constraints is not None and constraints.ca


def extension_of(
    signed: x509.Certificate
    | x509.CertificateSigningRequest
    | x509.CertificateRevocationList
    | x509.RevokedCertificate,
    kind: type[_T],
) -> _T | None:
    """One extension; None if it is absent, duplicate or unreadable."""
    try:
        return signed.extensions.get_extension_for_class(kind).value
    except (x509.ExtensionNotFound, x509.DuplicateExtension, ValueError):
        return None


def key_matches(certificate: x509.Certificate, key: Key) -> bool:
    """Whether the certificate was made for this key."""
    return public_key_of(certificate) == key.public_key()


def authority_identifier(authority: x509.Certificate) -> x509.AuthorityKeyIdentifier:
    """The identifier of the authority's key."""
    identifier = authority.extensions.get_extension_for_class(x509.SubjectKeyIdentifier).value
    return x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(identifier)


def general_name(host: str) -> x509.GeneralName:
    """A host name or address of a broker. Raises PkiError."""
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        pass
    if not _DNS_NAME.fullmatch(host.lower()):
        raise PkiError(
            f"{host[:80]!r} is neither a host name nor an address",
            "give one name or address, without port, wildcard or path (non-ASCII names in xn-- form)",
        )
    return x509.DNSName(host.lower())


def key_fingerprint(key: CertificatePublicKeyTypes) -> str:
    """SHA-256 of the public key (SubjectPublicKeyInfo), in hex with colons: for comparing a request with its origin."""
    form = (serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo)
    return hashlib.sha256(key.public_bytes(*form)).digest().hex(":")
