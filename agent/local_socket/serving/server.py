"""Serves the local socket of a running node: reads requests, passes them to the handler, writes the answers.

At most CONNECTIONS_MAX clients at once, of them LOOKERS_MAX of the group. When all connections are in use, a new client
replaces the client that has been idle, or has left its answer unread, the longest; a client whose request is being
carried out is kept.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import struct
from collections.abc import AsyncIterator, Callable, Container, Iterator
from pathlib import Path
from typing import Annotated

import msgspec

from agent.local_socket.messages import LOOKING_REQUESTS, REQUEST_DECODERS
from agent.local_socket.serving.handler import RequestHandler, user_name
from agent.local_socket.transport import (
    ANSWER_BYTES_MAX,
    REQUEST_BYTES_MAX,
    SOCKET,
    framed,
    read_length,
    socket_address,
)
from agent.replication.protocol.codec import answer_parts, decode_request
from agent.replication.protocol.errors import ERRORS, MalformedMessage
from agent.replication.protocol.messages import CHANGING, RequestBody

CONNECTIONS_MAX = 32
WAITING_MAX = 32
"""Clients that wait while all places are taken by requests under way; any more are disconnected."""
LOOKERS_MAX = 8
"""Clients of the group: they must leave places for the programs of the node's user, whose appends wait for one."""
_CREDENTIALS = struct.Struct("3i")  # of SO_PEERCRED: process, user, group


class _Asking(msgspec.Struct):
    instance: Annotated[str, msgspec.Meta(max_length=1024)] = ""


_ASKING = msgspec.json.Decoder(_Asking)


async def serve(handler: RequestHandler, state_dir: Path, on_open: Callable[[], None] = lambda: None) -> None:
    """Answer at the socket in `state_dir` until cancelled; `on_open` is called when clients can connect.

    A socket left by a killed node is replaced: the store's lock has already proven that no other process owns it.
    """
    places = _Places()
    open_connections: set[asyncio.StreamWriter] = set()
    lookers, looking = asyncio.Semaphore(LOOKERS_MAX), set[asyncio.StreamWriter]()

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        # It connected while the server was closing, or too many clients wait.
        if not server.is_serving() or len(open_connections) >= CONNECTIONS_MAX + WAITING_MAX:
            writer.transport.abort()
            return
        open_connections.add(writer)
        connection = os.urandom(8).hex()  # an instance of its own, if its requests name none
        writer.transport.set_write_buffer_limits(0)  # `drain` returns once the kernel has the whole answer
        try:
            is_own = _is_own(writer)
            if not is_own:
                if lookers.locked() and not places.end_idle(looking):
                    writer.transport.abort()
                    return
                looking.add(writer)
            # In this order: those that wait for a place count, and none holds a place while it waits for the others.
            async with contextlib.nullcontext() if is_own else lookers, places.take_place(writer):
                while await _answer_one(handler, reader, writer, places, connection, is_own=is_own):
                    pass
        except (asyncio.IncompleteReadError, ConnectionError):
            pass  # the client left
        finally:
            open_connections.discard(writer)
            looking.discard(writer)
            writer.close()

    with socket_address(state_dir) as address:
        (state_dir / SOCKET).unlink(missing_ok=True)
        server = await asyncio.start_unix_server(talk, address, limit=REQUEST_BYTES_MAX)
        (state_dir / SOCKET).chmod(0o660)  # the group may look; the folder decides whether it reaches the socket
    on_open()
    try:
        await asyncio.get_running_loop().create_future()  # until cancelled; it serves already
    finally:
        # Not by `async with server`: from Python 3.12 on that waits for clients, and a silent one stays forever.
        server.close()
        for writer in open_connections:
            writer.transport.abort()
        (state_dir / SOCKET).unlink(missing_ok=True)


class _Places:
    """The CONNECTIONS_MAX places for clients, and which of the clients are idle."""

    def __init__(self) -> None:
        self._free = asyncio.Semaphore(CONNECTIONS_MAX)
        self._idle: dict[asyncio.StreamWriter, None] = {}  # the oldest first

    @contextlib.asynccontextmanager
    async def take_place(self, writer: asyncio.StreamWriter) -> AsyncIterator[None]:
        """A place, taken from the client that was idle the longest if none is free."""
        if self._free.locked():
            self.end_idle(self._idle)
        async with self._free:
            self._idle[writer] = None
            try:
                yield
            finally:
                self._idle.pop(writer, None)

    def end_idle(self, clients: Container[asyncio.StreamWriter]) -> bool:
        """Disconnect the client that was idle the longest, of these; False if none is idle."""
        oldest = next((writer for writer in self._idle if writer in clients), None)
        if oldest is None:
            return False
        del self._idle[oldest]
        oldest.transport.abort()
        return True

    @contextlib.contextmanager
    def busy(self, writer: asyncio.StreamWriter) -> Iterator[None]:
        """The client's request is carried out; afterwards it is idle again."""
        self._idle.pop(writer, None)
        try:
            yield
        finally:
            self._idle[writer] = None


async def _answer_one(
    handler: RequestHandler,
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
    places: _Places,
    connection: str,
    *,
    is_own: bool,
) -> bool:
    """One request and its answer. False when the bytes that follow cannot be read as another request."""
    length = await read_length(reader)
    is_readable = length <= REQUEST_BYTES_MAX
    payload = await reader.readexactly(length) if is_readable else b""
    if not is_readable:
        why = f"request of {length} bytes, the limit is {REQUEST_BYTES_MAX}"
        reply = handler.refused("", "request_too_large", why, ERRORS["request_too_large"].hint)
    else:
        try:
            request = decode_request(payload, REQUEST_DECODERS, REQUEST_BYTES_MAX)
            # Most requests name none, and a message may be large: no further pass over it.
            instance = _ASKING.decode(payload).instance if b'"instance"' in payload else ""
        except (MalformedMessage, msgspec.MsgspecError) as error:
            code, operation = getattr(error, "code", "bad_request"), getattr(error, "operation", "")
            hint = "docs/developers/protocol.md has the requests, agent/local_socket/messages.py those of the socket"
            reply = handler.refused(operation, code, f"not a request: {error}", hint)
        else:
            if is_own or isinstance(request, LOOKING_REQUESTS) or _only_looks(request):
                with places.busy(writer):
                    reply = await handler.answer(request, instance or connection)
            else:
                user = user_name(os.geteuid())
                reply = handler.refused(
                    "",
                    "not_allowed_here",
                    "only the node's user and root may ask the node for this",
                    f"run: runuser -u {user} -- bsfg ...",
                )
    answer = b"".join(answer_parts(reply.answer, reply.batches, ANSWER_BYTES_MAX))
    writer.write(framed(answer))
    await writer.drain()  # a client that does not read is idle meanwhile, and loses its place to the next one
    return is_readable


def _only_looks(request: object) -> bool:
    """Whether a request of the protocol changes nothing here."""
    return isinstance(request, RequestBody) and type(request) not in CHANGING


def _is_own(writer: asyncio.StreamWriter) -> bool:
    """Whether the node's user or root has connected. The kernel says so; members of the group are the others. In the
    unit's user namespace they all have the number of `nobody`."""
    found = writer.get_extra_info("socket").getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    _, user, _ = _CREDENTIALS.unpack(found)
    return user in {0, os.geteuid()}
