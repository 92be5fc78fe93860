"""A client of the protocol that shares nothing with this project: written from docs/developers/protocol.md, with plain
paho.

    foreign_client.py HOST PORT CA CERT KEY SERVING_ZONE ASKING_ZONE STREAM [append]

Fetches a stream to its end in small pages, reading ahead once, confirms on the way, and prints one JSON object: what it
got, as digests of the batches, and what the server said of its cursor. With `append` it appends messages instead, some
of them wrongly, and prints the answers. It must be run where `agent` cannot be imported.
"""

import hashlib
import json
import os
import queue
import ssl
import struct
import sys

from paho.mqtt import client as mqtt
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties

LIMIT_S = 20.0


class Client:
    """One connection; requests one after the other, answers matched by correlation."""

    def __init__(self, host: str, port: int, ca: str, cert: str, key: str, serving: str, asking: str) -> None:
        instance = os.urandom(8).hex()
        self.request_topic = f"bsfg/1/{serving}/{asking}/req"
        self.response_topic = f"bsfg/1/{serving}/{asking}/rsp/{instance}"
        self._ready: queue.Queue[int] = queue.Queue(8)
        self._answers: queue.Queue[tuple[bytes, bytes]] = queue.Queue(64)
        self._client = mqtt.Client(
            mqtt.CallbackAPIVersion.VERSION2, client_id=os.urandom(16).hex(), protocol=mqtt.MQTTv5
        )
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        context.load_verify_locations(ca)
        context.load_cert_chain(cert, key)
        self._client.tls_set_context(context)
        self._client.on_connect = lambda c, *_: c.subscribe(self.response_topic, qos=0)
        self._client.on_subscribe = lambda *_: self._ready.put(0)
        self._client.on_message = self._arrived
        self._client.connect(host, port, clean_start=True)
        self._client.loop_start()
        self._ready.get(timeout=LIMIT_S)

    def close(self) -> None:
        """Disconnect."""
        self._client.disconnect()
        self._client.loop_stop()

    def send(self, operation: str, **fields: object) -> bytes:
        """Send a request; returns its correlation."""
        request = {"protocol": "bsfg.replication", "version": "1.0", "operation": operation, **fields}
        properties = Properties(PacketTypes.PUBLISH)
        properties.ResponseTopic = self.response_topic
        properties.CorrelationData = correlation = os.urandom(16)
        properties.MessageExpiryInterval = 10
        self._client.publish(self.request_topic, json.dumps(request), qos=1, properties=properties)
        return correlation

    def answer(self, correlation: bytes) -> tuple[dict[str, object], bytes]:
        """Header and attachment of the answer with this correlation; other messages are dropped."""
        while True:
            known, payload = self._answers.get(timeout=LIMIT_S)
            if known == correlation:
                break
        (length,) = struct.unpack_from("<I", payload)
        header = json.loads(payload[4 : 4 + length])
        assert header["protocol"] == "bsfg.replication"
        assert header["version"].split(".")[0] == "1"
        return header, payload[4 + length :]

    def ask(self, operation: str, **fields: object) -> tuple[dict[str, object], bytes]:
        """Send a request and wait for its answer."""
        return self.answer(self.send(operation, **fields))

    def _arrived(self, _client: object, _data: object, message: mqtt.MQTTMessage) -> None:
        correlation = getattr(message.properties, "CorrelationData", b"")
        self._answers.put((correlation, message.payload))


