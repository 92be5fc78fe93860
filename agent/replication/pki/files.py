"""PEM files: read with a size limit, written atomically and durably.

A key file that others may read is refused. A written file has its final permissions from its creation, and is on disk
when the call returns.
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Iterator, Sequence
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

from agent.replication.pki.problem import PkiError
from agent.signing.x509_parts import Key, read_parts

FILE_BYTES_MAX = 256 * 1024
"""Largest PEM file that is read: larger than a system trust store, smaller than a disk image given by mistake."""

RSA_BITS_MIN = 2048
KEY_MODE = 0o600
PUBLIC_MODE = 0o644
_KEY_MODE_FORBIDDEN = 0o037
"""Permission bits that a key file must not have: any for others, more than read for the group (the broker's)."""


def load_certificates(path: Path) -> list[x509.Certificate]:
    """All certificates of a PEM file, at least one. Raises PkiError."""
    data = read_file(path)
    try:
        found = x509.load_pem_x509_certificates(data)
        for certificate in found:
            read_parts(certificate)
    except (ValueError, x509.InvalidVersion) as error:
        raise PkiError(
            f"{path} is not a certificate in PEM form", "it must begin with -----BEGIN CERTIFICATE-----"
        ) from error
    return found


def load_crl(path: Path) -> x509.CertificateRevocationList:
    """The first revocation list of a PEM file. Raises PkiError."""
    return load_crls(path)[0]


def load_crls(path: Path) -> list[x509.CertificateRevocationList]:
    """All revocation lists of a PEM file, at least one. A site's PKI has one for each authority of a chain. Raises
    PkiError."""
    marker = b"-----BEGIN X509 CRL-----"
    blocks = [marker + block for block in read_file(path).split(marker)[1:]]
    try:
        found = [x509.load_pem_x509_crl(block) for block in blocks]
        for crl in found:
            _ = crl.issuer, crl.last_update_utc, crl.next_update_utc
        if found:
            return found
    except (ValueError, x509.InvalidVersion) as error:
        raise PkiError(
            f"{path} is not a revocation list in PEM form", f"it must begin with {marker.decode()}"
        ) from error
    raise PkiError(f"{path} is not a revocation list in PEM form", f"it must begin with {marker.decode()}")


def load_key(path: Path, passphrase: bytes | None = None) -> Key:
    """The private key in `path`. Raises PkiError if others may read it, or if it has a passphrase that is missing or
    wrong. Only the key of an authority may have one."""
    check_key_rights(path)
    data = read_file(path)
    try:
        key = serialization.load_pem_private_key(data, password=passphrase if _is_locked(data) else None)
    except TypeError as error:
        raise PkiError(
            f"{path} is protected by a passphrase",
            f"a node starts unattended; remove it: openssl pkey -in {path} -out NEW. "
            "For the key of an authority give --passphrase-file",
        ) from error
    except (ValueError, UnsupportedAlgorithm) as error:
        if passphrase is not None and _is_locked(data):
            raise PkiError(f"the passphrase does not open {path}", "type it again, or correct the file") from error
        raise PkiError(
            f"{path} is not a private key in PEM form", "use the .key file that belongs to the certificate"
        ) from error
    if not isinstance(key, Key):
        raise PkiError(
            f"{path} contains a kind of key that is not supported",
            "use EC P-256, Ed25519, or RSA of 2048 bits and more",
        )
    if isinstance(key, rsa.RSAPrivateKey) and key.key_size < RSA_BITS_MIN:
        raise PkiError(f"{path} is an RSA key of {key.key_size} bits", f"use {RSA_BITS_MIN} bits and more, or EC P-256")
    return key


def is_locked(path: Path) -> bool:
    """Whether the key in `path` needs a passphrase; False also if there is none."""
    return path.is_file() and _is_locked(read_file(path))


def _is_locked(data: bytes) -> bool:
    # In the first line (RFC 7468), or in the second line of older forms.
    return b"ENCRYPTED" in data[:200]


def check_key_rights(path: Path) -> None:
    """Raise PkiError for a key that is missing, readable by others, or writable by the group."""
    try:
        mode = path.stat().st_mode
    except OSError as error:
        raise PkiError(f"{path}: {error.strerror}", "correct the path, or the rights of its folder") from error
    if not stat.S_ISREG(mode):
        raise PkiError(f"{path} is not a file", "use the .key file that belongs to the certificate")
    if mode & _KEY_MODE_FORBIDDEN:
        raise PkiError(f"{path} is accessible to others (mode {stat.S_IMODE(mode):04o})", f"run: chmod 0600 {path}")


def key_rights(folder: Path) -> tuple[int, int]:
    """Mode and group of a key in `folder`. If root has given a group access to the folder, as the package does in
    /etc/bsfg/pki for the node, the group may read the key too. Raises OSError."""
    found = folder.stat()
    is_opened = found.st_uid == 0 and found.st_gid != 0 and found.st_mode & 0o050 == 0o050
    return (0o640, found.st_gid) if is_opened and os.geteuid() == 0 else (KEY_MODE, -1)


def pem_of(thing: x509.Certificate | x509.CertificateRevocationList) -> bytes:
    """The PEM encoding."""
    return thing.public_bytes(serialization.Encoding.PEM)


@contextlib.contextmanager
def disk_errors(folder: Path) -> Iterator[None]:
    """Turn an OSError into a PkiError that names the folder and what to do."""
    try:
        yield
    except OSError as error:
        raise PkiError(
            f"cannot write below {folder}: {error.strerror or error}", "check its rights and the free space"
        ) from error


def make_folder(folder: Path) -> None:
    """Create a folder that only its owner can use."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)


def refuse_existing(files: Sequence[Path], effect: str, *, force: bool) -> None:
    """Raise PkiError if one of `files` exists, unless `force`. `effect` says what overwriting would cause."""
    found = [str(file) for file in files if file.exists() or file.is_symlink()]
    if found and not force:
        raise PkiError(f"{' and '.join(found)} exist already", f"--force replaces them, and {effect}")


def read_file(path: Path) -> bytes:
    """The bytes of a regular file of at most FILE_BYTES_MAX. Raises PkiError."""
    try:
        if not path.is_file() and path.exists():
            raise PkiError(f"{path} is not a file", "use a PEM file")
        with path.open("rb") as file:
            data = file.read(FILE_BYTES_MAX + 1)
    except OSError as error:
        raise PkiError(
            f"{path}: {error.strerror}", "correct the path, or give the user that runs this the right to read it"
        ) from error
    if len(data) > FILE_BYTES_MAX:
        raise PkiError(f"{path} is larger than {FILE_BYTES_MAX} bytes", "use a PEM file")
    return data
