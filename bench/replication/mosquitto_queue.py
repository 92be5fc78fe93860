"""For comparison: a persistent MQTT session with QoS 1, one message a fact, kept by the broker while its reader is
away.

The same broker and mutual TLS as the product's, but configured to keep sessions and write them to its disk. A reader
subscribes and disconnects, a publisher sends the facts as JSON, the reader returns and takes them. Both rates are
reported. Mosquitto keeps the queue in memory and saves it periodically, so a crash loses the newest messages; neither
rate includes the cost of preventing that.
"""

from __future__ import annotations

import json
import ssl
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from paho.mqtt.client import Client
from paho.mqtt.enums import CallbackAPIVersion, MQTTProtocolVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

from agent.demo.mosquitto import Mosquitto
from agent.replication.protocol.topics import response_topic, subscription_to
from bench.common.data_sets import definitions, samples
from bench.common.testbed import ASKING, BARE_SERVING, scratch_folder
from bench.replication.bare_loop import no_delay

INSTANCE = "queued"
IN_FLIGHT = 1000  # QoS 1 publishes and deliveries that may be unacknowledged: many, so that round trips do not count
SESSION_S = 3600
WAIT_S_MAX = 120.0
STEP_S = 0.0005


@dataclass(frozen=True, slots=True)
class Queued:
    """The rates at which a broker's queue accepted and delivered facts."""

    facts: int
    in_ns: int
    out_ns: int

    @property
    def facts_per_s(self) -> float:
        """The rate at which the reader got the facts after it reconnected."""
        return 1e9 * self.facts / self.out_ns

    def to_dict(self) -> dict[str, Any]:
        return {
            "what": "Mosquitto's persistent session: QoS 1, one fact a message, drained after the reader was away",
            "facts_per_s": round(self.facts_per_s),
            "taken_in_facts_per_s": round(1e9 * self.facts / self.in_ns),
            "facts": self.facts,
        }


def drain(facts: int, seed: int, below: Path | None) -> Queued:
    """Queue so many facts in a broker of its own, then drain them."""
    zones, links = (BARE_SERVING, ASKING), (f"{BARE_SERVING}:{ASKING}",)
    with scratch_folder(below) as folder, Mosquitto.started(folder, zones=zones, links=links) as broker:
        _keep_sessions(broker)
        topic = response_topic(BARE_SERVING, ASKING, INSTANCE)
        _reader(broker, topic, 0)
        payloads = _payloads(facts, seed)
        in_ns = _publish(broker, topic, payloads)
        return Queued(facts, in_ns, _reader(broker, topic, facts))


def _keep_sessions(broker: Mosquitto) -> None:
    """Let the broker keep sessions, which the product's configuration forbids."""
    file = broker.files.config_file
    kept = [line for line in file.read_text("utf-8").splitlines() if line.split(" ")[0] not in _REPLACED]
    kept += [f"{name} {value}" for name, value in _REPLACED.items()]
    kept.append(f"persistence_location {file.parent}/")
    file.write_text("\n".join([*kept, ""]), "utf-8")
    broker.restart()


_REPLACED: Mapping[str, str] = {
    "persistence": "true",
    "autosave_interval": "10",
    "max_inflight_messages": str(IN_FLIGHT),
    "max_queued_messages": "0",
    "max_queued_bytes": "0",
    "max_inflight_bytes": "0",
}


def _payloads(facts: int, seed: int) -> list[bytes]:
    tags = definitions()
    found = []
    for number, sample in zip(range(facts), samples("A", seed), strict=False):
        tag = tags[sample.tag - 1]
        fact = {"tag": tag.subject, "time": sample.source_time_ns, "value": sample.value, "quality": sample.quality}
        found.append(json.dumps({"id": number, **fact}).encode())
    return found


def _publish(broker: Mosquitto, topic: str, payloads: list[bytes]) -> int:
    """Hand over every payload in QoS 1; nanoseconds until the last is acknowledged."""
    client = _client(broker, BARE_SERVING, "queued-publisher")
    acknowledged = 0

    def counted(*_: Any) -> None:
        nonlocal acknowledged
        acknowledged += 1

    client.on_publish = counted
    client.max_inflight_messages_set(IN_FLIGHT)
    client.max_queued_messages_set(0)
    _connect(client, broker)
    start_ns = time.perf_counter_ns()
    for payload in payloads:
        client.publish(topic, payload, qos=1)
    _wait(lambda: acknowledged >= len(payloads), "acknowledgements of the publisher")
    duration_ns = time.perf_counter_ns() - start_ns
    client.disconnect()
    client.loop_stop()
    return duration_ns


def _reader(broker: Mosquitto, topic: str, facts: int) -> int:
    """Come back to the session and take `facts` messages; nanoseconds from the connection on. With 0, only
    subscribe."""
    client = _client(broker, ASKING, "queued-reader")
    taken = 0
    subscribed = threading.Event()

    def received(*_: Any) -> None:
        nonlocal taken
        taken += 1

    client.on_message = received
    client.on_subscribe = lambda *_: subscribed.set()
    start_ns = time.perf_counter_ns()
    _connect(client, broker)
    if not facts:
        client.subscribe(subscription_to(topic), qos=1)
        assert subscribed.wait(WAIT_S_MAX)
    _wait(lambda: taken >= facts, "facts from the queue")
    duration_ns = time.perf_counter_ns() - start_ns
    client.disconnect()
    client.loop_stop()
    return duration_ns


def _client(broker: Mosquitto, zone: str, name: str) -> Client:
    identity = broker.identity(zone)
    client = Client(CallbackAPIVersion.VERSION2, client_id=name, protocol=MQTTProtocolVersion.MQTTv5)
    context = ssl.create_default_context(cafile=str(identity.ca_file))
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.load_cert_chain(identity.cert_file, identity.key_file)
    client.tls_set_context(context)
    client.on_socket_open = no_delay
    return client


def _connect(client: Client, broker: Mosquitto) -> None:
    """Connect to the existing session, or begin one."""
    properties = Properties(PacketTypes.CONNECT)  # type: ignore[no-untyped-call]
    properties.SessionExpiryInterval = SESSION_S
    properties.ReceiveMaximum = IN_FLIGHT
    connected = threading.Event()
    client.on_connect = lambda *_: connected.set()
    client.connect(broker.host, broker.port, clean_start=False, properties=properties)
    client.loop_start()
    assert connected.wait(WAIT_S_MAX), "no connection to the broker"


def _wait(is_done: Callable[[], bool], what: str) -> None:
    end_s = time.monotonic() + WAIT_S_MAX
    pause = threading.Event()
    while not is_done():
        assert time.monotonic() < end_s, f"{what} did not come in {WAIT_S_MAX:.0f} s"
        pause.wait(STEP_S)
