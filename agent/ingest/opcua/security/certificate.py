"""Our own application certificate (OPC 10000-4, 6.1): created once, and replaced only by the operator.

Servers identify a client by this certificate and the application URI in it. If it changed at every start, an operator
would have to trust it at every start.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import pwd
import socket
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.asymmetric.types import PrivateKeyTypes
from cryptography.x509.oid import ExtendedKeyUsageOID

from agent.escaping import password_text
from agent.file_replace import sync_folder, write_file
from agent.ingest.clock import BUILT_NS
from agent.ingest.errors import SourceRefused
from agent.ingest.opcua.security.certificate_facts import CertificateFacts, facts_of, parse_certificate
from agent.settings.sources import OpcuaSourceSettings
from agent.signing.x509_parts import builder, key_pem, key_usage, subject_name

KEY_BITS = 2048  # the minimum of Basic256Sha256 and the maximum of old devices
LIFETIME_DAYS = 3650  # the life of a gateway; its end is reported like that of any certificate
CLOCK_SLACK_DAYS = 1  # for devices whose clock is behind


def ensure_certificate(certificate_file: Path, key_file: Path, application_uri: str) -> None:
    """Make a key (PEM) and a self-signed certificate, unless both exist. Raises SourceRefused if only one of them
    exists.

    The certificate is DER, which is what servers import; PEM in a file named .pem. Sources that connect at the same
    time share one pair: the first makes it, and the others wait.
    """
    if certificate_file.exists() and key_file.exists():  # the certificate comes last
        return
    try:
        key_file.parent.mkdir(parents=True, exist_ok=True)
        certificate_file.parent.mkdir(parents=True, exist_ok=True)
        with _only_maker(key_file.parent):
            _ensure_pair(certificate_file, key_file, application_uri)
    except OSError as error:
        text = f"our certificate cannot be written to {certificate_file.parent}: {error.strerror}"
        raise SourceRefused(f"{text}; let this user write there, or make it with `bsfg opcua certificate`") from error


def _ensure_pair(certificate_file: Path, key_file: Path, application_uri: str) -> None:
    """Make the pair unless it is there. A certificate waits under another name until its key is written, so that a
    crash leaves nothing, or what the next call completes."""
    waiting = certificate_file.with_name(f".{certificate_file.name}.waiting")
    if key_file.exists() and not certificate_file.exists() and _is_pair(waiting, key_file):
        waiting.replace(certificate_file)
    there = certificate_file.exists(), key_file.exists()
    if all(there):
        return
    if any(there):
        found, missing = (certificate_file, key_file) if there[0] else (key_file, certificate_file)
        raise SourceRefused(f"{missing} is missing, but {found} exists; restore it, or remove that to make a new pair")
    key = rsa.generate_private_key(public_exponent=65537, key_size=KEY_BITS)
    _write(waiting, _encoded(_self_signed(key, application_uri), certificate_file), 0o644)
    _write(key_file, key_pem(key), 0o600)
    waiting.replace(certificate_file)
    sync_folder(certificate_file.parent)


def _is_pair(certificate_file: Path, key_file: Path) -> bool:
    """Whether both exist and belong together."""
    try:
        read_key_of(read_certificate(certificate_file), key_file)
    except SourceRefused:
        return False
    return True


@contextlib.contextmanager
def _only_maker(folder: Path) -> Iterator[None]:
    """One thread of all processes at a time. Raises OSError."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _encoded(certificate: x509.Certificate, file: Path) -> bytes:
    """PEM in a file named .pem, otherwise DER."""
    is_pem = file.suffix.lower() == ".pem"
    return certificate.public_bytes(serialization.Encoding.PEM if is_pem else serialization.Encoding.DER)


def file_to_import(certificate_file: Path) -> Path:
    """The file that the operator of a server imports. It is DER: if the certificate is PEM, a copy beside it.

    If the copy cannot be written, it is the PEM file. Raises OSError and ValueError.
    """
    data = certificate_file.read_bytes()
    if b"-----BEGIN" not in data:
        return certificate_file
    copy = certificate_file.with_suffix(".der")  # also for a PEM file that is named .der
    der = parse_certificate(data).public_bytes(serialization.Encoding.DER)
    try:
        if not copy.exists() or copy.read_bytes() != der:
            _write(copy, der, 0o644)
    except OSError:
        return certificate_file
    return copy


def renew_certificate(certificate_file: Path, key_file: Path) -> Path:
    """Make the next certificate for the same key and names. The present one stays in use, because each server has to
    trust the new one first. A next certificate that already exists is kept. Returns its file. Raises SourceRefused."""
    own = read_certificate(certificate_file)
    key = read_key_of(own, key_file)
    if not own.is_self_issued:
        raise SourceRefused(f"{certificate_file} was issued by {own.issuer}; have that authority renew it")
    if not isinstance(key, rsa.RSAPrivateKey) or len(own.uris) != 1:
        raise SourceRefused(f"{certificate_file} was not made by this program; renew it where it was made")
    file = next_file(certificate_file)
    now = datetime.now(UTC)
    if file.exists() and read_certificate(file).days_left(now) >= own.days_left(now):
        return file  # servers may trust it already
    _write_or_refuse(file, _encoded(_self_signed(key, own.uris[0]), file))
    return file


