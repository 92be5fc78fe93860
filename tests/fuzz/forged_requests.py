"""Forged requests into the real serving side: server, operations and store, over a link that this module plays.

Zone evil sends requests of every operation that fit the store at that moment (its life, its offsets, its consumers),
changed in structure, in bytes, or by fields that are well formed and untrue; also topics, correlations and expiries
that are wrong. Zone idmz fetches and confirms in between, honestly.
"""

from __future__ import annotations

import asyncio
import base64
import json
import random
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from agent.fact_store import FactStore
from agent.message import Envelope, Fact, Message, Sample, TagDefinition
from agent.node.latest import latest_lookup
from agent.replication.mqtt import BrokerLink
from agent.replication.mqtt.carrier import Access, Incoming
from agent.replication.protocol.codec import decode_answer
from agent.replication.protocol.messages import FetchAnswer
from agent.replication.serving.admission import PeerRights
from agent.replication.serving.server import Server
from agent.settings.store import StreamSettings
from agent.signing.messages import REQUEST_MARK, split_answer
from tests.fact_store.making import IN_MEMORY, OPERATIONAL, TELEMETRY
from tests.fuzz import hostile, seeds
from tests.fuzz.paths import verified
from tests.waiting import LIMIT_S, wait_until_async

OWN, EVIL, HONEST = "plant-a", "evil", "idmz"
ROUND = 100
"""Forged requests between two honest fetches."""
OPEN_MAX = 32
AGAIN_S = 0.1
PROVEN = 0.05
STREAMS = [StreamSettings(name, acks_timeout_ms=1) for name in (OPERATIONAL, TELEMETRY)]


class Served:
    """The connection of the link: keeps the answers of the honest zone, counts the others."""

    packet_bytes_max = 1_048_576
    outgoing_bytes = 0

    def __init__(self) -> None:
        self.honest = list[bytes]()
        self.outcomes = Counter[str]()

    def publish_answer(self, topic: str, payload: bytes, _correlation: bytes) -> None:
        """As the product's connection. Every answer can be read."""
        assert len(payload) <= self.packet_bytes_max
        if topic.startswith(f"bsfg/1/{OWN}/{HONEST}/rsp/"):
            self.honest.append(payload)
            return
        assert topic.startswith(f"bsfg/1/{OWN}/{EVIL}/rsp/"), topic
        answer, _ = decode_answer(split_answer(payload)[0])
        self.outcomes[(getattr(answer, "error", None) and answer.error.code) or "ok"] += 1  # type: ignore[union-attr]


