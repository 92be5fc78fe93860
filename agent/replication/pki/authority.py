"""The authority's folder: making it, opening it, and signing zones and brokers with it.

What was signed is recorded before anybody gets it, and nothing here ever removes a record.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.types import CertificatePublicKeyTypes
from cryptography.x509.oid import ExtendedKeyUsageOID

from agent.replication.pki.certificates import CertificateDetails, describe, fits
from agent.replication.pki.crl import make_crl
from agent.replication.pki.files import (
    KEY_MODE,
    PUBLIC_MODE,
    disk_errors,
    load_certificates,
    load_key,
    make_folder,
    pem_of,
    refuse_existing,
    write_file,
)
from agent.replication.pki.problem import PkiError
from agent.replication.pki.signing import (
    authority_identifier,
    builder,
    common_name_of_broker,
    general_name,
    key_pem,
    key_usage,
    named,
)
from agent.replication.protocol.topics import is_zone

CA_DAYS = 3650
"""Ten years: replacing a root means visiting every gateway."""

LEAF_DAYS = 365
"""One year, as the specification's example; `bsfg status` warns below thirty days."""

DAYS_MAX = 7300
"""Twenty years, the life of the plant it runs in; more is a slip of the keyboard."""

HOSTS_MAX = 32
"""Names of one broker; a certificate with hundreds is a mistake and makes every handshake larger."""

_COMMON_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9 ._-]{0,63}")


@dataclass(frozen=True, slots=True)
class Authority:
    """The authority's certificate with the key that signs."""

    certificate: x509.Certificate
    key: ec.EllipticCurvePrivateKey


@dataclass(frozen=True, slots=True)
class Issued:
    """Where a new identity lies, and what its certificate says."""

    cert_file: Path
    key_file: Path
    ca_file: Path
    certificate: CertificateDetails


def create_authority(
    folder: Path, now: datetime, *, name: str = "", days: int = CA_DAYS, force: bool = False
) -> CertificateDetails:
    """Make the authority of a site in `folder`: key, self-signed root and an empty revocation list."""
    check_days(days)
    # A root's name says which one it is: two roots of one name are told apart only by signature, which nobody reads.
    name = name or f"bsfg zones {secrets.token_hex(4)}"
    if not _COMMON_NAME.fullmatch(name):
        raise PkiError(f"{name!r} cannot name an authority", "use at most 64 letters, digits, spaces and ._-")
    refuse_existing(
        [folder / "ca.key", folder / "ca.pem"], "every certificate it issued becomes worthless", force=force
    )
    key = ec.generate_private_key(ec.SECP256R1())
    subject = named(name)
    certificate = (
        builder(subject, subject, key.public_key(), now, now + timedelta(days=days))
        # No authority below this one: whoever needs a second makes a second root and lists both.
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(key_usage(key_cert_sign=True), critical=True)
        .sign(key, hashes.SHA256())
    )
    crl = make_crl(certificate, key, 1, [], now, certificate.not_valid_after_utc)
    with disk_errors(folder):
        make_folder(folder)
        write_file(folder / "ca.key", key_pem(key), KEY_MODE)
        write_file(folder / "ca.pem", pem_of(certificate), PUBLIC_MODE)
        write_file(folder / "ca.crl", crl.public_bytes(serialization.Encoding.PEM), PUBLIC_MODE)
    return describe(certificate, now)


def load_authority(folder: Path) -> Authority:
    """The authority in `folder`; refuses one whose key is readable by others, is missing, or is another one's."""
    cert_file, key_file = folder / "ca.pem", folder / "ca.key"
    if not cert_file.exists() and not key_file.exists():
        raise PkiError(f"{folder} holds no authority", f"make one: bsfg pki ca --pki {folder}")
    certificate = load_certificates(cert_file)[0]
    key = load_key(key_file)
    if not isinstance(key, ec.EllipticCurvePrivateKey) or not fits(certificate, key):
        raise PkiError(f"{key_file} is not the key of {cert_file}", "restore both from the same backup")
    return Authority(certificate, key)


