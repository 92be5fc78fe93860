"""The contents of a certificate: thumbprints, validity, names and uses.

Core: takes bytes, returns values. Servers show the SHA-1 thumbprint of a certificate (OPC 10000-4, 7.2 "Thumbprint"),
so every message has it. Pins use SHA-256.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from datetime import datetime

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.serialization import Encoding

CHAIN_MAX = 10  # certificates in a ServerCertificate field; a chain to a root has two to four


@dataclass(frozen=True, slots=True)
class CertificateFacts:
    """One certificate. Times are UTC. `key_bits` is 0 for a key that is not RSA."""

    der: bytes
    subject: str
    issuer: str
    sha1: str
    sha256: str
    not_before: datetime
    not_after: datetime
    uris: tuple[str, ...]
    host_names: tuple[str, ...]
    key_bits: int
    is_self_issued: bool

    @property
    def thumbprints(self) -> str:
        """Both thumbprints, for messages."""
        return f"SHA-1 {self.sha1}, SHA-256 {self.sha256}"

    @property
    def validity(self) -> str:
        """The time of validity, for messages."""
        return f"{self.not_before:%Y-%m-%d %H:%M} to {self.not_after:%Y-%m-%d %H:%M} UTC"

    def days_left(self, now: datetime) -> float:
        """Days until it expires; negative if it has expired."""
        return (self.not_after - now).total_seconds() / 86_400


def parse_certificate(data: bytes) -> x509.Certificate:
    """A certificate in PEM or DER, detected by its content. Raises ValueError."""
    return x509.load_pem_x509_certificate(data) if b"-----BEGIN" in data else x509.load_der_x509_certificate(data)


def facts_of(data: bytes) -> CertificateFacts:
    """The facts of a certificate in PEM or DER. Raises ValueError."""
    certificate = parse_certificate(data)
    der = certificate.public_bytes(Encoding.DER)
    try:
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        names = x509.SubjectAlternativeName([])
    key = certificate.public_key()
    return CertificateFacts(
        der=der,
        subject=certificate.subject.rfc4514_string(),
        issuer=certificate.issuer.rfc4514_string(),
        sha1=hashlib.sha1(der, usedforsecurity=False).hexdigest().upper(),
        sha256=hashlib.sha256(der).hexdigest(),
        not_before=certificate.not_valid_before_utc,
        not_after=certificate.not_valid_after_utc,
        uris=tuple(names.get_values_for_type(x509.UniformResourceIdentifier)),
        host_names=(
            *names.get_values_for_type(x509.DNSName),
            *(str(address) for address in names.get_values_for_type(x509.IPAddress)),
        ),
        key_bits=key.key_size if isinstance(key, rsa.RSAPublicKey) else 0,
        is_self_issued=certificate.subject == certificate.issuer,
    )


def split_chain(data: bytes) -> list[bytes]:
    """The certificates of a ServerCertificate field, the server's own first (OPC 10000-6, 6.2.6). Raises ValueError."""
    found: list[bytes] = []
    while data:
        if len(found) == CHAIN_MAX:
            raise ValueError(f"holds more than {CHAIN_MAX} certificates")
        size = _der_size(data)
        if size > len(data):
            raise ValueError("is cut short")
        found.append(data[:size])
        data = data[size:]
    return found


def _der_size(data: bytes) -> int:
    """The number of bytes of the DER sequence at the beginning."""
    if len(data) < 2 or data[0] != 0x30:
        raise ValueError("is no certificate")
    if data[1] < 0x80:
        return 2 + data[1]
    count = data[1] & 0x7F
    return 2 + count + int.from_bytes(data[2 : 2 + count], "big")
