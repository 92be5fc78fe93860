"""A small Modbus device as a process, written from the specification: RTU or TCP framing, on a serial port, a socket or
TLS. Unit 1 holds register n = n; registers from 100 on are refused (exception 2). Unit 2 does not answer. Unit 3 is as
unit 1, but its first answer comes half a second late.

    python -m tests.ingest.modbus.rtu_device serial /dev/pts/7
    python -m tests.ingest.modbus.rtu_device rtu|tcp PORT
    python -m tests.ingest.modbus.rtu_device tls PORT CERT KEY [CLIENT_CA]
"""

from __future__ import annotations

import os
import socket
import ssl
import struct
import sys
import time
import tty
from collections.abc import Callable

LAST = 100
late = [0.5]


def crc(data: bytes) -> bytes:
    """Modbus over Serial Line V1.02, 6.2.2; low byte first."""
    value = 0xFFFF
    for byte in data:
        value ^= byte
        for _ in range(8):
            value = value >> 1 ^ 0xA001 if value & 1 else value >> 1
    return struct.pack("<H", value)


def answer(pdu: bytes) -> bytes:
    """The answer to a request for holding registers."""
    function, first, count = struct.unpack(">BHH", pdu[:5])
    if function != 3 or first + count > LAST:
        return bytes([function | 0x80, 2 if function == 3 else 1])
    return struct.pack(f">BB{count}H", function, 2 * count, *range(first, first + count))


def rtu_frame(request: bytes) -> bytes:
    """The frame that answers this one; nothing for others' units and wrong checksums."""
    unit, body = request[0], request[:-2]
    if unit not in (1, 3) or crc(body) != request[-2:]:
        return b""
    if unit == 3 and late:
        time.sleep(late.pop())  # tidy: the device is late
    sent = bytes([unit]) + answer(body[1:])
    return sent + crc(sent)


def tcp_frame(request: bytes) -> bytes:
    """The like with an MBAP header."""
    if request[6] != 1:
        return b""
    pdu = answer(request[7:])
    return request[:4] + struct.pack(">HB", len(pdu) + 1, 1) + pdu


def talk(receive: Callable[[int], bytes], send: Callable[[bytes], object], *, is_rtu: bool) -> None:
    """Answer until the other side hangs up. Each request for registers has a fixed size."""
    size, waiting = (8 if is_rtu else 12), b""
    while data := receive(256):
        waiting += data
        while len(waiting) >= size:
            request, waiting = waiting[:size], waiting[size:]
            send((rtu_frame if is_rtu else tcp_frame)(request))


def serve(how: str, port: int, files: list[str]) -> None:
    """One connection after the other."""
    context = None
    if how == "tls":
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(files[0], files[1])
        if files[2:]:
            context.load_verify_locations(files[2])
            context.verify_mode = ssl.CERT_REQUIRED
    with socket.create_server(("127.0.0.1", port)) as listening:
        print("ready", listening.getsockname()[1], flush=True)
        while True:
            accepted, _ = listening.accept()
            with accepted:
                try:
                    peer = accepted if context is None else context.wrap_socket(accepted, server_side=True)
                    with peer:
                        talk(peer.recv, peer.sendall, is_rtu=how == "rtu")
                except OSError:
                    continue  # a client that refuses our certificate, or hangs up


if __name__ == "__main__":
    mode, where, *more = sys.argv[1:]
    if mode == "serial":
        line = os.open(where, os.O_RDWR | os.O_NOCTTY)
        tty.setraw(line)
        print("ready 0", flush=True)
        talk(lambda size: os.read(line, size), lambda data: os.write(line, data), is_rtu=True)
    else:
        serve(mode, int(where), more)
