"""Requests of a client of the local socket, and their bytes."""

import asyncio
import struct
from pathlib import Path
from typing import Any

import msgspec

from agent import local_socket
from agent.local_socket.messages import ANSWER_DECODERS
from agent.local_socket.transport import socket_address
from agent.message import Envelope, Fact
from agent.replication.protocol import messages
from agent.replication.protocol.codec import decode_answer

STREAM = "facts.operational"
FACT = Fact("batch:B-1", "step_completed", b'{"step":"mash"}')


def request(
    message_id: str = "m1",
    fact: Fact = FACT,
    zone: str = "plant-a",
    stream: str = STREAM,
    acks: Any = None,
    **asked: Any,
) -> messages.AppendFact:
    """A well-formed append."""
    new = messages.NewFact(subject=fact.subject, predicate=fact.predicate, object=msgspec.Raw(fact.object_json))
    message = messages.NewMessage(envelope=Envelope(message_id, zone, "idmz", 1_700_000_000_000), fact=new, **asked)
    return messages.AppendFact(stream=stream, messages=[message], acks=acks)


async def answer_to(folder: Path, asked: local_socket.AnyRequest) -> Any:
    """What the node there answers."""
    return (await local_socket.ask(folder, asked)).answer


async def appended(folder: Path, *asked: messages.AppendFact) -> list[tuple[str, int]]:
    """Outcome and offset of each append."""
    answers = [await answer_to(folder, append) for append in asked]
    return [(entry.outcome, entry.offset) for answer in answers for entry in answer.outcomes]


async def refusal_of(folder: Path, asked: local_socket.AnyRequest) -> messages.ErrorBody:
    """Why the node there does not carry out a request."""
    answer = await answer_to(folder, asked)
    assert isinstance(answer, messages.ErrorAnswer), answer
    return answer.error


async def connected(folder: Path, limit: int = 1 << 16) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """A client of the node there, which has said nothing yet."""
    with socket_address(folder) as address:
        return await asyncio.open_unix_connection(address, limit=limit)


async def raw(folder: Path, payload: bytes) -> Any:
    """Send these bytes as a client might, and read the answer."""
    reader, writer = await connected(folder)
    writer.write(payload)
    (length,) = struct.unpack("<I", await reader.readexactly(4))
    answer, _ = decode_answer(await reader.readexactly(length), ANSWER_DECODERS)
    writer.close()
    return answer


def framed(payload: bytes) -> bytes:
    """With the length in front."""
    return struct.pack("<I", len(payload)) + payload


def worded(operation: str, more: bytes = b"") -> bytes:
    """A request in JSON."""
    return b'{"protocol":"bsfg.replication","version":"1.0","operation":"%s"%s}' % (operation.encode(), more)
