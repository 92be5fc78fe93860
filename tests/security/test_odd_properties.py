"""Requests with MQTT properties that no client library would send, byte by byte, to a live node through a real broker:
thousands of user properties, response topics with wildcards, control characters or great length, missing, empty or huge
correlation data."""

from __future__ import annotations

import json
import ssl
import struct

import pytest

from tests.security.broker_attacker import Attacker, packet, text, varint
from tests.security.site import EVIL, IDMZ, STREAM, Site
from tests.waiting import wait_until

pytestmark = pytest.mark.system

REQUESTS = f"bsfg/1/{IDMZ}/{EVIL}/req"
ANSWERS = f"bsfg/1/{IDMZ}/{EVIL}/rsp/odd"
EXPIRY = b"\x02" + struct.pack(">I", 10)
CORRELATION = b"0123456789abcdef"
GOOD = json.dumps(
    {"protocol": "bsfg.replication", "version": "1.0", "operation": "GetBounds", "stream": STREAM}
).encode()


def data(identifier: int, content: bytes) -> bytes:
    """A property that has a length."""
    return bytes([identifier]) + struct.pack(">H", len(content)) + content


def reply_to(topic: str | bytes) -> bytes:
    """The property with the response topic."""
    return data(0x08, topic.encode() if isinstance(topic, str) else topic)


def correlation(content: bytes) -> bytes:
    """The property with the correlation data."""
    return data(0x09, content)


USER = b"\x26" + text("name") + text("value")
FULL = EXPIRY + reply_to(ANSWERS) + correlation(CORRELATION)
CASES: dict[str, bytes] = {
    "thousands of user properties": FULL + USER * 20_000,
    "user properties without names": FULL + (b"\x26" + text("") + text("")) * 800,
    "a user property of 64 kB": FULL + b"\x26" + text("n" * 65_535) + text("v" * 65_535),
    "a wildcard in the response topic": EXPIRY + reply_to(f"bsfg/1/{IDMZ}/{EVIL}/rsp/+") + correlation(CORRELATION),
    "all wildcards in the response topic": EXPIRY + reply_to("#") + correlation(CORRELATION),
    "NUL in the response topic": EXPIRY + reply_to(f"{ANSWERS}\0") + correlation(CORRELATION),
    "no UTF-8 in the response topic": EXPIRY + reply_to(b"\xff\xfe\xed\xa0\x80") + correlation(CORRELATION),
    "a response topic of 64 kB": EXPIRY + reply_to("a/" * 32_000) + correlation(CORRELATION),
    "an empty response topic": EXPIRY + reply_to("") + correlation(CORRELATION),
    "a line break in the response topic": EXPIRY + reply_to(f"{ANSWERS}\nx") + correlation(CORRELATION),
    "another zone's response topic": EXPIRY + reply_to(f"bsfg/1/{IDMZ}/plant-a/rsp/odd") + correlation(CORRELATION),
    "the serving zone's own requests": EXPIRY + reply_to(REQUESTS) + correlation(CORRELATION),
    "a system topic": EXPIRY + reply_to("$SYS/broker/log") + correlation(CORRELATION),
    "no correlation data": EXPIRY + reply_to(ANSWERS),
    "empty correlation data": EXPIRY + reply_to(ANSWERS) + correlation(b""),
    "correlation data of 64 kB": EXPIRY + reply_to(ANSWERS) + correlation(b"\0" * 65_535),
    "two response topics": FULL + reply_to("x"),
    "two expiries": FULL + EXPIRY,
    "a subscription identifier": FULL + b"\x0b\x01",
    "an unknown property": FULL + b"\x7f\x00",
    "an expiry of zero": b"\x02" + bytes(4) + reply_to(ANSWERS) + correlation(CORRELATION),
}


def session(site: Site) -> Attacker:
    """A session of evil."""
    broker = site.brokers[EVIL]
    own = broker.identity(EVIL)
    context = ssl.create_default_context(cafile=str(own.ca_file))
    context.load_cert_chain(own.cert_file, own.key_file)
    return Attacker(broker.host, broker.port, context)


def send(attacker: Attacker, properties: bytes) -> None:
    """A request with these properties, at QoS 0."""
    attacker.socket.sendall(packet(0x30, text(REQUESTS) + varint(len(properties)) + properties + GOOD))


def answered(attacker: Attacker) -> bool:
    """Whether a good request of this session is answered."""
    attacker.subscribe([ANSWERS])
    send(attacker, FULL)
    return CORRELATION in attacker.await_packet(0x30)


def connects(site: Site) -> dict[str, int]:
    """How often idmz has connected to each of its brokers, that of evil included."""
    return {one["name"]: one["connects_total"] for one in site.status(IDMZ)["brokers"]}


def test_no_property_disconnects_or_ends_a_node(site: Site) -> None:
    """Each request is dropped by the broker or by idmz, or answered to evil only. idmz keeps its connections, also that
    to the attacker's broker, and answers the next good request of evil."""
    before = connects(site)
    with site.unharmed():
        for case, properties in CASES.items():
            with session(site) as attacker:
                send(attacker, properties)
            with session(site) as honest:
                wait_until(lambda honest=honest: answered(honest), f"an answer after {case}", 20)  # type: ignore[misc]
            assert connects(site) == before, case
