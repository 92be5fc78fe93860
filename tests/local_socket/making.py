"""Requests of a client of the local socket, and their bytes."""

import asyncio
import struct
from pathlib import Path
from typing import Any

import msgspec

from agent import local_socket
from agent.local_socket.transport import socket_address
from agent.message import Envelope, Fact

FACT = Fact("batch:B-1", "step_completed", b'{"step":"mash"}')


def request(message_id: str = "m1", fact: Fact = FACT, zone: str = "plant-a", **asked: Any) -> local_socket.AppendFact:
    """A well-formed append."""
    return local_socket.AppendFact(
        "facts.operational", Envelope(message_id, zone, "idmz", 1_700_000_000_000), fact, **asked
    )


async def connected(folder: Path, limit: int = 1 << 16) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """A client of the node there, which has said nothing yet."""
    with socket_address(folder) as address:
        return await asyncio.open_unix_connection(address, limit=limit)


async def raw(folder: Path, payload: bytes) -> local_socket.Answer:
    """Send these bytes as a client might, and read the answer."""
    reader, writer = await connected(folder)
    writer.write(payload)
    (length,) = struct.unpack("<I", await reader.readexactly(4))
    answer: local_socket.Answer = msgspec.json.decode(await reader.readexactly(length), type=local_socket.Answer)
    writer.close()
    return answer


def framed(payload: bytes) -> bytes:
    """With the length in front."""
    return struct.pack("<I", len(payload)) + payload
