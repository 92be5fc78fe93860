"""The parts that the X.509 certificates of this program have in common, whatever they are for. Signs nothing and
touches no file. Core: no IO, no clock.
"""

from __future__ import annotations

from datetime import datetime

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.hazmat.primitives.asymmetric.types import CertificatePublicKeyTypes
from cryptography.x509.oid import NameOID

Key = ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey | ed25519.Ed25519PrivateKey
_USES = (
    *("digital_signature", "content_commitment", "key_encipherment", "data_encipherment", "key_agreement"),
    *("key_cert_sign", "crl_sign", "encipher_only", "decipher_only"),
)


def read_parts(certificate: x509.Certificate) -> None:
    """Read what the parser reads only when it is asked for, so that damage shows at once. Raises ValueError."""
    _ = certificate.subject, certificate.issuer, certificate.serial_number
    _ = certificate.not_valid_before_utc, certificate.not_valid_after_utc
    public_key_of(certificate)


def public_key_of(certificate: x509.Certificate) -> CertificatePublicKeyTypes | None:
    """Its key; None if it is of a kind that is not known here."""
    try:
        return certificate.public_key()
    except UnsupportedAlgorithm:
        return None


def subject_name(common_name: str) -> x509.Name:
    """A subject with this common name only."""
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common_name)])


def key_usage(*allowed: str) -> x509.KeyUsage:
    """The allowed uses of the key; all others are forbidden."""
    assert set(allowed) <= set(_USES), allowed
    return x509.KeyUsage(**{use: use in allowed for use in _USES})


def builder(
    subject: x509.Name, issuer: x509.Name, key: CertificatePublicKeyTypes, begins: datetime, ends: datetime
) -> x509.CertificateBuilder:
    """A certificate builder with the fields that all our certificates have."""
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(begins)
        .not_valid_after(ends)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
    )


def key_pem(key: Key, passphrase: bytes | None = None) -> bytes:
    """The PEM encoding of a private key, encrypted (AES-256) if there is a passphrase."""
    protection = serialization.BestAvailableEncryption(passphrase) if passphrase else serialization.NoEncryption()
    return key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, protection)
