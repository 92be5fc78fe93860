"""A broker that has been taken over, byte by byte: it has the broker's certificate and follows a play instead of MQTT.

    python -m tests.security.broker_hostile CERT KEY PLAY

prints its port, serves one connection after the other, and repeats the play on each.
"""

import contextlib
import random
import socket
import ssl
import struct
import sys
from collections.abc import Callable, Iterator

from tests.security.broker_attacker import packet, text, varint

CHUNK = bytes(65_536)
ENDLESS = 1_000_000
UNSOLICITED = 300_000
SUBSCRIBE, PUBLISH_AT_QOS_1 = 0x82, 0x32


def connack(properties: bytes = b"") -> bytes:
    """Success, with these properties."""
    return packet(0x20, b"\x00\x00" + varint(len(properties)) + properties)


def publish(topic: str, payload: bytes, correlation: bytes = bytes(16), first: int = 0x30) -> bytes:
    """A message; an identifier follows the topic above QoS 0."""
    properties = b"\x09" + struct.pack(">H", len(correlation)) + correlation
    identifier = b"\x00\x01" if first & 0x06 else b""
    return packet(first, text(topic) + identifier + varint(len(properties)) + properties + payload)


class Client:
    """The node that has connected."""

    def __init__(self, channel: ssl.SSLSocket) -> None:
        self._channel = channel
        self._random = random.Random(1)

    def send(self, data: bytes) -> None:
        """Send bytes."""
        self._channel.sendall(data)

    def packets(self) -> Iterator[tuple[int, bytes]]:
        """The packets of the node, until it closes the connection."""
        while first := self._channel.recv(1):
            length = shift = 0
            while True:
                byte = self._exactly(1)[0]
                length |= (byte & 0x7F) << shift
                shift += 7
                if byte < 0x80:
                    break
            yield first[0], self._exactly(length)

    def subscription(self) -> None:
        """Acknowledge the node's SUBSCRIBE."""
        first, body = next(self.packets())
        assert first == SUBSCRIBE
        self.send(packet(0x90, body[:2] + b"\x00\x00"))

    def _exactly(self, count: int) -> bytes:
        data = b""
        while len(data) < count:
            more = self._channel.recv(count - len(data))
            if not more:
                raise ConnectionError("the node closed the connection")
            data += more
        return data


def _silent(properties: bytes) -> Callable[[Client], None]:
    """Accept with these properties, and answer nothing."""

    def play(client: Client) -> None:
        client.send(connack(properties))
        for _ in client.packets():
            pass

    return play


def _repeated(data: bytes) -> Callable[[Client], None]:
    """Accept, and send the same packet repeatedly without reading."""

    def play(client: Client) -> None:
        client.send(connack())
        for _ in range(ENDLESS):
            client.send(data)

    return play


def _oversize(client: Client) -> None:
    """Accept, and send a packet of 200 MB."""
    client.send(connack() + b"\x30" + varint(200_000_000) + text("t") + b"\x00")
    for _ in range(200_000_000 // len(CHUNK)):
        client.send(CHUNK)


def _unsolicited(client: Client) -> None:
    """Send answers that belong to no request, as fast as the node reads them; then answer the node's requests."""
    client.send(connack())
    client.subscription()
    block = publish("bsfg/1/plant-a/idmz/rsp/0/none", b"unsolicited") * 1000
    for _ in range(UNSOLICITED // 1000):
        client.send(block)
    for first, body in client.packets():
        if first == PUBLISH_AT_QOS_1:
            (length,) = struct.unpack_from(">H", body)
            correlation = body[body.index(b"\x09\x00\x10") + 3 :][:16]
            at = body.index(b"bsfg/1/plant-a/idmz/rsp/")  # the response topic, behind its length
            topic = body[at : at + body[at - 1]].decode()
            client.send(packet(0x40, body[2 + length : 4 + length] + b"\x00\x00"))
            client.send(publish(topic, b"wrong", bytes(16)) + publish(topic, b"right", correlation))
            client.send(publish(topic, b"again", correlation))


def _garbage(client: Client) -> None:
    """Accept, acknowledge subscriptions, then send packets of every kind with random contents."""
    chance = client._random
    client.send(connack(chance.choice([b"", b"\x21\x00\x01", chance.randbytes(5)])))
    for _ in range(50):
        kind = chance.randrange(1, 16) << 4 | chance.choice([0, 0, 0, 2, chance.randrange(16)])
        body = chance.randbytes(chance.choice([0, 1, 2, 4, 10, 100]))
        client.send(packet(kind, body))


PLAYS: dict[str, Callable[[Client], None]] = {
    "keep-alive 0": _silent(b"\x13\x00\x00"),
    "keep-alive 65535": _silent(b"\x13\xff\xff"),
    "a 200 MB packet": _oversize,
    "pings that are not read": _repeated(b"\xc0\x00" * 1000),
    "messages at QoS 1": _repeated(publish("t", b"x", first=PUBLISH_AT_QOS_1) * 1000),
    "unsolicited answers": _unsolicited,
    "garbage": _garbage,
}


def serve(cert_file: str, key_file: str, play: Callable[[Client], None]) -> None:
    """Serve one connection after the other, forever."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(cert_file, key_file)
    seed = 0
    with socket.create_server(("127.0.0.1", 0)) as listening:
        print(listening.getsockname()[1], flush=True)
        while True:
            plain, _ = listening.accept()
            with contextlib.suppress(OSError, StopIteration), context.wrap_socket(plain, server_side=True) as channel:
                client = Client(channel)
                client._random = random.Random(seed := seed + 1)
                next(client.packets())  # CONNECT
                play(client)


if __name__ == "__main__":
    serve(sys.argv[1], sys.argv[2], PLAYS[sys.argv[3]])
