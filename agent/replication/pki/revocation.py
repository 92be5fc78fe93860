"""Revocation: which certificates were signed, which of them are revoked, and the next list.

There is no separate index that could differ from the signed files: `issued/` contains what was signed, the list
contains what was revoked, when and why. Each list is also kept as `crls/NUMBER.crl`, with rising numbers. No list is
made on top of one that is missing, of another authority, or older than a kept one, because that would lift revocations.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path

from cryptography import x509

from agent.file_replace import write_file
from agent.replication.pki.authority import (
    Authority,
    check_days,
    load_authority,
    load_authority_certificate,
    subject_of_broker,
)
from agent.replication.pki.crl import (
    REASONS,
    CrlDetails,
    Revoked,
    describe_crl,
    is_crl_of,
    make_crl,
    number_of,
    revoked_entry,
)
from agent.replication.pki.files import PUBLIC_MODE, disk_errors, load_certificates, load_crl, make_folder, pem_of
from agent.replication.pki.problem import PkiError
from agent.signing.certificates import common_name_in, is_signed_by

ISSUED_MAX = 100_000
"""Certificates read for one listing; a site has dozens of zones, each renewed once a year."""


@dataclass(frozen=True, slots=True)
class IssuedRecord:
    """One certificate signed by this authority; `revoked` is None if it is not revoked."""

    serial: str
    name: str
    not_before: datetime
    not_after: datetime
    revoked: Revoked | None


def list_issued(folder: Path, now: datetime) -> list[IssuedRecord]:
    """All certificates that this authority signed, by name and age. Raises PkiError."""
    authority = load_authority_certificate(folder)
    revoked = {entry.serial: entry for entry in describe_crl(_current_crl(folder, authority), now).revoked}
    records = [
        IssuedRecord(
            serial := f"{certificate.serial_number:x}",
            common_name_in(certificate.subject),
            certificate.not_valid_before_utc,
            certificate.not_valid_after_utc,
            revoked.get(serial),
        )
        for certificate in _issued(folder, authority)
    ]
    return sorted(records, key=lambda record: (record.name, record.not_before))


def revoke(
    folder: Path,
    what: str,
    now: datetime,
    *,
    broker: bool = False,
    reason: str = "unspecified",
    passphrase: bytes | None = None,
) -> list[IssuedRecord]:
    """Revoke all valid certificates of a zone or broker, or the one with this serial number. Raises PkiError."""
    if reason not in REASONS:
        raise PkiError(f"{reason!r} is not a reason", f"use one of {', '.join(REASONS)}")
    authority = load_authority(folder, passphrase)
    records = list_issued(folder, now)
    common_name = subject_of_broker(what, []).common_name if broker else what
    found = [record for record in records if record.serial == what.lower().lstrip("0") and not broker]
    found = found or [record for record in records if record.name == common_name]
    if not found:
        raise PkiError(f"{folder} never issued a certificate for {what[:80]!r}", "see bsfg pki list")
    fresh = [record.serial for record in found if record.revoked is None and record.not_after >= now]
    if not fresh:
        raise PkiError(f"every certificate of {what} is already revoked or has expired", "see bsfg pki list")
    crl = _current_crl(folder, authority.certificate)
    entries = [*crl, *(revoked_entry(int(serial, 16), now, reason) for serial in fresh)]
    _write_crl(authority, crl, entries, now, None)
    return [record for record in list_issued(folder, now) if record.serial in fresh]


def reissue_crl(folder: Path, now: datetime, *, days: int | None = None, passphrase: bytes | None = None) -> CrlDetails:
    """The same list with the next number, valid as long as the last list was, or for `days`. Raises PkiError."""
    authority = load_authority(folder, passphrase)
    crl = _current_crl(folder, authority.certificate)
    return _write_crl(authority, crl, list(crl), now, days)


def _write_crl(
    authority: Authority,
    before: x509.CertificateRevocationList,
    entries: list[x509.RevokedCertificate],
    now: datetime,
    days: int | None,
) -> CrlDetails:
    """Write the next list. Its validity is that of the last list, unless `days` is given."""
    folder, authority_ends = authority.folder, authority.certificate.not_valid_after_utc
    if authority_ends < now:
        raise PkiError("the authority itself has expired", f"create a new one: bsfg pki ca --pki {folder} --force")
    if days is not None:
        check_days(days)
        ends = min(now + timedelta(days=days), authority_ends)
    elif before.next_update_utc is None or before.next_update_utc >= authority_ends:
        ends = authority_ends
    else:
        ends = min(now + (before.next_update_utc - before.last_update_utc), authority_ends)
    # Expired certificates stay on the list: it is also the record of what was revoked and why.
    crl = make_crl(authority.certificate, authority.key, number_of(before) + 1, entries, now, ends)
    with disk_errors(folder):
        make_folder(folder / "crls")
        # The copy first, so that each list in force can be restored.
        write_file(folder / "crls" / f"{number_of(crl)}.crl", pem_of(crl), PUBLIC_MODE)
        write_file(folder / "ca.crl", pem_of(crl), PUBLIC_MODE)
    return describe_crl(crl, now)


def _current_crl(folder: Path, authority: x509.Certificate) -> x509.CertificateRevocationList:
    """The list in force. Raises PkiError if it is not the authority's newest."""
    newest_file, newest = None, 0
    for file in folder.glob("crls/*.crl"):
        try:
            kept = load_crl(file)
        except PkiError:
            continue  # a damaged copy; the others are used
        if is_crl_of(kept, authority) and number_of(kept) > newest:
            newest_file, newest = file, number_of(kept)
    restore = f"restore it: cp {newest_file} {folder / 'ca.crl'}" if newest_file else "restore it from a backup"
    try:
        crl = load_crl(folder / "ca.crl")
    except PkiError as error:
        raise PkiError(f"the revocation list is missing or damaged: {error.why}", restore) from error
    if not is_crl_of(crl, authority):
        raise PkiError(f"{folder / 'ca.crl'} is not this authority's list", restore)
    if number_of(crl) < newest:  # a list made from an older one would lift revocations (docs/decisions/0034)
        raise PkiError(f"{folder / 'ca.crl'} is list {number_of(crl)}, but list {newest} exists", restore)
    return crl


def _issued(folder: Path, authority: x509.Certificate) -> Iterator[x509.Certificate]:
    for file, _ in zip(sorted(folder.glob("issued/*.pem")), range(ISSUED_MAX), strict=False):
        certificate = load_certificates(file)[0]
        if is_signed_by(certificate, authority):
            yield certificate
