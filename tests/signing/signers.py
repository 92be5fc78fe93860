"""Certificates of signers and authorities, good ones and those that an attacker or a careless PKI would make."""

import hashlib
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from agent.signing.certificates import FACT_SIGNING
from agent.signing.keys import SigningKey

NOW = datetime(2026, 6, 1, 12, 0, tzinfo=UTC)
NOW_MS = round(NOW.timestamp() * 1000)
ENDS = datetime(2200, 1, 1, tzinfo=UTC)  # a certificate that a test of the real clock can use, whenever it runs
ENDS_MS = round(ENDS.timestamp() * 1000)
DAY_MS = 86_400_000
CLIENT, SERVER = ExtendedKeyUsageOID.CLIENT_AUTH, ExtendedKeyUsageOID.SERVER_AUTH


@dataclass(frozen=True)
class Made:
    """A certificate with its key."""

    certificate: x509.Certificate
    key: Any

    @property
    def der(self) -> bytes:
        return self.certificate.public_bytes(serialization.Encoding.DER)

    @property
    def pem(self) -> bytes:
        return self.certificate.public_bytes(serialization.Encoding.PEM)

    @property
    def key_pem(self) -> bytes:
        form = serialization.PrivateFormat.PKCS8
        return self.key.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption())

    @property
    def sha256(self) -> bytes:
        return hashlib.sha256(self.der).digest()


def make(
    name: str,
    issuer: Made | None = None,
    *,
    key: Any = None,
    usages: tuple[x509.ObjectIdentifier, ...] = (FACT_SIGNING,),
    is_ca: bool = False,
    signs: bool = True,
    signs_all: bool = False,
    begins: datetime = NOW - timedelta(days=1),
    ends: datetime = ENDS,
    names: tuple[str, ...] = (),
    more: tuple[tuple[x509.ExtensionType, bool], ...] = (),
) -> Made:
    """A certificate; self-signed without an issuer."""
    key = key or ed25519.Ed25519PrivateKey.generate()
    subject = x509.Name(
        [x509.NameAttribute(NameOID.COMMON_NAME, common_name) for common_name in (name, *names) if common_name]
    )
    usage = dict.fromkeys(
        ("content_commitment", "key_encipherment", "data_encipherment", "key_agreement"), False
    )  # and the rest by purpose
    builder = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer.certificate.subject if issuer else subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(begins)
        .not_valid_after(ends)
        .add_extension(x509.BasicConstraints(ca=is_ca, path_length=0 if is_ca else None), critical=True)
        .add_extension(
            x509.KeyUsage(
                digital_signature=signs_all or (signs and not is_ca),
                key_cert_sign=signs_all or (signs and is_ca),
                crl_sign=False,
                encipher_only=False,
                decipher_only=False,
                **usage,
            ),
            critical=True,
        )
    )
    if usages:
        builder = builder.add_extension(x509.ExtendedKeyUsage(usages), critical=True)
    for extension, critical in more:
        builder = builder.add_extension(extension, critical=critical)
    signer = issuer.key if issuer else key
    algorithm = None if isinstance(signer, ed25519.Ed25519PrivateKey) else hashes.SHA256()
    return Made(builder.sign(signer, algorithm), key)


def p256() -> ec.EllipticCurvePrivateKey:
    """A key of another kind."""
    return ec.generate_private_key(ec.SECP256R1())


def signing_key(made: Made) -> SigningKey:
    """The key of a signer, to sign with."""
    return SigningKey(made.key)
