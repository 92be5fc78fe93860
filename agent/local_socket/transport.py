"""The node's socket as a carrier of `agent.replication.protocol`: its path, and how a message is framed on it.

A request or an answer is a little-endian u32, its length, and the bytes that the protocol's codec makes. A connection
has one request at a time. The JSON object of a request may name the `instance` that asks, which holds the leases of its
consumers; without it the connection is the instance. Besides the protocol's operations there are those of `messages`.

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

from agent.errors import BsfgError

SOCKET = "bsfg.sock"
REQUEST_BYTES_MAX = 1024 * 1024  # a message has 256 KiB at most; a broker's packets would be smaller
ANSWER_BYTES_MAX = 16 * 1024 * 1024  # everything about a node with five thousand peers
_LENGTH = struct.Struct("<I")


class LocalError(BsfgError):
    """The node refused the request, or ended before it answered. `code`: of the protocol's error table."""

    def __init__(self, text: str, hint: str = "", code: str = "") -> None:
        super().__init__(text)
        self.hint = hint
        self.code = code


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


def framed(payload: bytes) -> bytes:
    """A message with its length in front."""
    return _LENGTH.pack(len(payload)) + payload


async def read_length(reader: StreamReader) -> int:
    """The length of the next message. Raises asyncio.IncompleteReadError at the end of the connection."""
    (length,) = _LENGTH.unpack(await reader.readexactly(_LENGTH.size))
    return int(length)
