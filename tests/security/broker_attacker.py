"""A hostile client of the broker, byte by byte: MQTT 5 over a plain TLS socket, without any code of the product.

It can do what a library refuses to do: stop reading, subscribe a hundred thousand times, keep a session forever, or
open a socket and remain silent.
"""

import socket
import ssl
import struct
from types import TracebackType
from typing import Self

LIMIT_S = 20.0
KEEPALIVE_S = 120  # the most that the broker allows; with 0, Mosquitto 2.0.21 ends sessions at random moments
CONNACK, PUBACK, SUBACK, PINGRESP = 0x20, 0x40, 0x90, 0xD0


def varint(value: int) -> bytes:
    """A length as MQTT writes it (MQTT 5.0, 1.5.5)."""
    encoded = bytearray()
    while True:
        value, low = value >> 7, value & 0x7F
        encoded.append(low | (0x80 if value else 0))
        if not value:
            return bytes(encoded)


def packet(first: int, body: bytes) -> bytes:
    """One control packet."""
    return bytes([first]) + varint(len(body)) + body


def text(value: str) -> bytes:
    """A string with its length."""
    encoded = value.encode()
    return struct.pack(">H", len(encoded)) + encoded


def bare_socket(host: str, port: int, source: str = "") -> socket.socket:
    """A TCP connection that sends nothing: no certificate, no TLS."""
    return socket.create_connection((host, port), LIMIT_S, source_address=(source, 0) if source else None)


def is_open(bare: socket.socket, wait_s: float = 0.05) -> bool:
    """Whether the other side has kept open a socket that sends nothing."""
    bare.settimeout(wait_s)
    try:
        return bare.recv(1) != b""
    except TimeoutError:
        return True
    except OSError:
        return False


class Attacker:
    """One MQTT 5 session with a zone's certificate. It reads nothing except what a method awaits."""

    def __init__(
        self,
        host: str,
        port: int,
        context: ssl.SSLContext,
        *,
        client_id: str = "",
        expiry_s: int = 0,
        is_deaf: bool = False,
        source: str = "",
    ) -> None:
        plain = bare_socket(host, port, source)
        # A small buffer: what a session does not read waits at the broker and not in our kernel.
        if is_deaf:
            plain.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        try:
            self.socket = context.wrap_socket(plain, server_hostname=host)
        except OSError:
            plain.close()
            raise
        self.suback = b""
        """The last one's body, which ends with a reason for each filter."""
        self._identifier = 0
        try:
            self._begin_session(client_id, expiry_s)
        except (OSError, AssertionError):
            self.socket.close()
            raise

    def _begin_session(self, client_id: str, expiry_s: int) -> None:
        properties = b"\x11" + struct.pack(">I", expiry_s)
        body = text("MQTT") + b"\x05\x02" + struct.pack(">H", KEEPALIVE_S) + varint(len(properties)) + properties
        self.socket.sendall(packet(0x10, body + text(client_id)))
        connack = self.await_packet(CONNACK)
        assert connack[1] == 0, f"refused with reason {connack[1]:#x}"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close without DISCONNECT."""
        self.socket.close()

    def send_subscribe(self, topics: list[str], qos: int = 0) -> None:
        """Send one SUBSCRIBE with all these topics."""
        options = bytes([qos])
        filters = b"".join(text(topic) + options for topic in topics)
        self.socket.sendall(packet(0x82, self._next_identifier() + b"\x00" + filters))

    def subscribe(self, topics: list[str], qos: int = 0) -> None:
        """Subscribe and await the acknowledgement."""
        self.send_subscribe(topics, qos)
        self.suback = self.await_packet(SUBACK)

    def publish(self, topic: str, payload: bytes, qos: int = 0) -> None:
        """Send a message; its acknowledgement is not read."""
        identifier = self._next_identifier() if qos else b""
        self.socket.sendall(packet(0x30 | qos << 1, text(topic) + identifier + b"\x00" + payload))

    def ping(self) -> None:
        """Send PINGREQ; the answer is not read."""
        self.socket.sendall(b"\xc0\x00")

    def _next_identifier(self) -> bytes:
        self._identifier = self._identifier % 65_535 + 1
        return struct.pack(">H", self._identifier)

    def await_packet(self, first: int) -> bytes:
        """Read packets until one of this kind arrives, and return its body."""
        while True:
            kind = self._read(1)[0]
            length = shift = 0
            while True:
                byte = self._read(1)[0]
                length |= (byte & 0x7F) << shift
                shift += 7
                if byte < 0x80:
                    break
            body = self._read(length)
            if kind & 0xF0 == first:
                return body

    def _read(self, count: int) -> bytes:
        data = b""
        while len(data) < count:
            more = self.socket.recv(count - len(data))
            if not more:
                raise ConnectionError("the broker closed the connection")
            data += more
        return data
