"""Core: what is in a backup, where each file goes on another machine, and the bytes, encrypted and authenticated under
a passphrase.

There are three folders: that of node.toml, the node's state folder, and an authority's. A name stays inside its folder,
so a backup cannot replace any other file of the machine. The bytes are

    magic and version   16    salt  16    proof of the passphrase  16    nonce  12    length of the rest  8
    AES-256-GCM of the entries in MessagePack, with all of the above as associated data

scrypt makes 48 bytes of passphrase and salt: the key, and the proof, by which a wrong passphrase is told apart from an
altered file. The rest is authenticated as one message, so no byte is used before all are known to be right.
"""

from __future__ import annotations

import hashlib
import hmac
import posixpath
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

import msgspec
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from agent.errors import BsfgError

FILES_MAX = 50_000
"""An authority keeps a file for each certificate that it ever signed: a thousand zones for decades."""
BACKUP_BYTES_MAX = 64 * 1024 * 1024
"""Tag files of 100,000 tags take 10 MB. The whole file is in memory."""
STATE_FOLDERS = ("opcua",)
"""What is saved of the state folder: our OPC UA identity with the trusted servers. Nothing else is restored there: a
node.toml may name any folder as its state folder."""
NAME_BYTES_MAX, PART_BYTES_MAX = 1024, 240  # Linux allows 4096 and 255; a temporary name is a little longer
MAGIC = b"bsfg backup\n\0\0\0\1"  # the last byte is the version
SALT_BYTES, NONCE_BYTES = 16, 12
SCRYPT = {"n": 2**16, "r": 8, "p": 2}
"""64 MiB and half a second on a gateway: one of the settings that OWASP's cheat sheet on password storage calls
equal."""
_HEAD = struct.Struct(f">{len(MAGIC)}s{SALT_BYTES}s16s{NONCE_BYTES}sQ")

Derive = Callable[[bytes], bytes]
"""From a salt to the 48 bytes of key and proof."""


class Place(Enum):
    """A folder whose files are saved."""

    CONFIG = "config"
    STATE = "state"
    AUTHORITY = "authority"


class BackupError(BsfgError):
    """A backup cannot be made, read or restored; nothing was written. `hint` says what the operator can do."""

    def __init__(self, why: str, hint: str) -> None:
        super().__init__(why)
        self.why = why
        self.hint = hint


class SavedFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The content of a file, and its name in the folder that `place` stands for, with `/` between the parts."""

    place: Place
    name: str
    data: bytes


class Backup(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The files of a node, of an authority, or of both. `config_file` and `authority` are where they were; empty: not
    in the backup. `left_out` says what a restored node needs besides."""

    version: str
    made_unix_ms: int
    zone: str = ""
    config_file: str = ""
    authority: str = ""
    left_out: tuple[str, ...] = ()
    files: tuple[SavedFile, ...] = ()


@dataclass(frozen=True, slots=True)
class RestoreTarget:
    """A saved file and where it goes."""

    file: SavedFile
    path: Path


def problem_of(backup: Backup) -> str:
    """What a backup may not have: too much, a name that leads elsewhere, two files of one name."""
    if len(backup.files) > FILES_MAX:
        return f"holds {len(backup.files)} files, more than {FILES_MAX}"
    if sum(len(file.data) for file in backup.files) > BACKUP_BYTES_MAX:
        return f"holds more than {BACKUP_BYTES_MAX} bytes"
    seen: set[tuple[Place, str]] = set()
    for file in backup.files:
        if problem := name_problem(file.name):
            return f"holds {file.name!r}, which {problem}"
        if file.place is Place.STATE and file.name.partition("/")[0] not in STATE_FOLDERS:
            return f"holds {file.name!r}, which is not one of {', '.join(STATE_FOLDERS)}"
        if (file.place, file.name) in seen:
            return f"holds {file.name!r} twice"
        seen.add((file.place, file.name))
    return ""


def name_problem(name: str) -> str:
    """Why a name may not be used; empty if it may."""
    parts = name.split("/")
    try:
        encoded = name.encode()
    except UnicodeEncodeError:
        return "is not text"
    if name.startswith("/") or {"", ".", ".."} & set(parts):
        return "leads out of its folder"
    if not name.isprintable():
        return "has control characters"
    if len(encoded) > NAME_BYTES_MAX or any(len(part.encode()) > PART_BYTES_MAX for part in parts):
        return "is too long"
    return ""


def place_of(path: Path, folders: Mapping[Place, Path]) -> tuple[Place, str] | None:
    """The folder that a path is in, and its name there; None for a path that is in none. The state folder may be inside
    that of node.toml."""
    plain = Path(posixpath.normpath(path))
    for place in (Place.STATE, Place.CONFIG, Place.AUTHORITY):
        if place in folders and plain.is_relative_to(folder := Path(posixpath.normpath(folders[place]))):
            name = plain.relative_to(folder)
            is_left_out = place is Place.STATE and not (name.parts and name.parts[0] in STATE_FOLDERS)
            return None if is_left_out else (place, name.as_posix())
    return None


def with_moved_paths(backup: Backup, folder: str) -> tuple[Backup, int]:
    """The backup, its node.toml with the absolute paths below its former folder in the new one, and how many."""
    former, name = posixpath.split(backup.config_file)
    moved, count = [], 0
    for file in backup.files:
        if file.place is Place.CONFIG and file.name == name and former != folder and not {'"', "'", "\\"} & set(folder):
            for quote in ('"', "'"):
                old = f"{quote}{former}/".encode()
                count += file.data.count(old)
                file = SavedFile(file.place, file.name, file.data.replace(old, f"{quote}{folder}/".encode()))  # noqa: PLW2901
        moved.append(file)
    return msgspec.structs.replace(backup, files=tuple(moved)), count


def targets_of(backup: Backup, config_file: Path, folders: Mapping[Place, Path]) -> list[RestoreTarget]:
    """Where the files of a backup go, node.toml last: where it is, the others are. Files of a place that is not in
    `folders` are passed over."""
    former = posixpath.basename(backup.config_file)
    found: list[RestoreTarget] = []
    for file in backup.files:
        if file.place in folders:
            is_config = file.place is Place.CONFIG and file.name == former
            found.append(RestoreTarget(file, config_file if is_config else folders[file.place] / file.name))
    return sorted(found, key=lambda target: target.path == config_file)


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
