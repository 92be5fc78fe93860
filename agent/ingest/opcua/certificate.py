"""Our own application certificate (OPC 10000-4, 6.1): made once, kept, never replaced behind the operator's back.

Servers identify a client by this certificate and by the application URI inside it; one that changed at every start
would have to be trusted by hand at every start.
"""

from __future__ import annotations

import os
import socket
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from agent.ingest.errors import SourceRefused

KEY_BITS = 2048  # the floor of Basic256Sha256 and the most that old devices take
LIFETIME_DAYS = 3650  # a gateway's life; its end is watched like any other certificate's
CLOCK_SLACK_DAYS = 1  # a device whose clock is behind must not find it "not yet valid"


def ensure_certificate(certificate_file: Path, key_file: Path, application_uri: str) -> None:
    """Make key and self-signed certificate (PEM) unless both are there. One without the other is refused."""
    there = certificate_file.exists(), key_file.exists()
    if all(there):
        return
    if any(there):
        missing = key_file if there[0] else certificate_file
        raise SourceRefused(f"{missing} is missing beside its other half; restore it, or remove both to make new ones")
    key = rsa.generate_private_key(public_exponent=65537, key_size=KEY_BITS)
    _write(key_file, _key_pem(key), 0o600)
    _write(certificate_file, _self_signed(key, application_uri).public_bytes(serialization.Encoding.PEM), 0o644)


def _self_signed(key: rsa.RSAPrivateKey, application_uri: str) -> x509.Certificate:
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "bsfg")])
    names = [x509.UniformResourceIdentifier(application_uri), x509.DNSName(socket.gethostname() or "localhost")]
    usage = x509.KeyUsage(
        digital_signature=True,
        content_commitment=True,
        key_encipherment=True,
        data_encipherment=True,
        key_agreement=False,
        key_cert_sign=False,
        crl_sign=False,
        encipher_only=False,
        decipher_only=False,
    )
    now = datetime.now(UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(days=CLOCK_SLACK_DAYS))
        .not_valid_after(now + timedelta(days=LIFETIME_DAYS))
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(usage, critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.CLIENT_AUTH]), critical=False)
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .sign(key, hashes.SHA256())
    )


def _key_pem(key: rsa.RSAPrivateKey) -> bytes:
    encoding, form = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
    return key.private_bytes(encoding, form, serialization.NoEncryption())


def _write(file: Path, data: bytes, mode: int) -> None:
    """Whole or not at all: written beside, then renamed."""
    file.parent.mkdir(parents=True, exist_ok=True)
    part = file.with_name(file.name + ".part")
    descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode)
    with os.fdopen(descriptor, "wb") as handle:
        handle.write(data)
        handle.flush()
        os.fsync(handle.fileno())
    part.replace(file)
