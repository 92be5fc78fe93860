"""Parts of certificates and lists, each with the reason for its form.

Signs nothing and touches no file.
"""

from __future__ import annotations

import ipaddress
import re
from datetime import datetime, timedelta

from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.types import CertificatePublicKeyTypes
from cryptography.x509.oid import NameOID

from agent.replication.pki.problem import PkiError

BACKDATED = timedelta(hours=1)
"""A certificate is valid from this long before it was signed, for gateways whose clock is behind."""

_DNS_NAME = re.compile(r"(?=.{1,253}\Z)[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?(\.[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?)*")


def builder(
    subject: x509.Name, issuer: x509.Name, key: CertificatePublicKeyTypes, now: datetime, ends: datetime
) -> x509.CertificateBuilder:
    """A certificate builder with the fields that all our certificates have."""
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - BACKDATED)
        .not_valid_after(ends)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
    )


def subject_name(common_name: str) -> x509.Name:
    """A subject with this common name only."""
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common_name)])


def common_name_of_broker(name: str) -> str:
    """The common name of a broker. It contains a space, so that it can never be a zone in the access list."""
    return f"broker {name}"


def key_usage(*, digital_signature: bool = False, key_cert_sign: bool = False) -> x509.KeyUsage:
    """The allowed uses of the key; all others are forbidden."""
    return x509.KeyUsage(
        digital_signature=digital_signature,
        key_cert_sign=key_cert_sign,
        crl_sign=key_cert_sign,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


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


def key_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    """The PEM encoding of a private key."""
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
