"""A network between a source and its server, as a process of its own that a test controls: it flows, stalls, or breaks.

    python -m tests.foreign.proxy PORT

listens on loopback at a free port and passes everything on to PORT. Standard output says where: {"port": n}. Commands
are lines on standard input, each answered by a line: `flow`; `stall` (nothing passes, connections stand, new ones are
taken and wait); `cut` (connections are reset, new ones too); `slow 0.5` (it flows, and each direction takes so many
seconds); `lose 790 2` (it flows, and the connection is reset in place of the second answer of this type, a number of
namespace 0; only without encryption). Ends with standard input.
"""

from __future__ import annotations

import asyncio
import json
import socket
import struct
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

CHUNK_BYTES = 65_536


SIZE_BYTES, TYPE_BYTES = 8, 28  # of a chunk: up to its size, and up to the type of its message


class Types:
    """Reads the types of the messages in what a server sends, chunk by chunk."""

    def __init__(self) -> None:
        self._rest = b""  # of a chunk whose size or type is not known yet
        self._skip = 0  # bytes of a chunk that is known

    def read(self, data: bytes) -> list[int]:
        """The types that are known now, in order."""
        found, data = [], self._rest + data
        while True:
            data, self._skip = data[self._skip :], max(0, self._skip - len(data))
            if len(data) < (TYPE_BYTES if data[:3] == b"MSG" else SIZE_BYTES):
                self._rest = data
                return found
            if data[:3] == b"MSG":
                found.append(int.from_bytes(data[TYPE_BYTES - 2 : TYPE_BYTES], "little"))
            self._skip = int.from_bytes(data[4:SIZE_BYTES], "little")


class Network:
    """Passes on what comes, as long as it flows."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._flows = asyncio.Event()
        self._flows.set()
        self._is_cut = False
        self._delay_s = 0.0
        self._lost_type, self._lost_after = 0, 0  # of an answer, and how many of it come before
        self._writers: set[asyncio.StreamWriter] = set()

    def command(self, what: str) -> None:
        """Flow, flow slowly, stall, cut, or lose an answer from now on."""
        word, *numbers = what.split()
        self._delay_s = float(numbers[0]) if word == "slow" else 0.0
        self._is_cut = word == "cut"
        if word == "lose":
            self._lost_type, self._lost_after = int(numbers[0]), int(numbers[1]) - 1
        if word in ("flow", "slow", "lose"):
            self._flows.set()
        else:
            self._flows.clear()
        if self._is_cut:
            while self._writers:
                reset(self._writers.pop())

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection."""
        self._writers.add(writer)
        if self._is_cut:
            reset(writer)
            return
        try:
            there_reader, there = await asyncio.open_connection("127.0.0.1", self._port)
        except OSError:
            reset(writer)
            return
        if writer.is_closing():  # cut meanwhile
            reset(there)
            return
        self._writers.add(there)
        async with asyncio.TaskGroup() as group:
            group.create_task(self._pass_on(reader, there))
            group.create_task(self._pass_on(there_reader, writer, Types()))
        self._writers -= {writer, there}

    def _loses(self, types: list[int]) -> bool:
        """Whether one of these answers is the one to lose."""
        for number in types:
            if number == self._lost_type:
                if not self._lost_after:
                    self._lost_type = 0
                    return True
                self._lost_after -= 1
        return False

    async def _pass_on(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, types: Types | None = None
    ) -> None:
        try:
            while data := await reader.read(CHUNK_BYTES):
                await self._flows.wait()
                if types is not None and self._loses(types.read(data)):
                    reset(writer)
                    return
                if self._delay_s:  # the next is read meanwhile
                    asyncio.get_running_loop().call_later(self._delay_s, writer.write, data)
                    continue
                writer.write(data)
                await writer.drain()
            writer.close()
        except OSError:
            reset(writer)


def reset(writer: asyncio.StreamWriter) -> None:
    """End a connection without a word."""
    if writer.is_closing():
        return
    writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()


async def main(port: int) -> None:
    """Pass on to this port until standard input ends."""
    network = Network(port)
    server = await asyncio.start_server(network.serve, "127.0.0.1", 0)
    print(json.dumps({"port": server.sockets[0].getsockname()[1]}), flush=True)
    loop = asyncio.get_running_loop()
    while line := await loop.run_in_executor(None, sys.stdin.readline):
        network.command(line.strip())
        print(json.dumps({"ok": line.strip()}), flush=True)


class Proxy:
    """Such a process."""

    def __init__(self, process: asyncio.subprocess.Process, port: int) -> None:
        self._process, self.port = process, port

    async def command(self, what: str) -> None:
        """Flow, flow slowly, stall, cut, or lose an answer from now on."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(f"{what}\n".encode())
        await self._process.stdout.readline()


@asynccontextmanager
async def network(port: int) -> AsyncIterator[Proxy]:
    """A network to this port for the length of a block."""
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "tests.foreign.proxy", str(port), stdin=pipe, stdout=pipe
    )
    assert process.stdout is not None
    try:
        yield Proxy(process, int(json.loads(await process.stdout.readline())["port"]))
    finally:
        process.kill()
        await process.wait()


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1])))