class Forger:
    """Makes the requests of evil."""

    def __init__(self, chance: random.Random, zone: str, life: str, end_offset: Callable[[str], int]) -> None:
        """For the store of `zone`, with its life and the ends of its streams."""
        self.chance, self._zone, self._life, self._end_offset = chance, zone, life, end_offset
        self._seeds = [json.loads(request) for request in seeds.requests()]

    def incoming(self) -> Incoming:
        """A forged request as the broker delivers it."""
        chance = self.chance
        topic, answer_to = f"bsfg/1/{self._zone}/{EVIL}/req", f"bsfg/1/{self._zone}/{EVIL}/rsp/0/{chance.choice('ab')}"
        correlation: bytes | None = chance.randbytes(16)
        expiry: int | None = 10
        if chance.random() < 0.03:
            answer_to = chance.choice(
                (f"bsfg/1/{self._zone}/{HONEST}/rsp/0/a", "", "#", "x" * 60_000, answer_to + "/../x")
            )
            correlation = chance.choice((None, b"", bytes(7), bytes(33), bytes(60_000)))
            expiry = chance.choice((None, 0, 2**32 - 1))
        return Incoming(topic, self.payload(), answer_to, correlation, expiry, chance.random() < 0.005)

    def payload(self) -> bytes:
        """The bytes of a forged request, now and then behind a proof."""
        payload = self._payload()
        if self.chance.random() < PROVEN:
            return hostile.proven(self.chance, REQUEST_MARK, payload, seeds.certificates())
        return payload

    def _payload(self) -> bytes:
        chance = self.chance
        request = self._fitting(chance.choice(self._seeds))
        how = chance.random()
        if how < 0.4:
            return hostile.json_text(chance, json.dumps(request).encode())
        if how < 0.5:
            return hostile.some_bytes(chance, json.dumps(request).encode())
        for _ in range(chance.randint(0, 3)):
            self._lie(request)
        return json.dumps(request).encode()

    def _fitting(self, request: dict[str, Any]) -> dict[str, Any]:
        """The request with names, lives and offsets that exist here, mostly."""
        chance, fitting = self.chance, dict(request)
        stream = chance.choice((OPERATIONAL, TELEMETRY))
        end = self._end_offset(stream)
        names = {
            "stream": stream,
            "consumer_name": f"{EVIL}.{chance.choice(('a', 'b', stream))}",
            "origin": f"{self._zone}/{self._life}",
            "after": {"offset": chance.randint(0, end), "life": self._life},
            "life": self._life,
            "offset": chance.randint(0, end + 1),
            "first_offset": chance.randint(1, end + 1),
            "last_offset": end,
            "wait_ms": chance.choice((0, 0, 0, 50, 60_000)),
            "lease": chance.choice((0, 0, 1, 2)),
            "producer": f"{EVIL}.mes",
        }
        for name in fitting:
            if name in names and chance.random() < 0.9:
                fitting[name] = names[name]
        if fitting["operation"] == "FetchFacts" and chance.random() < 0.3:
            fitting["lease"] = names["lease"]
        if "messages" in fitting:
            fitting["messages"] = [self._message() for _ in range(chance.randint(1, 4))]
        return fitting

    def _message(self) -> dict[str, Any]:
        number = self.chance.randrange(50)
        envelope = {"message_id": f"m-{number}", "from_zone": EVIL, "to_zone": "*", "produced_at_unix_ms": 1}
        content = self.chance.choice((number, {"a": [1, 2.5]}, {"digest": f"sha256:{'0' * 64}", "size": 1}))
        return {
            "envelope": envelope | ({"object_media_type": "a/b"} if number % 3 else {}),
            "fact": {"subject": "order:line1/77", "predicate": "step_completed", "object": content},
        }

    def _lie(self, request: dict[str, Any]) -> None:
        """Change a field to a well-formed untruth, or add one."""
        chance, edge = self.chance, self.chance.choice(hostile.EDGES)
        lies: dict[str, Any] = {
            "life": chance.choice(("00" * 16, "ab" * 16, chance.randbytes(16).hex())),
            "trail": [{"offset": edge, "life": self._life}] * chance.choice((0, 1, 64, 65)),
            "position": {"offset": edge, "life": self._life},
            "confirm": {"last_offset": edge, "life": self._life, "first_offset": chance.choice(hostile.EDGES)},
            "lease": edge,
            "lease_after": edge,
            "limit": edge,
            "bytes_max": edge,
            "start": chance.choice((edge, "end", "0001-01-01T00:00:00Z", "9999-12-31T23:59:59.999999Z")),
            "consumer_name": chance.choice((f"{HONEST}.c", "local", f"{EVIL}.{edge}", f"{EVIL}.{chance.random()}")),
            "wanted": [{"zone": self._zone, "digest": chance.randbytes(16).hex(), "held": [edge, "0" * 16]}],
            "first_sequence": edge,
            "last_sequence": edge,
            "origin": f"{chance.choice((self._zone, EVIL, 'x'))}/{chance.randbytes(16).hex()}",
            "acks": chance.choice(("none", "local", "quorum", "all")),
            "size": edge,
            "offset": edge,
            "subjects": ["tag:x/y"] * chance.choice((0, 1, 1_000, 1_001)),
            "prefix": chance.choice(("", "tag:", "%", "\x00", "x" * 10_000)),
            "after": chance.choice(
                ({"zone": "x", "subject": "\x00", "predicate": ""}, {"offset": edge, "life": self._life})
            ),
            "depth_facts": edge,
            "ends_max": edge,
            "whole_batches": True,
            "signers_known": [f"plant-a/{chance.randbytes(8).hex()}"] * chance.choice((0, 1, 512, 513)),
            "record": base64.b64encode(chance.randbytes(82)).decode(),
        }
        name = chance.choice(list(lies))
        request[name] = lies[name]


