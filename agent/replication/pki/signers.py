"""Signer certificates: a zone's key for signing facts, made on its node, and the facts authority that issues for it.

    on the node                   signers/ZONE.key  ZONE.pem    self-signed at first: enough for receivers that pin it
                                  signers/ZONE.csr              the request to a facts authority
    the facts authority's folder  ca.pem  ca.key  issued/  signers/ZONE.pem

The key never leaves the node. `agent.signing` decides which signers are trusted; this module only makes and moves
files. Certificates are long-lived: an expired one makes receivers refuse newer facts, and none is ever revoked by a
list (agent/signing/DESIGN.md).
"""

from __future__ import annotations

from datetime import datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from agent.file_replace import write_file
from agent.replication.pki.authority import CertificateSubject, Issued, check_days, check_zone, load_authority
from agent.replication.pki.certificates import BACKDATED
from agent.replication.pki.files import (
    PUBLIC_MODE,
    disk_errors,
    load_certificates,
    make_folder,
    pem_of,
    read_file,
    refuse_existing,
)
from agent.replication.pki.problem import PkiError
from agent.replication.pki.renewal import IdentityFiles
from agent.replication.pki.requests import Request, issue_requested, load_request, write_request
from agent.signing.certificates import (
    FACT_SIGNING,
    CertificateRefusal,
    Signer,
    describe_signer,
    is_signed_by,
    refuse_anchor,
)
from agent.signing.files import load_key
from agent.signing.keys import SigningError, SigningKey
from agent.signing.x509_parts import builder, key_usage, subject_name

SIGNER_DAYS = 1825
"""Five years: each renewal of a pinned certificate is work at every receiver."""

FACTS_CA_FILE = "facts-ca.pem"


def signer_files(folder: Path, zone: str) -> IdentityFiles:
    """Key and certificate of a zone's signer."""
    check_zone(zone)
    return IdentityFiles(folder / "signers", zone)


def create_signer(
    folder: Path, zone: str, now: datetime, *, days: int = SIGNER_DAYS, force: bool = False, key_of: str | None = None
) -> tuple[IdentityFiles, Signer]:
    """Make a signing key for `zone`, or take that of the zone `key_of`, and a self-signed certificate. The former ones
    go to previous/. Raises PkiError."""
    files = signer_files(folder, zone)
    check_days(days)
    refuse_existing([files.key_file, files.cert_file], "every receiver must then learn the new one", force=force)
    key = SigningKey.generate() if key_of is None else _load_key(signer_files(folder, key_of))
    subject = subject_name(zone)
    certificate = (
        builder(subject, subject, key.private.public_key(), now - BACKDATED, now + timedelta(days=days))
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(key_usage("digital_signature"), critical=True)
        .add_extension(x509.ExtendedKeyUsage([FACT_SIGNING]), critical=True)
        .sign(key.private, None)
    )
    with disk_errors(folder):
        make_folder(files.folder)
        files.finish_renewal()
        files.replace(pem_of(certificate), key.pem())
    return files, read_signer(files.cert_file)


def request_signer(folder: Path, zone: str) -> Request:
    """The request for a certificate of this node's signing key. Raises PkiError."""
    files = signer_files(folder, zone)
    return write_request(files, _subject(zone), _load_key(files).private, is_new_key=False)


def sign_signer(
    folder: Path,
    zone: str,
    request_file: Path,
    now: datetime,
    *,
    days: int = SIGNER_DAYS,
    passphrase: bytes | None = None,
) -> Issued:
    """Sign the request of a zone's signing key at the facts authority in `folder`. Raises PkiError."""
    request = load_request(request_file, zone)
    if not isinstance(request.public_key(), Ed25519PublicKey):
        raise PkiError(f"{request_file} has no Ed25519 key", "make it with bsfg pki signer request")
    authority = load_authority(folder, passphrase, for_facts=True)
    return issue_requested(authority, signer_files(folder, zone), _subject(zone), request.public_key(), now, days)


def _subject(zone: str) -> CertificateSubject:
    return CertificateSubject(zone, FACT_SIGNING)


def import_signer(
    folder: Path, zone: str, cert_file: Path, facts_ca_file: Path | None, now: datetime
) -> tuple[IdentityFiles, Signer]:
    """Replace the certificate of this node's signing key, after checking it, and keep the authority that issued it. The
    former certificate goes to previous/. Raises PkiError; then nothing has changed."""
    files = signer_files(folder, zone)
    signer = read_signer(cert_file)
    key = _load_key(files)
    if signer.zone != zone or signer.public != key.public:
        raise PkiError(
            f"{cert_file} is for key {signer.key_id.hex()} of {signer.zone}, not for {key.key_id.hex()} of {zone}",
            f"import the certificate of the last request: bsfg pki signer request {zone}",
        )
    if refusal := signer.refuses(round(now.timestamp() * 1000)):
        raise PkiError(f"{cert_file} cannot be used now: {refusal}", "set the clock (timedatectl), or issue it again")
    if facts_ca_file is not None:
        anchor = load_certificates(facts_ca_file)[0]
        if refusal := refuse_anchor(anchor):
            raise PkiError(f"{facts_ca_file} is not a facts authority: {refusal}", "use the ca.pem of its folder")
        if not is_issued_by(cert_file, facts_ca_file):
            raise PkiError(f"{cert_file} was not issued by {facts_ca_file}", "use the ca.pem of the same folder")
    with disk_errors(folder):
        if facts_ca_file is not None:
            write_file(folder / FACTS_CA_FILE, read_file(facts_ca_file), PUBLIC_MODE)
        files.replace(read_file(cert_file), None)
    return files, signer


def is_issued_by(cert_file: Path, ca_file: Path) -> bool:
    """Whether one of the authorities in `ca_file` signed the certificate. Raises PkiError."""
    certificate = load_certificates(cert_file)[0]
    return any(is_signed_by(certificate, authority) for authority in load_certificates(ca_file))


def read_signer(cert_file: Path) -> Signer:
    """The signer that a certificate names. Raises PkiError if it is not a signer certificate."""
    certificate = load_certificates(cert_file)[0]
    signer = describe_signer(certificate.public_bytes(serialization.Encoding.DER))
    if isinstance(signer, CertificateRefusal):
        raise PkiError(f"{cert_file} is not a signer certificate: {signer}", "make one: bsfg pki signer key")
    return signer


def _load_key(files: IdentityFiles) -> SigningKey:
    if not files.key_file.exists():
        raise PkiError(f"there is no {files.key_file}", f"make it: bsfg pki signer key {files.name}")
    try:
        return load_key(files.key_file)
    except SigningError as error:
        raise PkiError(error.why, error.hint) from error