def main(host: str, port: str, ca: str, cert: str, key: str, serving: str, asking: str, stream: str) -> None:
    """Fetch and confirm everything, then print the result."""
    client = Client(host, int(port), ca, cert, key, serving, asking)
    consumer = f"{asking}.{stream}"
    offered, _ = client.ask("ListStreams")
    refused, _ = client.ask("FetchFacts", consumer_name=consumer, limit=100)
    fetch = {"consumer_name": consumer, "stream": stream, "limit": 16_384, "bytes_max": 4096, "wait_ms": 200}
    at, epoch, digests, definitions, pages, known = 0, None, [], [], 0, {}
    while True:
        asked: dict[str, object] = {**fetch, "after_offset": at, "definitions_known": known}
        if at:
            asked |= {"epoch": epoch, "confirm": {"last_offset": at}}
        header, attachment = client.ask("FetchFacts", **asked)
        assert header["status"] == "ok", header
        epoch = header["epoch"]
        for each in header.get("definitions", []):
            definitions.append(each["definition"]["subject"])
            known[f"{each['zone']}/{each['epoch']}"] = each["number"]
        covered = []
        for first, last, size in header.get("batches", []):
            digests.append(hashlib.sha256(attachment[:size]).hexdigest())
            attachment = attachment[size:]
            covered.append((first, last))
        covered += [tuple(each) for each in header.get("omitted", [])]
        assert not attachment
        covered.sort()
        assert all(one[1] + 1 == other[0] for one, other in zip([(0, at), *covered], covered, strict=False)), covered
        if covered:
            at, pages = covered[-1][1], pages + 1
        elif not header.get("definitions"):
            break
    confirmed, _ = client.ask("ConfirmReceipt", consumer_name=consumer, offset=at, epoch=epoch)
    cursor, _ = client.ask("GetCursor", consumer_name=consumer)
    beyond, _ = client.ask("ConfirmReceipt", consumer_name=consumer, offset=at + 1, epoch=epoch)
    client.close()
    assert "agent" not in sys.modules
    answers = {
        "streams": [each["name"] for each in offered["streams"]],
        "refused": refused["error"]["code"],
        "pages": pages,
        "end_offset": at,
        "definitions": definitions,
        "digests": digests,
        "advanced_to": confirmed["cursor_advanced_to"],
        "frontier": cursor["frontier"],
        "beyond": [beyond["error"]["code"], beyond["error"]["retryable"]],
    }
    print(json.dumps(answers))


def append(host: str, port: str, ca: str, cert: str, key: str, serving: str, asking: str, stream: str) -> None:
    """Append, repeat, contradict, be fenced, be refused; print the outcomes."""
    client = Client(host, int(port), ca, cert, key, serving, asking)

    def message(message_id: str, content: object, from_zone: str = asking, **more: object) -> dict[str, object]:
        envelope = {
            "message_id": message_id,
            "from_zone": from_zone,
            "to_zone": "*",
            "produced_at_unix_ms": 1_700_000_000_000,
        }
        fact = {"subject": "order:line1/77", "predicate": "order_released", "object": content}
        return {"envelope": envelope, "fact": fact, **more}

    first = [message("one", {"b": 1, "a": "ä"}), message("two", 2.50)]
    applied, _ = client.ask("AppendFact", stream=stream, messages=first)
    again, _ = client.ask("AppendFact", stream=stream, messages=[*first, message("one", {"a": "other"})])
    producer = f"{asking}.mes"
    leases = [client.ask("AcquireLease", stream=stream, producer=producer)[0]["lease_epoch"] for _ in range(2)]
    fenced = message("three", None, producer=producer, lease_epoch=leases[0])
    outcomes = client.ask("AppendFact", stream=stream, messages=[fenced], acks="local")[0]["outcomes"]
    refused = [
        client.ask("AppendFact", stream=stream, messages=[message("four", 4), message("five", 5, from_zone=serving)])[
            0
        ],
        client.ask("AppendFact", stream="facts.secret", messages=[message("four", 4)])[0],
        client.ask("AppendFact", stream=stream, messages=[])[0],
    ]
    client.close()
    assert "agent" not in sys.modules
    answers = {
        "applied": [(one["outcome"], one["offset"]) for one in applied["outcomes"]],
        "again": [(one["outcome"], one["offset"]) for one in again["outcomes"]],
        "leases": leases,
        "fenced": outcomes,
        "refused": [(one["error"]["code"], one["error"]["message"]) for one in refused],
    }
    print(json.dumps(answers))


if __name__ == "__main__":
    if sys.argv[9:] == ["append"]:
        append(*sys.argv[1:9])
    else:
        main(*sys.argv[1:])