# --------------------------------------------------------------------------------------------------------------- the run


async def serve_forged(folder: Path, cases: int, seed: int) -> Counter[str]:
    """Send `cases` forged requests. Fails unless server and store live under one life, every request ends, and an
    honest zone is served after every ROUND of them, and the store verifies. Returns how they were answered."""
    link, served = BrokerLink(Access("b", OWN, "host", 1, lambda: None)), Served()  # type: ignore[arg-type, return-value]
    with FactStore.open(folder / "facts.db", OWN, settings=IN_MEMORY, streams=STREAMS, unattended=True) as store:
        look_up = latest_lookup(store.reader, lambda _: 0, lambda *_: [])
        both = frozenset({OPERATIONAL, TELEMETRY})
        server = Server(link, store, {EVIL: PeerRights(both, both), HONEST: PeerRights(both)}, look_up=look_up)
        link.connection = served  # type: ignore[assignment]
        running, life = asyncio.create_task(server.run()), store.life
        forger, sent = Forger(random.Random(seed), OWN, life.hex(), store.end_offset), 0
        await asyncio.wrap_future(store.appends.define([TagDefinition("tag:line1/t1")]))
        try:
            while sent < cases:
                for _ in range(ROUND):
                    link._dispatch(forger.incoming())
                    sent += 1
                    await asyncio.sleep(0)
                    if server._arrivals.open[EVIL] >= OPEN_MAX:
                        await _settle(server, store, sent)
                await _settle(server, store, sent)
                await _serve_honest(link, served, store, sent)
                assert not running.done(), running.exception()
                assert store.failure is None, store.failure
                assert store.life == life
        finally:
            running.cancel()
            await asyncio.wait([running])
    verified(folder)
    return served.outcomes


async def _settle(server: Server, store: FactStore, number: int) -> None:
    """Let every open request end: those that wait for facts get one in each stream."""
    loop = asyncio.get_running_loop()
    began_s = loop.time()
    while server._arrivals.open[EVIL]:
        await _append(store, number)
        due_s = loop.time() + AGAIN_S
        await wait_until_async(lambda: not server._arrivals.open[EVIL] or loop.time() > due_s, "a moment")  # noqa: B023
        assert loop.time() < began_s + LIMIT_S, "a request does not end"


async def _append(store: FactStore, number: int) -> None:
    envelope = Envelope(f"own-{number}-{store.end_offset(OPERATIONAL)}", OWN, "*", 1_700_000_000_000)
    message = Message(envelope, Fact("order:line1/1", "step_completed", b"1"))
    await asyncio.wrap_future(store.appends.append_message(OPERATIONAL, message))
    await asyncio.wrap_future(store.appends.append_samples(TELEMETRY, [Sample(1, number, number, 0)]))


async def _serve_honest(link: BrokerLink, served: Served, store: FactStore, number: int) -> None:
    """idmz fetches what was appended now, and its cursor is where it confirmed."""
    await _append(store, number)
    end, name = store.end_offset(TELEMETRY), f"{HONEST}.{TELEMETRY}"
    life = store.life.hex()
    for confirm in (None, {"last_offset": end, "life": life}):
        request = {"protocol": "bsfg.replication", "version": "1.0", "operation": "FetchFacts", "limit": 100_000}
        after = {"offset": end - 1 if confirm is None else end, "life": life}
        request |= {"consumer_name": name, "stream": TELEMETRY, "after": after}
        request |= {"life": store.life.hex(), "confirm": confirm}
        served.honest.clear()
        topic = f"bsfg/1/{OWN}/{HONEST}/req"
        answer_to = f"bsfg/1/{OWN}/{HONEST}/rsp/0/a"
        link._dispatch(Incoming(topic, json.dumps(request).encode(), answer_to, bytes(16), 10, False))
        await wait_until_async(lambda: served.honest, "an answer to the honest zone")
        answer, _ = decode_answer(split_answer(served.honest[0])[0])
        assert isinstance(answer, FetchAnswer), answer
    (consumer,) = [consumer for consumer in store.consumers.all() if consumer.name == name]
    assert (consumer.zone, consumer.frontier) == (HONEST, end)
