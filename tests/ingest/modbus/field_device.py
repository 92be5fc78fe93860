"""A Modbus device with the faults that engineers report, as a process of its own. Register a holds a.

    python -m tests.ingest.modbus.field_device MODE [PORT or the open end of a line] [CERT KEY CLIENT_CA]

tcp, tls, rtu, serial Modbus TCP, also with TLS, RTU over TCP, RTU on a serial port; with options behind a comma:
  late=S:N            each Nth answer is S seconds late
  lead, ff            a 0x00 or 0xFF before each answer
  echo, echo_bytes    our request comes back, whole or byte by byte
  foreign             a frame of another unit stands glued before each answer
  idle=S              the device closes a connection that is idle for so long
  once                it closes a connection after each answer
  forgets=S           a connection that is idle for so long is dead, and nobody says so
  dead=U:S            unit U never answers and holds the line for S seconds; requests of all connections queue
  first               later connections are accepted and closed
"""

from __future__ import annotations

import contextlib
import os
import socket
import ssl
import struct
import sys
import threading
import time
from collections.abc import Callable

MODE, _, GIVEN = sys.argv[1].partition(",")
OPTIONS = dict(option.partition("=")[::2] for option in GIVEN.split(",") if option)
LINE, COUNT, FIRST = threading.Lock(), [0], threading.Semaphore(1)
IS_RTU = MODE in ("rtu", "serial")


def crc(data: bytes) -> bytes:
    """Modbus over Serial Line V1.02, 6.2.2; low byte first."""
    value = 0xFFFF
    for byte in data:
        value ^= byte
        for _ in range(8):
            value = value >> 1 ^ 0xA001 if value & 1 else value >> 1
    return struct.pack("<H", value)


def numbers(name: str) -> tuple[float, float]:
    """The two numbers of an option; 0 without it."""
    first, _, second = OPTIONS.get(name, "").partition(":")
    return float(first or 0), float(second or 0)


def delay_s() -> float:
    """How late this answer is."""
    COUNT[0] += 1
    late_s, each = numbers("late")
    return late_s if late_s and COUNT[0] % each == 0 else 0.0


def answer(request: bytes) -> bytes:
    """The bytes that answer a request, with what the line adds."""
    body = request if IS_RTU else request[6:]
    unit, function, address, count = struct.unpack_from(">BBHH", body)
    dead, hold_s = numbers("dead")
    if dead:
        with LINE:
            time.sleep(hold_s if unit == dead else 0.02)  # tidy: the serial side is slow
        if unit == dead:
            return b""
    time.sleep(delay_s())  # tidy: the device is late
    sent = struct.pack(f">BBB{count}H", unit, function, 2 * count, *range(address, address + count))
    if address + count > 1_000:
        sent = bytes([unit, function | 0x80, 2])
    if not IS_RTU:
        return request[:4] + struct.pack(">H", len(sent)) + sent
    other = bytes([unit + 1]) + sent[1:]
    lead = b"\0" * ("lead" in OPTIONS) + b"\xff" * ("ff" in OPTIONS) + (other + crc(other)) * ("foreign" in OPTIONS)
    return request * ("echo" in OPTIONS) + lead + sent + crc(sent)


def talk(receive: Callable[[int], bytes], send: Callable[[bytes], object]) -> None:
    """Answer until the other side hangs up. Each request has a fixed size."""
    size, waiting, asked_s = (8 if IS_RTU else 12), b"", time.monotonic()
    forgets_s = numbers("forgets")[0]
    while data := receive(256):
        if forgets_s and time.monotonic() - asked_s > forgets_s:
            continue
        asked_s = time.monotonic()
        waiting += data
        while len(waiting) >= size:
            request, waiting = waiting[:size], waiting[size:]
            if "echo_bytes" in OPTIONS:
                for byte in request:
                    send(bytes([byte]))
                    time.sleep(0.001)  # tidy: a slow line
            if sent := answer(request):
                send(sent)
            if "once" in OPTIONS:
                return


def secured(peer: socket.socket) -> socket.socket:
    """The connection with TLS, in which the client shows a certificate of the authority."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(sys.argv[3], sys.argv[4])
    if sys.argv[5:]:
        context.load_verify_locations(sys.argv[5])
        context.verify_mode = ssl.CERT_REQUIRED
    return context.wrap_socket(peer, server_side=True)


def serve(accepted: socket.socket) -> None:
    """One connection."""
    is_first = FIRST.acquire(blocking=False)
    with contextlib.suppress(OSError), secured(accepted) if MODE == "tls" else accepted as peer:
        peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if is_first or "first" not in OPTIONS:
            peer.settimeout(numbers("idle")[0] or None)
            talk(peer.recv, peer.sendall)  # until it hung up, refused our certificate, or was idle for too long
    if is_first:
        FIRST.release()


def main(where: str) -> None:
    """Answer on a serial port or a socket, for ever."""
    if MODE == "serial":
        line = int(where)
        print("ready 0", flush=True)
        talk(lambda size: os.read(line, size), lambda data: os.write(line, data))
        return
    with socket.create_server(("127.0.0.1", int(where)), backlog=32) as listening:
        print("ready", listening.getsockname()[1], flush=True)
        while True:
            peer, _ = listening.accept()
            threading.Thread(target=serve, args=(peer,), daemon=True).start()


if __name__ == "__main__":
    main(sys.argv[2] if sys.argv[2:] else "0")
