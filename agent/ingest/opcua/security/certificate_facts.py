"""The contents of a certificate: thumbprints, validity, names and uses.

Core: takes bytes, returns values. Servers show the SHA-1 thumbprint of a certificate (OPC 10000-4, 7.2 "Thumbprint"),
so every message has it. Pins use SHA-256. The parser is stricter than the programs that made the certificates of many
devices (`critical FALSE` written out, a serial number with a leading zero); a pin needs only the hash and the key.
"""

from __future__ import annotations

import binascii
import hashlib
import warnings
from dataclasses import dataclass
from datetime import UTC, datetime

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.asymmetric.types import PublicKeyTypes
from cryptography.hazmat.primitives.serialization import Encoding, load_der_public_key
from cryptography.utils import CryptographyDeprecationWarning

# What it will refuse one day is read as long as it can be, and then as what it refuses today.
warnings.filterwarnings("ignore", "Parsed a serial number", CryptographyDeprecationWarning)

CHAIN_MAX = 10  # certificates in a ServerCertificate field; a chain to a root has two to four
_EARLIEST, _LATEST = datetime.min.replace(tzinfo=UTC), datetime.max.replace(tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class CertificateFacts:
    """One certificate. Times are UTC. `key_bits` is 0 for a key that is not RSA. `fault`: why the parser refuses it;
    then only `der`, the thumbprints and `key_bits` are known."""

    der: bytes
    key_bits: int
    subject: str = "unreadable"
    issuer: str = "unreadable"
    not_before: datetime = _EARLIEST
    not_after: datetime = _LATEST
    uris: tuple[str, ...] = ()
    host_names: tuple[str, ...] = ()
    is_self_issued: bool = False
    fault: str = ""

    @property
    def sha1(self) -> str:
        """The thumbprint that servers show."""
        return hashlib.sha1(self.der, usedforsecurity=False).hexdigest().upper()

    @property
    def sha256(self) -> str:
        """The thumbprint of pins."""
        return hashlib.sha256(self.der).hexdigest()

    @property
    def thumbprints(self) -> str:
        """Both thumbprints, for messages."""
        return f"SHA-1 {self.sha1}, SHA-256 {self.sha256}"

    @property
    def validity(self) -> str:
        """The time of validity, for messages."""
        if self.fault:
            return "unknown"
        return f"{self.not_before:%Y-%m-%d %H:%M} to {self.not_after:%Y-%m-%d %H:%M} UTC"

    def days_left(self, now: datetime) -> float:
        """Days until it expires; negative if it has expired."""
        return (self.not_after - now).total_seconds() / 86_400


def parse_certificate(data: bytes) -> x509.Certificate:
    """A certificate in PEM or DER, detected by its content. Raises ValueError."""
    return x509.load_pem_x509_certificate(data) if b"-----BEGIN" in data else x509.load_der_x509_certificate(data)


def facts_of(data: bytes) -> CertificateFacts:
    """The facts of a certificate in PEM or DER. Raises ValueError if not even its key can be found."""
    try:
        return _parsed(parse_certificate(data))
    except (ValueError, x509.DuplicateExtension, x509.UnsupportedGeneralNameType, UnsupportedAlgorithm) as error:
        return _unparsed(_der_of(data), str(error))


def _parsed(certificate: x509.Certificate) -> CertificateFacts:
    try:
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        names = x509.SubjectAlternativeName([])
    return CertificateFacts(
        der=certificate.public_bytes(Encoding.DER),
        key_bits=_key_bits(certificate.public_key()),
        subject=certificate.subject.rfc4514_string(),
        issuer=certificate.issuer.rfc4514_string(),
        not_before=certificate.not_valid_before_utc,
        not_after=certificate.not_valid_after_utc,
        uris=tuple(names.get_values_for_type(x509.UniformResourceIdentifier)),
        host_names=(
            *names.get_values_for_type(x509.DNSName),
            *(str(address) for address in names.get_values_for_type(x509.IPAddress)),
        ),
        is_self_issued=certificate.subject == certificate.issuer,
    )


def _unparsed(der: bytes, fault: str) -> CertificateFacts:
    key = public_key_of(der)
    if _der_size(der) != len(der):
        raise ValueError("is not one certificate")
    return CertificateFacts(der, _key_bits(key), fault=fault)


def _key_bits(key: PublicKeyTypes) -> int:
    return key.key_size if isinstance(key, rsa.RSAPublicKey) else 0


def _der_of(data: bytes) -> bytes:
    begin, end = b"-----BEGIN CERTIFICATE-----", b"-----END"
    return binascii.a2b_base64(data.split(begin)[1].split(end)[0]) if begin in data else data


def public_key_of(der: bytes) -> PublicKeyTypes:
    """The public key of a certificate, found by its place (RFC 5280, 4.1). Raises ValueError."""
    try:
        fields = _elements(_elements(der)[0])
        place = 6 if fields[0][:1] == b"\xa0" else 5  # a version before the serial number
        return load_der_public_key(fields[place])
    except (IndexError, UnsupportedAlgorithm) as error:
        raise ValueError("has no key that can be read") from error


def _elements(data: bytes) -> list[bytes]:
    """The elements of a DER sequence."""
    rest, found = data[_head_size(data) : _der_size(data)], []
    while rest:
        size = _der_size(rest)
        found.append(rest[:size])
        rest = rest[size:]
    return found


def split_chain(data: bytes) -> list[bytes]:
    """The certificates of a ServerCertificate field, the server's own first (OPC 10000-6, 6.2.6). Raises ValueError."""
    found: list[bytes] = []
    while data:
        if len(found) == CHAIN_MAX:
            raise ValueError(f"holds more than {CHAIN_MAX} certificates")
        if data[0] != 0x30:
            raise ValueError("is no certificate")
        size = _der_size(data)
        if size > len(data):
            raise ValueError("is cut short")
        found.append(data[:size])
        data = data[size:]
    return found


def _der_size(data: bytes) -> int:
    """The number of bytes of the DER element at the beginning."""
    head = _head_size(data)
    return head + (data[1] if head == 2 else int.from_bytes(data[2:head], "big"))


def _head_size(data: bytes) -> int:
    """The number of bytes of its tag and length."""
    if len(data) < 2:
        raise ValueError("is no certificate")
    return 2 if data[1] < 0x80 else 2 + (data[1] & 0x7F)
