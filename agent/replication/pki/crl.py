"""Revocation lists: read, check and make them.

A broker that cannot read its list accepts revoked certificates, and one whose list has expired refuses all clients, so
a list is checked before a broker gets it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from operator import ge
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa

from agent.replication.pki.certificates import BACKDATED, authority_identifier, extension_of
from agent.replication.pki.files import load_certificates, load_crls
from agent.replication.pki.problem import IdentityProblem, PkiError, moment_text
from agent.signing.x509_parts import public_key_of

NO_LIST = 0, datetime.min.replace(tzinfo=UTC)
"""Number and time that are lower than those of any list."""

REASONS = {
    "unspecified": x509.ReasonFlags.unspecified,
    "key-compromise": x509.ReasonFlags.key_compromise,
    "superseded": x509.ReasonFlags.superseded,
    "cessation-of-operation": x509.ReasonFlags.cessation_of_operation,
}


@dataclass(frozen=True, slots=True)
class Revoked:
    """One revoked certificate."""

    serial: str
    at: datetime
    reason: str


@dataclass(frozen=True, slots=True)
class CrlDetails:
    """The contents of a list for display. `next_update` and `days_left` are None if it does not expire."""

    issuer: str
    number: int
    last_update: datetime
    next_update: datetime | None
    days_left: int | None
    revoked: tuple[Revoked, ...]


def describe_crl(crl: x509.CertificateRevocationList, now: datetime) -> CrlDetails:
    """The contents of `crl`; `days_left` as of `now`."""
    ends = crl.next_update_utc
    begins = crl.last_update_utc
    return CrlDetails(
        issuer=crl.issuer.rfc4514_string(),
        number=number_of(crl),
        last_update=begins,
        next_update=ends,
        days_left=None if ends is None else (ends - now).days,
        revoked=tuple(_revoked(entry) for entry in crl),
    )


def number_of(crl: x509.CertificateRevocationList) -> int:
    """The number of a list, higher in a newer one; 0 if it has none."""
    number = extension_of(crl, x509.CRLNumber)
    return number.crl_number if number else 0


def check_crl(crl_file: Path, ca_file: Path, *, now: datetime | None = None) -> list[IdentityProblem]:
    """All problems of a revocation list with which a broker would accept revoked certificates or refuse all clients."""
    now = now or datetime.now(UTC)
    try:
        lists = load_crls(crl_file)
        authorities = load_certificates(ca_file)
    except PkiError as error:
        return [IdentityProblem(crl_file, error.why, error.hint)]
    problems = []
    for crl in lists:
        if not any(is_crl_of(crl, authority) for authority in authorities):
            why = f"the list was signed by {crl.issuer.rfc4514_string()}, which is not in {ca_file}"
            problems.append(IdentityProblem(crl_file, why, "use the ca.crl in the folder of that ca.pem"))
        clock = f"(clock here: {moment_text(now)}): the broker would refuse all clients"
        if crl.next_update_utc is not None and crl.next_update_utc < now:
            hint = "check the clock first (timedatectl); if it is right, make a new list: bsfg pki crl"
            problems.append(
                IdentityProblem(crl_file, f"the list expired at {moment_text(crl.next_update_utc)} {clock}", hint)
            )
        if crl.last_update_utc > now:
            why = f"the list is valid from {moment_text(crl.last_update_utc)} {clock}"
            problems.append(IdentityProblem(crl_file, why, "set the clock (timedatectl)"))
    return problems


def newest_crl_file(given: Path, present: Path, ca_file: Path) -> Path:
    """`given`, unless `present` has no problem and is for no authority older than `given`: an older list would lift
    revocations. Problems of `given` are left to `check_crl`."""
    if not present.exists() or check_crl(present, ca_file):
        return given
    authorities = load_certificates(ca_file)

    def ages(file: Path) -> list[tuple[int, datetime]]:
        lists = load_crls(file)
        of_authority = ([crl for crl in lists if is_crl_of(crl, authority)] for authority in authorities)
        return [
            max(((number_of(crl), crl.last_update_utc) for crl in found), default=NO_LIST) for found in of_authority
        ]

    try:
        return present if all(map(ge, ages(present), ages(given))) else given
    except PkiError:
        return given


def check_not_revoked(cert_file: Path, crl_file: Path) -> list[IdentityProblem]:
    """A problem if the certificate is on its authority's list. `check_crl` reports a list that cannot be read."""
    try:
        certificate, lists = load_certificates(cert_file)[0], load_crls(crl_file)
    except PkiError:
        return []
    problems = []
    serial = certificate.serial_number
    for crl in lists:
        if serial < 0:  # which the library does not look for
            entry = next((entry for entry in crl if entry.serial_number == serial), None)
        else:
            entry = crl.get_revoked_certificate_by_serial_number(serial)
        if entry is not None and certificate.issuer == crl.issuer:
            found = _revoked(entry)
            why = f"the certificate was revoked at {moment_text(found.at)} ({found.reason})"
            problems.append(IdentityProblem(cert_file, why, "make a new key and certificate: bsfg pki request NAME"))
    return problems


def is_crl_of(crl: x509.CertificateRevocationList, authority: x509.Certificate) -> bool:
    """Whether `authority` signed the list."""
    key = public_key_of(authority)
    if not isinstance(key, ec.EllipticCurvePublicKey | rsa.RSAPublicKey | ed25519.Ed25519PublicKey):
        return False
    return crl.issuer == authority.subject and crl.is_signature_valid(key)


def make_crl(
    certificate: x509.Certificate,
    key: ec.EllipticCurvePrivateKey,
    number: int,
    revoked: Iterable[x509.RevokedCertificate],
    now: datetime,
    ends: datetime,
) -> x509.CertificateRevocationList:
    """A signed list, backdated for brokers whose clock is behind.

    By default a list is valid as long as its authority: a broker with an expired list refuses all clients, and a site
    without a connection to its authority cannot get a new one. An operator copies the list by hand, so an early expiry
    would protect nothing."""
    builder = (
        x509.CertificateRevocationListBuilder()
        .issuer_name(certificate.subject)
        .last_update(now - BACKDATED)
        .next_update(ends)
        .add_extension(x509.CRLNumber(number), critical=False)
        .add_extension(authority_identifier(certificate), critical=False)
    )
    for entry in revoked:
        builder = builder.add_revoked_certificate(entry)
    return builder.sign(key, hashes.SHA256())


def revoked_entry(serial_number: int, now: datetime, reason: str) -> x509.RevokedCertificate:
    """The entry of the list for one certificate."""
    builder = x509.RevokedCertificateBuilder().serial_number(serial_number).revocation_date(now)
    if reason != "unspecified":  # encoded by omitting the reason (RFC 5280, 5.3.1)
        builder = builder.add_extension(x509.CRLReason(REASONS[reason]), critical=False)
    return builder.build()


def _revoked(entry: x509.RevokedCertificate) -> Revoked:
    given = extension_of(entry, x509.CRLReason)
    flag = given.reason if given else x509.ReasonFlags.unspecified
    reason = next((name for name, known in REASONS.items() if known is flag), flag.value)
    return Revoked(f"{entry.serial_number:x}", entry.revocation_date_utc, reason)
