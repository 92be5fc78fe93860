"""Shell: who may look: a file of names and hashed passwords, one a line, checked for each request.

    name:salt:hash      scrypt, in hexadecimal; `bsfg page --add-user NAME` prints the line

A password that was right is known for a while by a digest of the whole header, so that an open page does not cost a
hash a second. One password is hashed at a time: 16 MB and 50 ms, whoever asks.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import hashlib
import hmac
import logging
import os
from pathlib import Path

SCRYPT = {"n": 2**14, "r": 8, "p": 1}
KNOWN_MAX = 100
PASSWORD_BYTES_MAX = 256

log = logging.getLogger(__name__)


def user_line(name: str, password: str) -> str:
    """The line of the file for a new user."""
    salt = os.urandom(16)
    return f"{name}:{salt.hex()}:{_hash(password.encode(), salt).hex()}"


def _hash(password: bytes, salt: bytes) -> bytes:
    return hashlib.scrypt(password, salt=salt, **SCRYPT)


class Users:
    """The users of a file, which is read again when it changes."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._read_ns = -1
        self._users: dict[str, tuple[bytes, bytes]] = {}
        self._known: set[bytes] = set()
        self._turn = asyncio.Lock()

    async def admits(self, authorization: bytes) -> bool:
        """Whether the value of an Authorization header is that of a user."""
        self._refresh()
        digest = hashlib.sha256(authorization).digest()
        if digest in self._known:
            return True
        kind, _, encoded = authorization.partition(b" ")
        try:
            name, _, password = base64.b64decode(encoded, validate=True).partition(b":")
        except binascii.Error:
            return False
        if kind.lower() != b"basic" or not 0 < len(password) <= PASSWORD_BYTES_MAX:
            return False
        async with self._turn:
            salt, expected = self._users.get(name.decode("utf-8", "replace"), (b"none", b""))
            found = await asyncio.to_thread(_hash, password, salt)  # also for an unknown name: as slow as a known one
            if not hmac.compare_digest(found, expected):
                log.warning("page_password_wrong")
                return False
        if len(self._known) >= KNOWN_MAX:
            self._known.clear()
        self._known.add(digest)
        return True

    def _refresh(self) -> None:
        try:
            changed_ns = self._file.stat().st_mtime_ns
            if changed_ns == self._read_ns:
                return
            lines = [line.split(":") for line in self._file.read_text("utf-8").splitlines() if line.strip()]
            users = {name: (bytes.fromhex(salt), bytes.fromhex(found)) for name, salt, found in lines}
        except (OSError, ValueError) as error:
            users, changed_ns = {}, -1
            log.warning("page_users_unreadable", extra={"file": str(self._file), "why": str(error)})
        self._users, self._read_ns, self._known = users, changed_ns, set()
