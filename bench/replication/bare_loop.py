"""The bare loops that the product is compared with: the same input and output without the product.

    echo            answers a request of any size with as many bytes as it asks for: one MQTT round trip
    send_blobs      reads blobs from SQLite and publishes them as pages, keeping the receiver's cursor durably
    receive_blobs   asks for pages, one ahead, stores their blobs in a second SQLite, one FULL commit a page, confirms

They use what the product uses: paho, MQTT 5, the same broker with mutual TLS 1.3, TCP_NODELAY, SQLite in WAL mode with
synchronous=FULL. They check nothing and survive no fault. They use the fastest way: one loop in paho's
network thread, the next page requested before one is stored, a page published before the confirmation in its request is
stored.
"""

from __future__ import annotations

import queue
import socket
import sqlite3
import ssl
import struct
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import closing
from pathlib import Path
from typing import Any

from paho.mqtt.client import Client, MQTTMessage
from paho.mqtt.enums import CallbackAPIVersion, MQTTProtocolVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

from agent.replication.protocol.topics import request_topic, response_topic, subscription_to
from bench.common.testbed import BARE_SERVING, BrokerAccess
from bench.common.worker_io import Options, broker_access, emit, stop_event, usage

INSTANCE = "bare"
WAIT_S_MAX = 60.0
_SIZE = struct.Struct("<I")
_ASK = struct.Struct("<QQ")  # after which blob, up to which blob confirmed


class BareClient:
    """A paho client with a thread of its own, connected and subscribed when made by `connected`."""

    def __init__(self, broker: BrokerAccess, topic: str, on_message: Callable[[MQTTMessage], None]) -> None:
        self._topic = topic
        self._subscribed = threading.Event()
        self.client = Client(CallbackAPIVersion.VERSION2, protocol=MQTTProtocolVersion.MQTTv5)
        context = ssl.create_default_context(cafile=broker.ca_file)
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        context.load_cert_chain(broker.cert_file, broker.key_file)
        self.client.tls_set_context(context)
        self.client.on_socket_open = no_delay
        self.client.on_connect = lambda client, *_: client.subscribe(subscription_to(topic))
        self.client.on_subscribe = lambda *_: self._subscribed.set()
        self.client.on_message = lambda _client, _data, message: on_message(message)

    @classmethod
    def connected(cls, broker: BrokerAccess, topic: str, on_message: Callable[[MQTTMessage], None]) -> BareClient:
        """Connect as `broker` says and subscribe to `topic`."""
        made = cls(broker, topic, on_message)
        made.client.connect(broker.host, broker.port)
        made.client.loop_start()
        if not made._subscribed.wait(WAIT_S_MAX):
            raise TimeoutError(f"no subscription to {topic}")
        return made

    def close(self) -> None:
        """Disconnect and end the thread."""
        self.client.disconnect()
        self.client.loop_stop()


class BareRequester:
    """One end of bare round trips: asks, and waits for the answer."""

    def __init__(self, broker: BrokerAccess) -> None:
        self._answers: queue.SimpleQueue[bytes] = queue.SimpleQueue()
        self._topic = request_topic(BARE_SERVING, broker.zone)
        back = response_topic(BARE_SERVING, broker.zone, INSTANCE)
        self._properties = _asking(back)
        self._client = BareClient.connected(broker, back, lambda message: self._answers.put(bytes(message.payload)))

    def round_trip_ns(self, request_bytes: int, answer_bytes: int) -> int:
        """The time from a request of so many bytes to its answer of so many bytes."""
        payload = _SIZE.pack(answer_bytes) + bytes(max(0, request_bytes - _SIZE.size))
        start_ns = time.perf_counter_ns()
        self._client.client.publish(self._topic, payload, properties=self._properties)
        answer = self._answers.get(timeout=WAIT_S_MAX)
        duration_ns = time.perf_counter_ns() - start_ns
        assert len(answer) == answer_bytes, (len(answer), answer_bytes)
        return duration_ns

    def close(self) -> None:
        """Disconnect."""
        self._client.close()


class BlobSender:
    """The sending end of the bare replication; `done` is set once the last blob is confirmed."""

    def __init__(self, broker: BrokerAccess, asking: str, file: Path, bytes_max: int) -> None:
        self.done = threading.Event()
        self.confirmed_ns = 0
        self.pages = 0
        self._database = open_blobs(file)
        self._bytes_max = bytes_max
        self._frontier = 0
        self._last: int = self._database.execute("SELECT max(id) FROM blob").fetchone()[0]
        self._client = BareClient.connected(broker, request_topic(broker.zone, asking), self._asked)

    def _asked(self, message: MQTTMessage) -> None:
        after, confirmed = _ASK.unpack(message.payload)
        if after < self._last:
            blobs = self._page(after)
            self.pages += 1
            head = struct.pack(f"<I{len(blobs)}I", len(blobs), *map(len, blobs))
            properties: Any = message.properties
            self._client.client.publish(properties.ResponseTopic, b"".join((head, *blobs)))
        if confirmed > self._frontier:
            self._frontier = confirmed
            self._database.execute("UPDATE cursor SET frontier = ?", (confirmed,))
            if confirmed == self._last:
                self.confirmed_ns = time.monotonic_ns()
                self.done.set()

    def _page(self, after: int) -> list[bytes]:
        blobs: list[bytes] = []
        size = 0
        for (blob,) in self._database.execute("SELECT body FROM blob WHERE id > ? ORDER BY id", (after,)):
            size += len(blob)
            if blobs and size > self._bytes_max:
                break
            blobs.append(blob)
        return blobs

    def close(self) -> None:
        """Disconnect and close the file."""
        self._client.close()
        self._database.close()


