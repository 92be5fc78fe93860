"""Sends requests to the node that runs on a state folder, through its local socket: one request, one answer."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import NamedTuple, TypeVar

import msgspec

from agent.concurrency import timeout
from agent.escaping import printable_lines
from agent.local_socket.messages import ANSWER_DECODERS, Request
from agent.local_socket.transport import (
    ANSWER_BYTES_MAX,
    REQUEST_BYTES_MAX,
    LocalError,
    StateFolderUnusable,
    framed,
    read_length,
    socket_address,
)
from agent.replication.protocol import messages as protocol
from agent.replication.protocol.codec import decode_answer, encode_request
from agent.replication.protocol.errors import MalformedMessage
from agent.replication.protocol.messages import ErrorAnswer

ANSWER_S_MAX = 30.0
KEPT_MAX = 4
"""Idle connections that a client keeps, of the node's 32 places for all."""
Connection = tuple[asyncio.StreamReader, asyncio.StreamWriter]
Kept = list[Connection]
AnyRequest = Request | protocol.Request
_AnswerT = TypeVar("_AnswerT", bound=msgspec.Struct)


class _Ended(LocalError):
    """The connection ended before an answer."""


class LocalReply(NamedTuple):
    """An answer and what is attached to it."""

    answer: msgspec.Struct
    batches: list[bytes]


def accepted(reply: LocalReply, kind: type[_AnswerT]) -> _AnswerT:
    """The answer, which must be of this kind. Raises LocalError if the request was refused."""
    if isinstance(reply.answer, ErrorAnswer):
        error = reply.answer.error
        raise LocalError(error.message, error.hint, error.code)
    if not isinstance(reply.answer, kind):
        raise LocalError(f"the node answered with {type(reply.answer).__name__}")
    return reply.answer


async def ask(
    state_dir: Path, request: AnyRequest, waits_ms: int = 0, instance: str = "", kept: Kept | None = None
) -> LocalReply:
    """Ask the node that runs on this state folder. `waits_ms` is the time for which the request itself may wait for
    others (facts, acks); `instance` the one that holds the leases. A connection of `kept` is used if one is idle, and
    kept there afterwards; otherwise it serves one request.

    Raises FileNotFoundError or ConnectionRefusedError when no node runs, StateFolderUnusable when the folder cannot be
    entered, MalformedMessage for a request that is too large, and LocalError when the node ends before it answers or
    does not answer in time.
    """
    payload = encode_request(request, REQUEST_BYTES_MAX)
    if instance:
        payload = payload[:-1] + b',"instance":' + msgspec.json.encode(instance) + b"}"
    wait_s = ANSWER_S_MAX + waits_ms / 1000
    while kept:
        try:
            return await _exchanged(kept.pop(), payload, wait_s, kept)
        except _Ended:  # the node was restarted or gave the place away while it was idle; every request may be repeated
            continue
    try:
        with socket_address(state_dir) as address:
            connection = await asyncio.open_unix_connection(address, limit=ANSWER_BYTES_MAX)
    except (FileNotFoundError, ConnectionRefusedError):
        raise
    except OSError as error:
        raise StateFolderUnusable(f"{state_dir}: {error.strerror}") from error
    return await _exchanged(connection, payload, wait_s, kept)


async def _exchanged(connection: Connection, payload: bytes, wait_s: float, kept: Kept | None) -> LocalReply:
    """The answer to a request. The connection is then kept, or closed."""
    reader, writer = connection
    try:
        writer.write(framed(payload))
        async with timeout(wait_s):
            length = min(await read_length(reader), ANSWER_BYTES_MAX)
            answer = await reader.readexactly(length)
        reply = LocalReply(*decode_answer(answer, ANSWER_DECODERS, ANSWER_BYTES_MAX, printable_lines))
        if kept is not None and len(kept) < KEPT_MAX:
            kept.append(connection)
        return reply
    except MalformedMessage as error:
        raise LocalError(
            f"the node's answer cannot be read: {error}", "update the older of the two programs"
        ) from error
    except (asyncio.IncompleteReadError, ConnectionError) as error:
        raise _Ended("the node ended before it answered", "ask again; the same message_id is stored once") from error
    except TimeoutError as error:
        raise LocalError(f"the node did not answer in {wait_s:.0f} s", "see `bsfg status` and its log") from error
    finally:
        if kept is None or connection not in kept:
            writer.close()
