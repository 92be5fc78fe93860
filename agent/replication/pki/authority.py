"""The authority's folder: create it, load it, and sign certificates of zones and brokers.

Each signed certificate is recorded before it is returned, and no record is ever removed. A facts authority, which
issues signer certificates, has the same folder and a purpose of its own: neither kind can issue the other's
certificates.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.types import CertificatePublicKeyTypes
from cryptography.x509.oid import ExtendedKeyUsageOID

from agent.file_replace import write_file
from agent.replication.pki.certificates import (
    BACKDATED,
    CertificateDetails,
    authority_identifier,
    describe,
    general_name,
    key_matches,
)
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
)
from agent.replication.pki.problem import PkiError
from agent.replication.protocol.topics import is_node
from agent.signing.certificates import FACT_SIGNING, refuse_anchor
from agent.signing.x509_parts import builder, key_pem, key_usage, subject_name

CA_DAYS = 3650
"""Ten years: replacing a root means work at every gateway."""

LEAF_DAYS = 365
"""One year, as the specification's example; `bsfg status` warns below thirty days."""

PASSPHRASE_BYTES_MIN = 12
"""The file's key derivation is cheap, so the passphrase must not be guessable."""

DAYS_MAX = 7300
"""Twenty years, the life of a plant; more is a typing mistake."""

HOSTS_MAX = 32
"""Host names of one broker; each one makes every handshake larger."""

_COMMON_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9 ._-]{0,63}")


@dataclass(frozen=True, slots=True)
class Authority:
    """The authority's folder, its certificate and its private key."""

    folder: Path
    certificate: x509.Certificate
    key: ec.EllipticCurvePrivateKey


@dataclass(frozen=True, slots=True)
class CertificateSubject:
    """What a certificate names: a zone, a broker with its host names and addresses, or a signer of facts."""

    common_name: str
    purpose: x509.ObjectIdentifier
    hosts: Sequence[x509.GeneralName] = ()


@dataclass(frozen=True, slots=True)
class Issued:
    """The files of a new identity, and the details of its certificate."""

    cert_file: Path
    key_file: Path
    ca_file: Path
    certificate: CertificateDetails


def create_authority(
    folder: Path,
    now: datetime,
    *,
    name: str = "",
    days: int = CA_DAYS,
    force: bool = False,
    passphrase: bytes | None = None,
    for_facts: bool = False,
) -> CertificateDetails:
    """Create the authority of a site in `folder`: key, self-signed root, empty revocation list. Raises
    PkiError."""
    check_days(days)
    # A random name: two roots of one name differ only in their signatures, which no person reads.
    name = name or f"bsfg {'facts' if for_facts else 'zones'} {secrets.token_hex(4)}"
    if not _COMMON_NAME.fullmatch(name):
        raise PkiError(
            f"{name!r} is not a valid name of an authority", "use at most 64 letters, digits, spaces and ._-"
        )
    if passphrase is not None and len(passphrase) < PASSPHRASE_BYTES_MIN:
        raise PkiError(f"the passphrase is shorter than {PASSPHRASE_BYTES_MIN} characters", "use several words")
    refuse_existing(
        [folder / "ca.key", folder / "ca.pem"], "every certificate it issued becomes worthless", force=force
    )
    key = ec.generate_private_key(ec.SECP256R1())
    subject = subject_name(name)
    unsigned = (
        builder(subject, subject, key.public_key(), now - BACKDATED, now + timedelta(days=days))
        # No intermediate authorities: a site that needs a second authority creates a second root.
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(key_usage("key_cert_sign", "crl_sign"), critical=True)
    )
    if for_facts:  # TLS then refuses all that this authority issues, even if its root is trusted by mistake
        unsigned = unsigned.add_extension(x509.ExtendedKeyUsage([FACT_SIGNING]), critical=True)
    certificate = unsigned.sign(key, hashes.SHA256())
    with disk_errors(folder):
        make_folder(folder)
        write_file(folder / "ca.key", key_pem(key, passphrase), KEY_MODE)
        write_file(folder / "ca.pem", pem_of(certificate), PUBLIC_MODE)
        if not for_facts:  # a compromised signer is named with a time, at each receiver (agent/signing/DESIGN.md)
            crl = make_crl(certificate, key, 1, [], now, certificate.not_valid_after_utc)
            write_file(folder / "ca.crl", pem_of(crl), PUBLIC_MODE)
    return describe(certificate, now)


def load_authority(folder: Path, passphrase: bytes | None = None, *, for_facts: bool = False) -> Authority:
    """The authority in `folder`. Raises PkiError if its key is readable by others, missing, of another certificate or
    locked with another passphrase, or if it is the other kind of authority."""
    certificate = load_authority_certificate(folder, for_facts=for_facts)
    key = load_key(folder / "ca.key", passphrase)
    if not isinstance(key, ec.EllipticCurvePrivateKey) or not key_matches(certificate, key):
        raise PkiError(
            f"{folder / 'ca.key'} is not the key of {folder / 'ca.pem'}", "restore both from the same backup"
        )
    return Authority(folder, certificate, key)


