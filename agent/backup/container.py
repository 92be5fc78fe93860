"""Core: a backup as bytes, encrypted and authenticated under a passphrase.

    magic and version   16    salt  16    proof of the passphrase  16    nonce  12    length of the rest  8
    AES-256-GCM of the entries in MessagePack, with all of the above as associated data

scrypt makes 48 bytes of passphrase and salt: the key, and the proof, by which a wrong passphrase is told apart from an
altered file. The rest is authenticated as one message, so no byte is used before all are known to be right.
"""

from __future__ import annotations

import hashlib
import hmac
import struct
from collections.abc import Callable

import msgspec
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from agent.backup.contents import Backup, BackupError, problem_of

MAGIC = b"bsfg backup\n\0\0\0\1"  # the last byte is the version
SALT_BYTES, NONCE_BYTES = 16, 12
SCRYPT = {"n": 2**16, "r": 8, "p": 2}
"""64 MiB and half a second on a gateway: one of the settings that OWASP's cheat sheet on password storage calls
equal."""
_HEAD = struct.Struct(f">{len(MAGIC)}s{SALT_BYTES}s16s{NONCE_BYTES}sQ")

Derive = Callable[[bytes], bytes]
"""From a salt to the 48 bytes of key and proof."""


def derive(passphrase: bytes) -> Derive:
    """scrypt of the passphrase, for each salt."""
    return lambda salt: hashlib.scrypt(passphrase, salt=salt, **SCRYPT, maxmem=128 * 1024 * 1024, dklen=48)


def seal_backup(backup: Backup, key_of: Derive, salt: bytes, nonce: bytes) -> bytes:
    """The bytes of a backup; salt and nonce are random. Raises BackupError if it is too large."""
    if problem := problem_of(backup):
        raise BackupError(problem, "take what is not needed out of the folders")
    plain, secret = msgspec.msgpack.encode(backup), key_of(salt)
    head = _HEAD.pack(MAGIC, salt, secret[32:], nonce, len(plain) + 16)
    return head + AESGCM(secret[:32]).encrypt(nonce, plain, head)


def open_backup(data: bytes, key_of: Derive) -> Backup:
    """The backup in `data`. Raises BackupError for anything that `seal_backup` did not make with this passphrase."""
    if len(data) < _HEAD.size or data[: len(MAGIC) - 1] != MAGIC[:-1]:
        raise BackupError("is not a backup", "give a file that bsfg backup has written")
    magic, salt, proof, nonce, length = _HEAD.unpack_from(data)
    if magic != MAGIC:
        raise BackupError(f"is a backup of version {magic[-1]}, this program reads 1", "use a newer bsfg")
    head, sealed = data[: _HEAD.size], data[_HEAD.size :]
    if len(sealed) != length:
        raise BackupError(
            f"has {len(data)} bytes instead of {_HEAD.size + length}", "it was truncated; take another copy"
        )
    secret = key_of(salt)
    if not hmac.compare_digest(secret[32:], proof):
        raise BackupError("does not open with this passphrase", "type it again; if it is right, the file was altered")
    try:
        plain = AESGCM(secret[:32]).decrypt(nonce, sealed, head)
        backup = msgspec.msgpack.decode(plain, type=Backup)
    except (InvalidTag, msgspec.MsgspecError) as error:
        raise BackupError("was altered after it was made, or is damaged", "take another copy") from error
    if problem := problem_of(backup):
        raise BackupError(problem, "it was not made by bsfg backup; do not use it")
    return backup
