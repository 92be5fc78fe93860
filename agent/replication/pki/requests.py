"""Certificate requests: the key is made where it is used and never leaves that machine; only the request does.

    on the node         make_request: zones/requested/ZONE.key (0600) and ZONE.csr
    at the authority    sign_request: zones/ZONE.pem, without a key
    on the node         renewal.import_identity: takes the key from requested/

The authority's operator names the zone; a request that names another is refused, and what else it asks for is ignored,
except for the host names of a broker. That it comes from the right machine is proven by comparing fingerprints.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.hazmat.primitives.asymmetric.types import CertificatePublicKeyTypes

from agent.file_replace import write_file
from agent.replication.pki.authority import (
    LEAF_DAYS,
    Authority,
    CertificateSubject,
    Issued,
    host_names,
    load_authority,
    sign,
    subject_of_broker,
    subject_of_zone,
)
from agent.replication.pki.certificates import extension_of, key_fingerprint, key_matches
from agent.replication.pki.files import (
    KEY_MODE,
    PUBLIC_MODE,
    RSA_BITS_MIN,
    disk_errors,
    load_certificates,
    load_key,
    make_folder,
    pem_of,
    read_file,
    refuse_existing,
)
from agent.replication.pki.problem import PkiError
from agent.replication.pki.renewal import IdentityFiles, identity_files
from agent.signing.certificates import common_name_in
from agent.signing.x509_parts import Key, key_pem, subject_name


@dataclass(frozen=True, slots=True)
class Request:
    """A request on disk, and the SHA-256 of its public key, to be compared at the authority."""

    request_file: Path
    key_file: Path
    fingerprint_sha256: str


def make_request(
    folder: Path, name: str, *, hosts: Sequence[str] = (), broker: bool = False, force: bool = False
) -> Request:
    """Make a new key for zone or broker `name`, and the request for its certificate. The identity in force stays as it
    is. Raises PkiError."""
    requested = identity_files(folder, name, broker=broker).in_subfolder("requested")
    subject = subject_of_broker(name, host_names(hosts)) if broker else subject_of_zone(name)
    effect = "a certificate for the former request cannot be imported any more"
    refuse_existing([requested.key_file], effect, force=force)
    return write_request(requested, subject, ec.generate_private_key(ec.SECP256R1()), is_new_key=True)


def write_request(files: IdentityFiles, subject: CertificateSubject, key: Key, *, is_new_key: bool) -> Request:
    """Write a request, signed with its own key, and the key if it is new. Raises PkiError."""
    builder = x509.CertificateSigningRequestBuilder().subject_name(subject_name(subject.common_name))
    if subject.hosts:
        builder = builder.add_extension(x509.SubjectAlternativeName(subject.hosts), critical=False)
    request = builder.sign(key, None if isinstance(key, ed25519.Ed25519PrivateKey) else hashes.SHA256())
    request_file = files.folder / f"{files.name}.csr"
    with disk_errors(files.folder):
        make_folder(files.folder)
        if is_new_key:
            write_file(files.key_file, key_pem(key), KEY_MODE)
        write_file(request_file, request.public_bytes(serialization.Encoding.PEM), PUBLIC_MODE)
    return Request(request_file, files.key_file, key_fingerprint(key.public_key()))


def sign_request(
    folder: Path,
    name: str,
    request_file: Path | None,
    now: datetime,
    *,
    broker: bool = False,
    days: int = LEAF_DAYS,
    passphrase: bytes | None = None,
) -> Issued:
    """Sign the request of zone or broker `name`, and write its certificate to the authority's folder. Without a
    request, the next certificate for the key of the present one. Raises PkiError."""
    files = identity_files(folder, name, broker=broker)
    if request_file is None and not files.cert_file.exists():
        hint = f"request the first one: bsfg pki request {'--broker ' if broker else ''}{name}"
        raise PkiError(f"there is no {files.cert_file} to renew", hint)
    asked: x509.Certificate | x509.CertificateSigningRequest
    if request_file is None:
        asked = load_certificates(files.cert_file)[0]
    else:
        asked = load_request(request_file, subject_of_broker(name, []).common_name if broker else name)
    hosts = extension_of(asked, x509.SubjectAlternativeName)
    subject = certificate_subject(request_file or files.cert_file, name, hosts, broker=broker)
    return issue_requested(load_authority(folder, passphrase), files, subject, asked.public_key(), now, days)


def certificate_subject(
    file: Path, name: str, hosts: x509.SubjectAlternativeName | None, *, broker: bool
) -> CertificateSubject:
    """What a certificate of zone or broker `name` names, with the hosts that `file` names. Raises PkiError."""
    if not broker:
        return subject_of_zone(name)
    if hosts is None:
        hint = f"request it again: bsfg pki request --broker {name} --host HOST"
        raise PkiError(f"{file} contains no host name", hint)
    return subject_of_broker(name, host_names([str(host.value) for host in hosts]))


def issue_requested(
    authority: Authority,
    files: IdentityFiles,
    subject: CertificateSubject,
    key: CertificatePublicKeyTypes,
    now: datetime,
    days: int,
) -> Issued:
    """Sign for a key of another machine and keep the certificate; the former one goes to previous/. Raises PkiError."""
    certificate = sign(authority, subject, key, now, days)
    with disk_errors(authority.folder):
        make_folder(files.folder)
        files.finish_renewal()
        files.replace(pem_of(certificate), None)
        if files.key_file.exists() and not key_matches(certificate, load_key(files.key_file)):
            files.key_file.unlink()  # the key of the former certificate; both are in previous/
    return files.issued(now)


def request_fingerprint(path: Path, name: str) -> str:
    """The SHA-256 of the key in a request of zone `name`. Raises PkiError."""
    return key_fingerprint(load_request(path, name).public_key())


def load_request(path: Path, common_name: str) -> x509.CertificateSigningRequest:
    """A request for this common name, whose sender has the key. Raises PkiError."""
    try:
        request = x509.load_pem_x509_csr(read_file(path))
        name, is_valid, key = common_name_in(request.subject), request.is_signature_valid, request.public_key()
    except (ValueError, TypeError, UnsupportedAlgorithm, x509.InvalidVersion) as error:
        raise PkiError(f"{path} is not a certificate request in PEM form", "make one: bsfg pki request") from error
    if not is_valid:
        raise PkiError(f"{path} was not signed with its own key", "copy it again from where it was made")
    if name != common_name:
        raise PkiError(f"{path} is a request of {name[:80]!r}, not of {common_name!r}", "sign it under its own name")
    is_strong = not isinstance(key, rsa.RSAPublicKey) or key.key_size >= RSA_BITS_MIN
    if not isinstance(key, ec.EllipticCurvePublicKey | rsa.RSAPublicKey | ed25519.Ed25519PublicKey) or not is_strong:
        raise PkiError(f"{path} contains a kind of key that is not supported", "use EC P-256, Ed25519, or RSA 2048")
    return request
