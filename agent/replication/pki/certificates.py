"""The contents of a certificate as plain values, and whether key, certificate and issuer belong together.

Only signatures are checked here; dates, names and purposes are checked in `checks`.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import TypeVar

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from agent.replication.pki.files import Key
from agent.replication.protocol.topics import is_zone

_T = TypeVar("_T", bound=x509.ExtensionType)


@dataclass(frozen=True, slots=True)
class CertificateDetails:
    """The contents of a certificate for display. `zone` is empty if the common name is not a valid zone."""

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


def describe(certificate: x509.Certificate, now: datetime) -> CertificateDetails:
    """The contents of `certificate`; `days_left` and `valid_now` as of `now`."""
    common_name = common_name_of(certificate)
    usage = extension_of(certificate, x509.ExtendedKeyUsage)
    hosts = extension_of(certificate, x509.SubjectAlternativeName)
    purposes = {ExtendedKeyUsageOID.CLIENT_AUTH: "client", ExtendedKeyUsageOID.SERVER_AUTH: "server"}
    return CertificateDetails(
        subject=certificate.subject.rfc4514_string(),
        zone=common_name if is_zone(common_name) else "",
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
    )


def common_name_of(certificate: x509.Certificate) -> str:
    """The common name; empty if there are none or several, because broker and node might then use different ones."""
    names = certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME)
    return str(names[0].value) if len(names) == 1 else ""


def is_ca(certificate: x509.Certificate) -> bool:
    """Whether it may sign other certificates."""
    constraints = extension_of(certificate, x509.BasicConstraints)
    return constraints is not None and constraints.ca


def extension_of(certificate: x509.Certificate, kind: type[_T]) -> _T | None:
    """One extension; None if it is absent, duplicate or unreadable."""
    try:
        return certificate.extensions.get_extension_for_class(kind).value
    except (x509.ExtensionNotFound, x509.DuplicateExtension, ValueError):
        return None


def key_matches(certificate: x509.Certificate, key: Key) -> bool:
    """Whether the certificate was made for this key."""
    form = (serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo)
    return certificate.public_key().public_bytes(*form) == key.public_key().public_bytes(*form)


def is_signed_by(certificate: x509.Certificate, issuer: x509.Certificate) -> bool:
    """Whether `issuer` signed it."""
    try:
        certificate.verify_directly_issued_by(issuer)
    except (InvalidSignature, UnsupportedAlgorithm, TypeError, ValueError):
        return False  # another key, or a kind of key that cannot be verified here
    return True