class BlobReceiver:
    """The receiving end of the bare replication: asks for the next page, then stores the one that came.

    One loop in paho's thread; with `storing_apart` the pages are stored in a thread of their own.
    """

    def __init__(self, broker: BrokerAccess, file: Path, blobs: int, *, storing_apart: bool) -> None:
        self.started_ns = 0
        self._blobs = blobs
        self._storing_apart = storing_apart
        self._asked_for = 0
        self._stored = 0
        self._pages: queue.Queue[list[bytes] | None] = queue.Queue(maxsize=1)
        self._database = open_blobs(file)
        self._topic = request_topic(BARE_SERVING, broker.zone)
        back = response_topic(BARE_SERVING, broker.zone, INSTANCE)
        self._properties = _asking(back)
        self._storing = threading.Thread(target=self._store_apart, name="store", daemon=True)
        self._client = BareClient.connected(broker, back, self._page_arrived)

    def start(self) -> None:
        """Ask for the first page."""
        self._storing.start()
        self.started_ns = time.monotonic_ns()
        self._ask()

    def _ask(self) -> None:
        self._client.client.publish(self._topic, _ASK.pack(self._asked_for, self._stored), properties=self._properties)

    def _page_arrived(self, message: MQTTMessage) -> None:
        payload = bytes(message.payload)
        (count,) = _SIZE.unpack_from(payload)
        lengths = struct.unpack_from(f"<{count}I", payload, _SIZE.size)
        self._asked_for += count
        if self._asked_for < self._blobs:
            self._ask()
        blobs, at = [], _SIZE.size * (1 + count)
        for length in lengths:
            blobs.append(payload[at : at + length])
            at += length
        if self._storing_apart:
            self._pages.put(blobs)
        else:
            self._store(blobs)

    def _store_apart(self) -> None:
        while (blobs := self._pages.get()) is not None:
            self._store(blobs)

    def _store(self, blobs: list[bytes]) -> None:
        insert_blobs(self._database, self._stored, blobs)
        self._stored += len(blobs)
        if self._stored == self._blobs:
            self._ask()  # no page left to ask for: this request only confirms

    def close(self) -> None:
        """Disconnect, end the thread, close the file."""
        self._client.close()
        self._pages.put(None)
        self._storing.join(WAIT_S_MAX)
        self._database.close()


def open_blobs(file: Path) -> sqlite3.Connection:
    """A file of numbered blobs and one cursor, created if it does not exist, as durable as the product's."""
    database = sqlite3.connect(file, isolation_level=None, check_same_thread=False)
    database.execute("PRAGMA journal_mode = WAL")
    database.execute("PRAGMA synchronous = FULL")
    database.execute("CREATE TABLE IF NOT EXISTS blob (id INTEGER PRIMARY KEY, body BLOB NOT NULL)")
    database.execute("CREATE TABLE IF NOT EXISTS cursor (frontier INTEGER NOT NULL)")
    if not database.execute("SELECT count(*) FROM cursor").fetchone()[0]:
        database.execute("INSERT INTO cursor VALUES (0)")
    database.execute("UPDATE cursor SET frontier = 0")
    return database


def insert_blobs(database: sqlite3.Connection, after: int, blobs: Iterable[bytes]) -> None:
    """Add blobs, numbered from `after + 1`, in one transaction that is on disk when this returns."""
    database.execute("BEGIN IMMEDIATE")
    database.executemany("INSERT INTO blob VALUES (?, ?)", enumerate(blobs, after + 1))
    database.execute("COMMIT")


def _asking(back: str) -> Properties:
    properties = Properties(PacketTypes.PUBLISH)  # type: ignore[no-untyped-call]
    properties.ResponseTopic = back
    return properties


def no_delay(_client: Client, _data: Any, opened: Any) -> None:
    """Send at once, as the product does: for paho's `on_socket_open`."""
    opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)


# ------------------------------------------------------------------------------------ roles of bench.worker


def echo(options: Options) -> None:
    """Answer round trips until stopped."""
    stopped, broker = stop_event(), broker_access(options)

    def answer(message: MQTTMessage) -> None:
        properties: Any = message.properties
        client.client.publish(properties.ResponseTopic, bytes(_SIZE.unpack_from(message.payload)[0]))

    with closing(BareClient.connected(broker, request_topic(broker.zone, options["asking"]), answer)) as client:
        emit("READY")
        stopped.wait()


def send_blobs(options: Options) -> None:
    """The sending side of the bare replication; RESULT once the last blob is confirmed."""
    stopped = stop_event()
    broker = broker_access(options)
    with closing(BlobSender(broker, options["asking"], Path(options["file"]), options["bytes_max"])) as sender:
        since_ns = time.process_time_ns()
        emit("READY")
        while not sender.done.wait(0.1):
            if stopped.is_set():
                return
        emit(
            "RESULT",
            {"confirmed_ns": sender.confirmed_ns, "pages": sender.pages, **usage(since_ns, broker.port)},
        )
        stopped.wait()


def receive_blobs(options: Options) -> None:
    """The receiving side of the bare replication; ENDED when stopped."""
    stopped = stop_event()
    broker = broker_access(options)
    file, storing_apart = Path(options["file"]), options["storing_apart"]
    with closing(BlobReceiver(broker, file, options["blobs"], storing_apart=storing_apart)) as receiver:
        emit("READY")
        since_ns = time.process_time_ns()
        receiver.start()
        stopped.wait()
        emit("ENDED", {"started_ns": receiver.started_ns, **usage(since_ns, broker.port)})