def load_authority_certificate(folder: Path, *, for_facts: bool = False) -> x509.Certificate:
    """The authority's certificate alone, for commands that sign nothing. Raises PkiError."""
    cert_file = folder / "ca.pem"
    create = f"bsfg pki {'signer ' if for_facts else ''}ca --pki {folder}"
    if not cert_file.exists() and not (folder / "ca.key").exists():
        where = "name the folder of the site's authority with --pki, or type this on its machine"
        raise PkiError(f"{folder} contains no authority", f"{where}; only a new site creates one: {create}")
    certificate = load_certificates(cert_file)[0]
    if for_facts != (refuse_anchor(certificate) is None):
        kinds = ("an authority for zones and brokers", "a facts authority")
        raise PkiError(f"{folder} is {kinds[not for_facts]}, not {kinds[for_facts]}", f"name its folder, or {create}")
    return certificate


def issue_zone(
    folder: Path,
    zone: str,
    now: datetime,
    *,
    days: int = LEAF_DAYS,
    force: bool = False,
    passphrase: bytes | None = None,
) -> Issued:
    """Sign a certificate for `zone`, and write it with a new key to `zones/`. Raises PkiError."""
    check_zone(zone)
    authority = load_authority(folder, passphrase)
    return _issue(authority, folder / "zones" / zone, subject_of_zone(zone), now, days, force=force)


def issue_broker(
    folder: Path,
    name: str,
    hosts: Sequence[str],
    now: datetime,
    *,
    days: int = LEAF_DAYS,
    force: bool = False,
    passphrase: bytes | None = None,
) -> Issued:
    """Sign a broker's certificate for the host names and addresses in `hosts`, and write it to `brokers/`. Raises
    PkiError."""
    check_zone(name, "broker")
    subject = subject_of_broker(name, host_names(hosts))
    return _issue(load_authority(folder, passphrase), folder / "brokers" / name, subject, now, days, force=force)


def subject_of_zone(zone: str) -> CertificateSubject:
    """A client only: with the server purpose too, a zone could impersonate the broker to other zones."""
    return CertificateSubject(zone, ExtendedKeyUsageOID.CLIENT_AUTH)


def subject_of_broker(name: str, hosts: Sequence[x509.GeneralName]) -> CertificateSubject:
    """A server with these hosts. Its common name has a space, so that it can never be a zone in the access list."""
    return CertificateSubject(f"broker {name}", ExtendedKeyUsageOID.SERVER_AUTH, hosts)


def host_names(hosts: Sequence[str]) -> list[x509.GeneralName]:
    """The names and addresses of a broker, for its certificate. Raises PkiError."""
    if not 1 <= len(hosts) <= HOSTS_MAX:
        raise PkiError(
            f"a broker needs 1 to {HOSTS_MAX} host names or addresses, not {len(hosts)}",
            "give each name or address that nodes use: --host NAME or --host ADDRESS",
        )
    return [general_name(host) for host in hosts]


def check_zone(name: str, what: str = "zone") -> None:
    """Raise PkiError for an invalid name: it becomes a topic level and a user name, without escaping."""
    if not is_node(name):
        raise PkiError(f"{name[:80]!r} is not a valid name of a {what}", "use 1 to 32 characters of a-z, 0-9 and -")


def check_days(days: int) -> None:
    """Raise PkiError for a validity below one day or above DAYS_MAX."""
    if not 1 <= days <= DAYS_MAX:
        raise PkiError(f"{days} days is not a valid lifetime of a certificate", f"use 1 to {DAYS_MAX}")


def _issue(
    authority: Authority, place: Path, subject: CertificateSubject, now: datetime, days: int, *, force: bool
) -> Issued:
    """Sign a certificate for a new key, and write both to `place` with their suffixes."""
    cert_file, key_file = place.with_name(f"{place.name}.pem"), place.with_name(f"{place.name}.key")
    refuse_existing([cert_file, key_file], "their node or broker then needs the new files", force=force)
    key = ec.generate_private_key(ec.SECP256R1())
    certificate = sign(authority, subject, key.public_key(), now, days)
    with disk_errors(authority.folder):
        make_folder(place.parent)
        write_file(key_file, key_pem(key), KEY_MODE)
        write_file(cert_file, pem_of(certificate), PUBLIC_MODE)
    return Issued(cert_file, key_file, authority.folder / "ca.pem", describe(certificate, now))


def sign(
    authority: Authority, subject: CertificateSubject, public_key: CertificatePublicKeyTypes, now: datetime, days: int
) -> x509.Certificate:
    """A certificate of `authority` for this key. Raises PkiError if it would expire after the authority."""
    check_days(days)
    ends = now + timedelta(days=days)
    if ends > authority.certificate.not_valid_after_utc:
        left = (authority.certificate.not_valid_after_utc - now).days
        create = f"bsfg pki ca --pki {authority.folder} --force"
        hint = f"use --days {left}, or create a new authority" if left >= 1 else f"create a new one: {create}"
        raise PkiError(f"the authority itself expires in {left} days", hint)
    unsigned = (
        builder(subject_name(subject.common_name), authority.certificate.subject, public_key, now - BACKDATED, ends)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(key_usage("digital_signature"), critical=True)
        .add_extension(x509.ExtendedKeyUsage([subject.purpose]), critical=subject.purpose == FACT_SIGNING)
        .add_extension(authority_identifier(authority.certificate), critical=False)
    )
    if subject.hosts:
        unsigned = unsigned.add_extension(x509.SubjectAlternativeName(subject.hosts), critical=False)
    certificate = unsigned.sign(authority.key, hashes.SHA256())
    issued = authority.folder / "issued"
    with disk_errors(authority.folder):  # before it is used: it must be revocable (docs/decisions/0034)
        make_folder(issued)
        write_file(issued / f"{certificate.serial_number:x}.pem", pem_of(certificate), PUBLIC_MODE)
    return certificate