def issue_zone(folder: Path, zone: str, now: datetime, *, days: int = LEAF_DAYS, force: bool = False) -> Issued:
    """Sign a certificate for `zone` with the authority in `folder`, and write it and its new key below `zones/`."""
    check_zone(zone)
    # A node only ever connects outward, so its certificate is no server's: with that purpose too, a zone could stand in
    # for the broker towards the other zones.
    return _issue(folder, "zones", zone, zone, [], ExtendedKeyUsageOID.CLIENT_AUTH, now, days, force=force)


def issue_broker(
    folder: Path, name: str, hosts: Sequence[str], now: datetime, *, days: int = LEAF_DAYS, force: bool = False
) -> Issued:
    """Sign a broker's certificate for the names and addresses in `hosts`, and write it below `brokers/`."""
    check_zone(name, "broker")
    if not 1 <= len(hosts) <= HOSTS_MAX:
        raise PkiError(
            f"a broker needs 1 to {HOSTS_MAX} host names or addresses, not {len(hosts)}",
            "name each way by which nodes reach it: --host NAME or --host ADDRESS",
        )
    alternatives = [general_name(host) for host in hosts]
    common_name = common_name_of_broker(name)
    return _issue(
        folder, "brokers", name, common_name, alternatives, ExtendedKeyUsageOID.SERVER_AUTH, now, days, force=force
    )


def check_zone(name: str, what: str = "zone") -> None:
    """Refuse what may not name a zone: the name becomes a topic level and a user name, with no room for escapes."""
    if not is_zone(name):
        raise PkiError(f"{name[:80]!r} cannot name a {what}", "use 1 to 32 characters of a-z, 0-9 and -")


def check_days(days: int) -> None:
    """Refuse a life that is over before it begins, or longer than any plant's."""
    if not 1 <= days <= DAYS_MAX:
        raise PkiError(f"{days} days is no life of a certificate", f"use 1 to {DAYS_MAX}")


def _issue(
    folder: Path,
    subfolder: str,
    name: str,
    common_name: str,
    hosts: Sequence[x509.GeneralName],
    purpose: x509.ObjectIdentifier,
    now: datetime,
    days: int,
    *,
    force: bool,
) -> Issued:
    authority = load_authority(folder)
    cert_file, key_file = folder / subfolder / f"{name}.pem", folder / subfolder / f"{name}.key"
    refuse_existing([cert_file, key_file], "whoever uses them needs the new ones", force=force)
    key = ec.generate_private_key(ec.SECP256R1())
    certificate = sign(authority, folder, common_name, hosts, purpose, key.public_key(), now, days)
    with disk_errors(folder):
        record(folder, certificate)
        make_folder(folder / subfolder)
        write_file(key_file, key_pem(key), KEY_MODE)
        write_file(cert_file, pem_of(certificate), PUBLIC_MODE)
    return Issued(cert_file, key_file, folder / "ca.pem", describe(certificate, now))


def sign(
    authority: Authority,
    folder: Path,
    common_name: str,
    hosts: Sequence[x509.GeneralName],
    purpose: x509.ObjectIdentifier,
    public_key: CertificatePublicKeyTypes,
    now: datetime,
    days: int,
) -> x509.Certificate:
    """A certificate of `authority`, which lies in `folder`, for this key; it does not outlive its authority."""
    check_days(days)
    ends = now + timedelta(days=days)
    if ends > authority.certificate.not_valid_after_utc:
        left = (authority.certificate.not_valid_after_utc - now).days
        raise PkiError(
            f"the authority itself ends in {left} days",
            f"use --days {left}, or make a new authority"
            if left >= 1
            else f"make a new one: bsfg pki ca --pki {folder} --force",
        )
    unsigned = (
        builder(named(common_name), authority.certificate.subject, public_key, now, ends)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(key_usage(digital_signature=True), critical=True)
        .add_extension(x509.ExtendedKeyUsage([purpose]), critical=False)
        .add_extension(authority_identifier(authority.certificate), critical=False)
    )
    if hosts:
        unsigned = unsigned.add_extension(x509.SubjectAlternativeName(hosts), critical=False)
    return unsigned.sign(authority.key, hashes.SHA256())


def record(folder: Path, certificate: x509.Certificate) -> None:
    """Keep what was signed.  First, before anybody gets it: a certificate that exists must be one that can be revoked."""
    make_folder(folder / "issued")
    write_file(folder / "issued" / f"{certificate.serial_number:x}.pem", pem_of(certificate), PUBLIC_MODE)
