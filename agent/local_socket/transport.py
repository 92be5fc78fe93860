"""The path of the local socket, and how a message is framed on it: a little-endian u32 length and that many bytes of
JSON.

The socket is in the state folder, and the operating system says who connects: the node's user and root may ask for
everything, members of the node's group may look (`LOOKING_REQUESTS`).

    LocalError              the node refused the request, or the socket broke
      NoNode                no node runs, and only a running one can answer (the operator's)
    StateFolderUnusable     the state folder cannot be made or entered (the operator's)
"""

from __future__ import annotations

import contextlib
import os
import struct
from asyncio import StreamReader
from collections.abc import Iterator
from pathlib import Path

import msgspec

from agent.errors import BsfgError

SOCKET = "bsfg.sock"
REQUEST_BYTES_MAX = 1024 * 1024  # the largest message is 256 KiB, base64 makes it 350
ANSWER_BYTES_MAX = 16 * 1024 * 1024  # everything about a node with five thousand peers
_LENGTH = struct.Struct("<I")


class LocalError(BsfgError):
    """The node refused the request, or ended before it answered."""

    def __init__(self, text: str, hint: str = "") -> None:
        super().__init__(text)
        self.hint = hint


class NoNode(LocalError):
    """The request is for a running node, and none runs."""

    def __init__(self) -> None:
        super().__init__("no node runs here", "start it: bsfg run, or systemctl start bsfg@ZONE")


class StateFolderUnusable(BsfgError):
    """The state folder cannot be made or entered."""

    hint = "run as the node's user, or correct state_dir"


@contextlib.contextmanager
def socket_address(state_dir: Path) -> Iterator[str]:
    """A path to the socket that fits the kernel's limit of 108 bytes for any path of the state folder. Raises
    OSError."""
    folder = os.open(state_dir, os.O_PATH | os.O_DIRECTORY)
    try:
        yield f"/proc/self/fd/{folder}/{SOCKET}"
    finally:
        os.close(folder)


def framed(message: msgspec.Struct) -> bytes:
    """The message as JSON with its length in front."""
    encoded = msgspec.json.encode(message)
    return _LENGTH.pack(len(encoded)) + encoded


async def read_length(reader: StreamReader) -> int:
    """The length of the next message. Raises asyncio.IncompleteReadError at the end of the connection."""
    (length,) = _LENGTH.unpack(await reader.readexactly(_LENGTH.size))
    return int(length)
