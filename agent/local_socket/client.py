"""Sends requests to the node that runs on a state folder, through its local socket: one request, one answer.

NodeSilent      no node answers there (the operator starts it)
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from agent.concurrency import timeout
from agent.errors import BsfgError
from agent.local_socket.messages import Answer, NodeStatus, ReadStatus, Refused, Request
from agent.local_socket.transport import (
    ANSWER_BYTES_MAX,
    LocalError,
    StateFolderUnusable,
    framed,
    read_length,
    socket_address,
)
from agent.message import MessageError, check_depth

ANSWER_S_MAX = 30.0
_ANSWER = msgspec.json.Decoder(Answer)
_AnswerT = TypeVar("_AnswerT", bound=Answer)


class NodeSilent(BsfgError):
    """No node answers on a state folder."""

    hint = "is it running? `bsfg run --config FILE`, or `systemctl status bsfg@ZONE`"


async def read_status(state_dir: Path, *, everything: bool = False) -> bytes:
    """The status of the node as JSON. Raises NodeSilent."""
    try:
        answer = accepted(await ask(state_dir, ReadStatus(everything)), NodeStatus)
    except (FileNotFoundError, ConnectionRefusedError) as error:
        raise NodeSilent(f"no node runs on {state_dir}") from error
    except (LocalError, StateFolderUnusable) as error:
        raise NodeSilent(f"no answer from the node on {state_dir}: {error}") from error
    return bytes(answer.status)


def ask_status(state_dir: Path, *, everything: bool = False) -> dict[str, Any]:
    """As `read_status`, for a program without an event loop."""
    found: dict[str, Any] = msgspec.json.decode(asyncio.run(read_status(state_dir, everything=everything)))
    return found


def accepted(answer: Answer, kind: type[_AnswerT]) -> _AnswerT:
    """The answer, which must be of this kind. Raises LocalError if the request was refused."""
    if isinstance(answer, Refused):
        raise LocalError(answer.message, answer.hint)
    assert isinstance(answer, kind), answer
    return answer


async def ask(state_dir: Path, request: Request, waits_ms: int = 0) -> Answer:
    """Ask the node that runs on this state folder. `waits_ms` is the time for which the request itself may wait for
    others (acks).

    Raises FileNotFoundError or ConnectionRefusedError when no node runs, StateFolderUnusable when the folder cannot be
    entered, and LocalError when the node ends before it answers or does not answer in time.
    """
    try:
        with socket_address(state_dir) as address:
            reader, writer = await asyncio.open_unix_connection(address, limit=ANSWER_BYTES_MAX)
    except (FileNotFoundError, ConnectionRefusedError):
        raise
    except OSError as error:
        raise StateFolderUnusable(f"{state_dir}: {error.strerror}") from error
    try:
        writer.write(framed(request))
        async with timeout(ANSWER_S_MAX + waits_ms / 1000):
            length = min(await read_length(reader), ANSWER_BYTES_MAX)
            payload = await reader.readexactly(length)
            check_depth("answer", payload)
            answer: Answer = _ANSWER.decode(payload)
            return answer
    except (asyncio.IncompleteReadError, ConnectionError, msgspec.MsgspecError, MessageError) as error:
        raise LocalError(
            "the node ended before it answered", "ask again; the same message_id is stored once"
        ) from error
    except TimeoutError as error:
        raise LocalError(f"the node did not answer in {ANSWER_S_MAX:.0f} s", "see `bsfg status` and its log") from error
    finally:
        writer.close()
