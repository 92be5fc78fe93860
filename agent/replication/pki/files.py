"""PEM files, in and out: read with a limit and refused with what to do, written whole or not at all.

A key file that others may read is refused as if it were missing.  What is written has its rights from its first moment
and is on the disk when the call returns.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import stat
from collections.abc import Iterator, Sequence
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa

from agent.replication.pki.problem import PkiError

FILE_BYTES_MAX = 256 * 1024
"""Largest PEM file read; a whole system trust store is smaller, and a disk image given by mistake is larger."""

RSA_BITS_MIN = 2048
KEY_MODE = 0o600
PUBLIC_MODE = 0o644
_KEY_MODE_FORBIDDEN = 0o037
"""Rights that no key file may grant: anything to others, and more than reading to the group (the broker's own)."""

Key = ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey | ed25519.Ed25519PrivateKey


def load_certificates(path: Path) -> list[x509.Certificate]:
    """All certificates of a PEM file, at least one."""
    data = read_file(path)
    try:
        return x509.load_pem_x509_certificates(data)
    except ValueError as error:
        raise PkiError(
            f"{path} is not a certificate in PEM form", "it must begin with -----BEGIN CERTIFICATE-----"
        ) from error


def load_crl(path: Path) -> x509.CertificateRevocationList:
    """The revocation list in a PEM file, or the first of several."""
    return load_crls(path)[0]


def load_crls(path: Path) -> list[x509.CertificateRevocationList]:
    """All revocation lists of a PEM file, at least one: a site's PKI has one for each authority on the way to its root."""
    marker = b"-----BEGIN X509 CRL-----"
    blocks = [marker + block for block in read_file(path).split(marker)[1:]]
    try:
        if blocks:
            return [x509.load_pem_x509_crl(block) for block in blocks]
    except ValueError as error:
        raise PkiError(
            f"{path} is not a revocation list in PEM form", f"it must begin with {marker.decode()}"
        ) from error
    raise PkiError(f"{path} is not a revocation list in PEM form", f"it must begin with {marker.decode()}")


def load_key(path: Path) -> Key:
    """The private key in `path`; refused when others may read it or when it wants a password."""
    check_key_rights(path)
    data = read_file(path)
    try:
        key = serialization.load_pem_private_key(data, password=None)
    except TypeError as error:
        raise PkiError(
            f"{path} is protected by a password", f"a node starts without a human: openssl pkey -in {path} -out NEW"
        ) from error
    except (ValueError, UnsupportedAlgorithm) as error:
        raise PkiError(
            f"{path} is not a private key in PEM form", "give the .key file that belongs to the certificate"
        ) from error
    if not isinstance(key, Key):
        raise PkiError(
            f"{path} holds a kind of key that is not used here", "use EC P-256, Ed25519, or RSA of 2048 bits and more"
        )
    if isinstance(key, rsa.RSAPrivateKey) and key.key_size < RSA_BITS_MIN:
        raise PkiError(f"{path} is an RSA key of {key.key_size} bits", f"use {RSA_BITS_MIN} bits and more, or EC P-256")
    return key


def check_key_rights(path: Path) -> None:
    """Refuse a key that is missing, that others may read, or that the group may change."""
    try:
        mode = path.stat().st_mode
    except OSError as error:
        raise PkiError(f"{path}: {error.strerror}", "correct the path, or the rights of its folder") from error
    if not stat.S_ISREG(mode):
        raise PkiError(f"{path} is not a file", "give the .key file that belongs to the certificate")
    if mode & _KEY_MODE_FORBIDDEN:
        raise PkiError(f"{path} is open to others (mode {stat.S_IMODE(mode):04o})", f"run: chmod 0600 {path}")


def write_file(path: Path, data: bytes, mode: int, group: int = -1) -> None:
    """Put `data` at `path`, whole or not at all, with `mode` and `group` from its first moment, durably."""
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        with os.fdopen(os.open(temporary, flags, KEY_MODE), "wb") as file:
            # First whose, then which rights: the other way round the old group could read for a moment.
            os.fchown(file.fileno(), -1, group)
            os.fchmod(file.fileno(), mode)
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def pem_of(thing: x509.Certificate | x509.CertificateRevocationList) -> bytes:
    """As it lies in its file."""
    return thing.public_bytes(serialization.Encoding.PEM)


@contextlib.contextmanager
def disk_errors(folder: Path) -> Iterator[None]:
    """Name the folder and the way out when the disk refuses."""
    try:
        yield
    except OSError as error:
        raise PkiError(
            f"cannot write below {folder}: {error.strerror or error}", "check its rights and the free space"
        ) from error


def make_folder(folder: Path) -> None:
    """A folder of its owner alone."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)


def refuse_existing(files: Sequence[Path], price: str, *, force: bool) -> None:
    """Refuse to overwrite unless `force`, and say what that would cost."""
    found = [str(file) for file in files if file.exists() or file.is_symlink()]
    if found and not force:
        raise PkiError(f"{' and '.join(found)} exist already", f"--force replaces them, and {price}")


def read_file(path: Path) -> bytes:
    """The bytes of a PEM file; nothing larger, and no device, is read."""
    try:
        if not path.is_file() and path.exists():
            raise PkiError(f"{path} is not a file", "give a PEM file")
        with path.open("rb") as file:
            data = file.read(FILE_BYTES_MAX + 1)
    except OSError as error:
        raise PkiError(
            f"{path}: {error.strerror}", "correct the path, or let the user that runs this read it"
        ) from error
    if len(data) > FILE_BYTES_MAX:
        raise PkiError(f"{path} is larger than {FILE_BYTES_MAX} bytes", "give a PEM file")
    return data