def activate_certificate(certificate_file: Path, key_file: Path) -> Path:
    """Put the next certificate into use for new connections. Returns the file in which the previous one is kept. Raises
    SourceRefused."""
    new = next_file(certificate_file)
    if not new.exists():
        raise SourceRefused(f"{new} does not exist; make it with --renew, and have every server trust it")
    read_key_of(read_certificate(new), key_file)
    previous = certificate_file.with_name(f"{certificate_file.stem}.previous{certificate_file.suffix}")
    _write_or_refuse(previous, read_file(certificate_file))
    _write_or_refuse(certificate_file, read_file(new))
    new.unlink()
    return previous


def next_file(certificate_file: Path) -> Path:
    """The file of the next certificate until it is put into use."""
    return certificate_file.with_name(f"{certificate_file.stem}.next{certificate_file.suffix}")


def _write_or_refuse(file: Path, data: bytes) -> None:
    try:
        _write(file, data, 0o644)
    except OSError as error:
        raise SourceRefused(f"{file} cannot be written: {error.strerror}; let this user write there") from error


def own_certificate(settings: OpcuaSourceSettings) -> CertificateFacts:
    """Our certificate. Raises SourceRefused if it cannot be read or does not have the application URI of the
    settings."""
    file = settings.certificate_file
    assert file is not None, "checked with the settings"
    own = read_certificate(file)
    if settings.application_uri not in own.uris:
        uris = ", ".join(own.uris) or "none"
        text = f"application_uri is {settings.application_uri}, and the certificate {file} has {uris}"
        raise SourceRefused(f"{text}; servers refuse a mismatch: set application_uri to the one in the certificate")
    return own


def read_certificate(file: Path) -> CertificateFacts:
    """A certificate in PEM or DER. Raises SourceRefused."""
    try:
        return facts_of(read_file(file))
    except ValueError as error:
        raise SourceRefused(f"{file} is not a certificate (PEM or DER)") from error


def read_secret(file: Path) -> bytes:
    """Read a key or a password. Raises SourceRefused if everybody on the machine may read the file."""
    data = read_file(file)
    if file.stat().st_mode & 0o007:
        raise SourceRefused(f"{file} can be read by every user; chmod 600 it, and replace the secret")
    return data


def read_password(file: Path) -> str:
    """Read a password in UTF-8, with or without a byte order mark. Raises SourceRefused as `read_secret`."""
    try:
        return password_text(read_secret(file), file)
    except ValueError as error:
        raise SourceRefused(str(error)) from error


def read_key(file: Path) -> PrivateKeyTypes:
    """A private key in PEM or DER, without a password. Raises SourceRefused."""
    data = read_secret(file)
    load = serialization.load_pem_private_key if b"-----BEGIN" in data else serialization.load_der_private_key
    try:
        return load(data, password=None)
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        text = f"{file} is not a private key without a password (PEM or DER)"
        raise SourceRefused(f"{text}; `openssl pkey -in FILE -out FILE` removes a password") from error


def read_key_of(certificate: CertificateFacts, file: Path) -> PrivateKeyTypes:
    """The private key of a certificate. Raises SourceRefused, also if they do not match."""
    key = read_key(file)
    if key.public_key() != parse_certificate(certificate.der).public_key():
        raise SourceRefused(f"{file} is not the key of the certificate {certificate.sha1}; configure a matching pair")
    return key


def read_file(file: Path) -> bytes:
    """The bytes of a file that the settings name. Raises SourceRefused."""
    try:
        return file.read_bytes()
    except PermissionError as error:
        user = str(os.geteuid())
        with contextlib.suppress(KeyError):  # a user of a container may have no name
            user = pwd.getpwuid(os.geteuid()).pw_name
        remedy = f"run as the node's user, or let this user read it: chown {user} {file}"
        raise SourceRefused(f"{file} cannot be read: {error.strerror}; {remedy}") from error
    except OSError as error:
        raise SourceRefused(f"{file} cannot be read: {error.strerror}") from error


def _self_signed(key: rsa.RSAPrivateKey, application_uri: str) -> x509.Certificate:
    name = subject_name("bsfg")
    names = [x509.UniformResourceIdentifier(application_uri), x509.DNSName(socket.gethostname() or "localhost")]
    usage = key_usage("digital_signature", "content_commitment", "key_encipherment", "data_encipherment")
    now = datetime.now(UTC)
    if now.timestamp() * 1e9 < BUILT_NS:
        text = f"our certificate is not made while this machine's clock says {now:%Y-%m-%d %H:%M} UTC: it was never set"
        raise SourceRefused(f"{text}; set it (timedatectl), and the node goes on by itself")
    return (
        builder(
            name, name, key.public_key(), now - timedelta(days=CLOCK_SLACK_DAYS), now + timedelta(days=LIFETIME_DAYS)
        )
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(usage, critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.CLIENT_AUTH]), critical=False)
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .sign(key, hashes.SHA256())
    )


def _write(file: Path, data: bytes, mode: int) -> None:
    """Replace a file. What root makes in a folder belongs to the folder's owner: the node has to read it. Raises
    OSError."""
    file.parent.mkdir(parents=True, exist_ok=True)
    there = file.parent.stat()
    owner, group = (there.st_uid, there.st_gid) if os.geteuid() == 0 else (-1, -1)
    write_file(file, data, mode, group, owner)
