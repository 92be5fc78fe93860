"""Certificates for tests: of an authority, of servers, lists of revoked ones; all with one key pair each kind, because
making RSA keys takes longer than everything else here."""

import functools
import ipaddress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

NOW = datetime(2026, 6, 1, 12, tzinfo=UTC)
URI = "urn:test:server"
_USES = ("digital_signature", "content_commitment", "key_encipherment", "data_encipherment", "key_agreement")
_AUTHORITY_USES = ("key_cert_sign", "crl_sign")


@functools.cache
def key(name: str, bits: int) -> rsa.RSAPrivateKey:
    """The key pair of this name."""
    del name
    return rsa.generate_private_key(public_exponent=65537, key_size=bits)


def certificate(
    name: str = "server",
    *,
    issuer: str = "",
    is_authority: bool = False,
    days: tuple[int, int] = (-10, 10),
    uri: str = URI,
    host: str = "plc",
    address: str = "127.0.0.1",
    uses: tuple[str, ...] = _USES[:4],
    purpose: x509.ObjectIdentifier | None = ExtendedKeyUsageOID.SERVER_AUTH,
    bits: int = 2048,
    signed_by: str = "",
    serial: int = 7,
    now: datetime = NOW,
) -> x509.Certificate:
    """A certificate; self-signed unless `issuer` names another. `signed_by` signs in place of the named issuer."""
    flags = {use: use in (_AUTHORITY_USES if is_authority else uses) for use in (*_USES, *_AUTHORITY_USES)}
    builder = (
        x509.CertificateBuilder()
        .subject_name(_name(name))
        .issuer_name(_name(issuer or name))
        .public_key(key(name, bits).public_key())
        .serial_number(serial)
        .not_valid_before(now + timedelta(days=days[0]))
        .not_valid_after(now + timedelta(days=days[1]))
        .add_extension(x509.BasicConstraints(ca=is_authority, path_length=None), critical=True)
        .add_extension(x509.KeyUsage(**flags, encipher_only=False, decipher_only=False), critical=True)
    )
    if not is_authority:
        names: list[x509.GeneralName] = [x509.UniformResourceIdentifier(uri), x509.DNSName(host)]
        names.append(x509.IPAddress(ipaddress.ip_address(address)))
        builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
        if purpose is not None:
            builder = builder.add_extension(x509.ExtendedKeyUsage([purpose]), critical=False)
    return builder.sign(key(signed_by or issuer or name, 2048 if issuer else bits), hashes.SHA256())


def in_files(folder: Path, name: str, issuer: str = "", **other: Any) -> tuple[Path, Path]:
    """The certificate of `name`, valid now, and its key; without an issuer it is an authority."""
    made = certificate(name, issuer=issuer, is_authority=not issuer, host=name, now=datetime.now(UTC), **other)
    files = folder / f"{name}.pem", folder / f"{name}.key"
    files[0].write_bytes(made.public_bytes(Encoding.PEM))
    files[1].write_bytes(key(name, 2048).private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    return files


def revocation_list(
    issuer: str = "authority",
    *serials: int,
    days: tuple[int, int] = (-5, 5),
    signed_by: str = "",
    now: datetime = NOW,
) -> x509.CertificateRevocationList:
    """A list of revoked certificates."""
    builder = (
        x509.CertificateRevocationListBuilder()
        .issuer_name(_name(issuer))
        .last_update(now + timedelta(days=days[0]))
        .next_update(now + timedelta(days=days[1]))
    )
    for serial in serials:
        revoked = x509.RevokedCertificateBuilder().serial_number(serial).revocation_date(now).build()
        builder = builder.add_revoked_certificate(revoked)
    return builder.sign(key(signed_by or issuer, 2048), hashes.SHA256())


def der(found: x509.Certificate | x509.CertificateRevocationList) -> bytes:
    """The DER form."""
    return found.public_bytes(Encoding.DER)


def written_out(found: x509.Certificate) -> bytes:
    """The DER form with `critical FALSE` written out where it was true, as some programs do for FALSE; the parser
    refuses it."""
    return der(found).replace(b"\x01\x01\xff", b"\x01\x01\x00")


def _name(common_name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common_name)])
