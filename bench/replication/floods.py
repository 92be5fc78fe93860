"""The attacks of the hostile zone in `bench hostile`: floods of requests, parked fetches, artifacts, subscriptions,
sessions that do not read, bare sockets, and visitors of the page, each from a process of lowest priority, because in
the field the attacker's processor is not the node's.

It has a valid certificate and keeps to the topics that the broker gives it. Each flood is as fast as the answers;
requests that are refused or dropped are sent again.

requests   128 GetLatest open at once in four sessions
ranges     the same with FetchRange for the largest pages
parked     the same with fetches that wait a minute
artifacts  the same with PutObject, each a new artifact
silent     thirty sessions that request large pages and read nothing
sockets    a hundred connections without a certificate
page       a thousand visitors of the node's page: half a request, no reading, a wrong host, HTML in names
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import secrets
import socket
import struct
import threading
from collections import Counter
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from paho.mqtt.client import MQTTMessage
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

from agent.replication.protocol.topics import request_topic, response_topic
from bench.common.testbed import SERVING, BrokerAccess
from bench.common.worker_io import Options, broker_access, emit, stop_event
from bench.replication.bare_loop import BareClient

SESSIONS, OPEN = 4, 32
SILENT_SESSIONS, SILENT_INTERVAL_S = 30, 0.02
SOCKETS, FILTERS = 100, 300
VISITORS = 1000
VISITS = (
    b"GET / HT",  # never ends
    b"GET /live?page=/ HTTP/1.1\r\nHost: localhost\r\n\r\n",  # never reads
    b"GET / HTTP/1.1\r\nHost: evil.example\r\n\r\n",
    b"GET /tags?q=%3Cscript%3E HTTP/1.1\r\nHost: localhost\r\n\r\n",
    b"GET /zone/%3Cscript%3E HTTP/1.1\r\nHost: localhost\r\n\r\n",
)
CHUNK_BYTES = 45_000
RETRY_S = 0.05
LOWEST_PRIORITY = 19
COMMON = {"protocol": "bsfg.replication", "version": "1.0"}

MakeRequest = Callable[[int], Mapping[str, Any]]


class Session:
    """A session of the hostile zone with a response topic of its own."""

    def __init__(self, broker: BrokerAccess, on_message: Callable[[MQTTMessage], None]) -> None:
        self._broker, self._back = broker, response_topic(SERVING, broker.zone, secrets.token_hex(8))
        self.bare = BareClient.connected(broker, self._back, on_message)

    def send(self, request: Mapping[str, Any]) -> None:
        """Send a request at QoS 0: no acknowledgement paces the flood."""
        properties = Properties(PacketTypes.PUBLISH)  # type: ignore[no-untyped-call]
        properties.ResponseTopic = self._back
        properties.CorrelationData = secrets.token_bytes(16)
        properties.MessageExpiryInterval = 10
        topic = request_topic(SERVING, self._broker.zone)
        self.bare.client.publish(topic, json.dumps({**COMMON, **request}), properties=properties)


def flood(options: Options) -> None:
    """Flood until stopped; ENDED has the counts."""
    os.nice(LOWEST_PRIORITY)
    counts, stopped = Counter[str](), stop_event()
    broker, stream = broker_access(options), options["stream"]
    floods: dict[str, Callable[[], None]] = {
        "requests": partial(_requests, broker, counts, stopped, partial(_latest, stream)),
        "ranges": partial(_requests, broker, counts, stopped, partial(_range, stream)),
        "parked": partial(_requests, broker, counts, stopped, partial(_parked, stream)),
        "artifacts": partial(_requests, broker, counts, stopped, _artifact),
        "subscriptions": partial(_subscriptions, broker, counts, stopped),
        "silent": partial(_silent, broker, counts, stopped, stream),
        "sockets": partial(_sockets, broker, counts, stopped),
        "page": partial(_visitors, options["page_port"], counts, stopped),
    }
    floods[options["kind"]]()
    emit("ENDED", counts)


def _latest(stream: str, _number: int) -> Mapping[str, Any]:
    return {"operation": "GetLatest", "stream": stream}


def _range(stream: str, number: int) -> Mapping[str, Any]:
    """As much as one answer takes, from the beginning."""
    asked = {"consumer_name": f"hostile.{number % OPEN}", "trail": [], "limit": 1_000_000, "bytes_max": 8_388_608}
    return {"operation": "FetchFacts", "stream": stream, **asked}


def _parked(stream: str, number: int) -> Mapping[str, Any]:
    name = f"hostile.{number % (SESSIONS * OPEN)}"
    asked = {"consumer_name": name, "stream": stream, "limit": 1, "wait_ms": 60_000, "start": "end"}
    return {"operation": "FetchFacts", **asked}


def _artifact(number: int) -> Mapping[str, Any]:
    content = number.to_bytes(8) + os.urandom(CHUNK_BYTES - 8)
    digest = f"sha256:{hashlib.sha256(content).hexdigest()}"
    data = base64.b64encode(content).decode()
    return {"operation": "PutObject", "digest": digest, "size": len(content), "offset": 0, "data": data}


def _requests(broker: BrokerAccess, counts: Counter[str], stopped: threading.Event, make_request: MakeRequest) -> None:
    """OPEN requests at once in each of SESSIONS; each answer triggers the next. A request without an answer for RETRY_S
    is sent again."""
    lock, sessions = threading.Lock(), list[Session]()

    def next_of(index: int, message: MQTTMessage | None = None) -> None:
        if stopped.is_set():
            return
        with lock:
            counts["sent"] += 1
            number = counts["sent"]
            if message is not None:
                counts[_outcome(bytes(message.payload))] += 1
        sessions[index].send(make_request(number))

    for index in range(SESSIONS):
        sessions.append(Session(broker, partial(next_of, index)))
        for _ in range(OPEN):
            next_of(index)
    emit("READY")
    before = -1
    while not stopped.wait(RETRY_S):
        if counts["sent"] == before:  # everything open was dropped, or is parked
            for index in range(SESSIONS):
                next_of(index)
        before = counts["sent"]
    for session in sessions:
        session.bare.close()


def _outcome(answer: bytes) -> str:
    (length,) = struct.unpack_from("<I", answer)
    header = json.loads(answer[4 : 4 + length])
    return str(header["error"]["code"]) if "error" in header else "ok"


def _silent(broker: BrokerAccess, counts: Counter[str], stopped: threading.Event, stream: str) -> None:
    """Sessions that ask for large pages and never read an answer."""
    sessions = list[Session]()
    for _ in range(SILENT_SESSIONS):
        try:
            sessions.append(Session(broker, lambda _: None))
        except (OSError, TimeoutError):
            counts["refused"] += 1
            continue
        sessions[-1].bare.client.loop_stop()
    counts["sessions"] = len(sessions)
    emit("READY")
    while not stopped.wait(SILENT_INTERVAL_S):
        for session in sessions:
            session.send(_range(stream, 0))
            counts["sent"] += 1


def _subscriptions(broker: BrokerAccess, counts: Counter[str], stopped: threading.Event) -> None:
    """Sessions that ask for hundreds of subscriptions at once that their zone may not have."""
    sessions = [Session(broker, lambda _: None) for _ in range(SESSIONS)]
    wanted = [(f"{'x/' * 60}{number}", 0) for number in range(FILTERS)]
    refused = threading.Semaphore(0)
    for session in sessions:
        session.bare.client.on_subscribe = lambda *_: refused.release()
        session.bare.client.subscribe(wanted)
    emit("READY")
    while not stopped.wait(0):
        if refused.acquire(timeout=RETRY_S):
            counts["packets"] += 1
            sessions[counts["packets"] % SESSIONS].bare.client.subscribe(wanted)
    for session in sessions:
        session.bare.close()


def _sockets(broker: BrokerAccess, counts: Counter[str], stopped: threading.Event) -> None:
    """Connections that send nothing, opened again when they are closed."""
    opened = list[socket.socket]()
    emit("READY")
    while not stopped.wait(RETRY_S):
        alive = [connection for connection in opened if _is_open(connection)]
        counts["closed"] += len(opened) - len(alive)
        opened = alive
        while len(opened) < SOCKETS and not stopped.is_set():
            try:
                opened.append(socket.create_connection((broker.host, broker.port), 1.0))
            except OSError:
                counts["refused"] += 1
                break
            counts["connected"] += 1


def _visitors(port: int, counts: Counter[str], stopped: threading.Event) -> None:
    """VISITORS connections to the page, each with a request of its own, which reads nothing; opened again when they
    are closed."""
    opened = list[socket.socket]()
    emit("READY")
    while not stopped.wait(RETRY_S):
        gone = [connection for connection in opened if not _is_open(connection)]
        for connection in gone:
            connection.close()
        counts["closed"] += len(gone)
        opened = [connection for connection in opened if connection.fileno() >= 0]
        while len(opened) < VISITORS and not stopped.is_set():
            try:
                opened.append(socket.create_connection(("127.0.0.1", port), 1.0))
                opened[-1].sendall(VISITS[counts["connected"] % len(VISITS)])
            except OSError:
                counts["refused"] += 1
                break
            counts["connected"] += 1


def _is_open(connection: socket.socket) -> bool:
    connection.setblocking(False)
    try:
        return connection.recv(1) != b""
    except BlockingIOError:
        return True
    except OSError:
        return False
