"""Many plants in one process for `bench fleet` and `bench page`: each has a real connection to the broker and answers
FetchFacts as a node does, from memory: one tag, and once a minute its health, made by the product's own code. A store
for each would cost the machine more than the node that is measured.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import time
from collections import deque
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from agent.batch import Batch, Definitions, Origin, seal_samples
from agent.batch import Link as Chain
from agent.health.samples import HealthSample, health_samples
from agent.health.verdict import assess
from agent.message import HEALTH_STREAM, TagDefinition
from agent.replication.mqtt import BrokerLink, Incoming
from agent.replication.protocol.codec import answer_parts, decode_request, encode_heartbeat
from agent.replication.protocol.errors import TransportError
from agent.replication.protocol.messages import (
    Answer,
    DefinitionRun,
    DefinitionsAnswer,
    FetchAnswer,
    FetchFacts,
    GetDefinitions,
    LogPosition,
)
from agent.replication.protocol.pacing import HEARTBEAT_MS
from agent.replication.protocol.topics import request_topic
from bench.common.testbed import ASKING, BrokerAccess
from bench.common.worker_io import Options, broker_access, emit
from bench.replication.endpoints import STREAM, access, running
from bench.replication.gateways import gateway, trouble_of, with_trouble

CONNECT_EVERY_S, LEVEL_LOOK_S, LEVEL_LOOKS_MAX = 0.02, 0.05, 400
HEALTH_S = 60.0  # as a node
LEASE = 1


class Log:
    """A stream of a plant."""

    def __init__(self, stream: str, origin: Origin) -> None:
        self.chain = Chain(stream, origin)
        self.held: deque[tuple[int, int, Batch]] = deque(maxlen=1000)  # first sequence, when it was appended
        self.frontier = 0
        self.waiting: tuple[FetchFacts, Incoming, asyncio.TimerHandle] | None = None

    def append(self, batch: Batch) -> None:
        """Hold a batch that was sealed after `chain`."""
        self.held.append((self.chain.next_sequence, time.monotonic_ns(), batch))
        self.chain = batch.link

    def after(self, request: FetchFacts) -> list[Batch]:
        """What is to be answered."""
        after = self.begins(request)
        return [batch for first, _, batch in self.held if first > after]

    def begins(self, request: FetchFacts) -> int:
        """Where the page begins."""
        named = request.trail[-1:] if request.trail is not None else [request.after or self.at(self.frontier)]
        return named[0].offset if named else 0

    def at(self, offset: int) -> LogPosition:
        """An offset as the protocol names it."""
        return LogPosition(offset=offset, life=self.chain.origin.life.hex() if offset else "")

    def confirmed(self, frontier: int) -> list[int]:
        """How long each batch that is confirmed now was held."""
        now_ns, lags_ns = time.monotonic_ns(), list[int]()
        while self.held and self.held[0][2].link.next_sequence <= frontier + 1:
            lags_ns.append(now_ns - self.held.popleft()[1])
        self.frontier = max(self.frontier, frontier)
        return lags_ns

    def take_waiting(self) -> tuple[FetchFacts, Incoming] | None:
        """The request that waits, which waits no longer."""
        waiting, self.waiting = self.waiting, None
        if waiting is None:
            return None
        waiting[2].cancel()
        return waiting[:2]


class Plant:
    """One plant. `lags_ns` collects, of each batch of its tag, the time until the next zone has confirmed it."""

    def __init__(self, broker: BrokerAccess, lags_ns: list[int]) -> None:
        self.link = BrokerLink(access(broker))
        self.link.route(request_topic(broker.zone, ASKING), self._arrived)
        self._zone, self._lags_ns = broker.zone, lags_ns
        origin = Origin(broker.zone, os.urandom(16))
        self._logs = {stream: Log(stream, origin) for stream in (STREAM, HEALTH_STREAM)}
        definition = TagDefinition(f"tag:{broker.zone}/value", source="bench")
        self._bodies = [known.to_json() for known in (definition, *(sample.definition for sample in self._health()))]
        self._definitions = Definitions()
        for body in self._bodies:
            self._definitions = self._definitions.extended(body)

    @property
    def facts(self) -> int:
        """How many values of its tag were appended."""
        return self._logs[STREAM].chain.next_sequence - 1

    @property
    def unconfirmed(self) -> int:
        """Batches that wait for their confirmation."""
        return len(self._logs[STREAM].held)

    def append(self, facts: int) -> None:
        """Record that many facts as one batch, and answer the request that waits for them."""
        now_ns = time.time_ns()
        self._append(STREAM, [(1, now_ns + number, float(number), 0) for number in range(facts)])

    def append_health(self) -> None:
        """Record the health of now."""
        now_ns, samples = time.time_ns(), self._health()
        self._append(
            HEALTH_STREAM, [(number, now_ns, sample.value, sample.quality) for number, sample in enumerate(samples, 2)]
        )

    def heartbeat(self) -> None:
        """Name the requests that wait."""
        waiting = [log.waiting[1] for log in self._logs.values() if log.waiting is not None]
        if waiting and waiting[0].response_topic is not None:
            named = encode_heartbeat(request.correlation or b"" for request in waiting)
            with contextlib.suppress(TransportError):  # while the broker is away
                self.link.require().publish_answer(waiting[0].response_topic, named, b"")

    def _health(self) -> list[HealthSample]:
        snapshot = with_trouble(gateway(self._zone, time.time_ns() // 1_000_000), trouble_of(self._zone))
        (stream,) = snapshot.streams
        end = f"{self._logs[STREAM].chain.origin.life.hex()}:{self.facts}"
        snapshot = replace(snapshot, streams=(replace(stream, own_end=end),))
        return health_samples(snapshot, assess(snapshot))

    def _append(self, stream: str, rows: list[tuple[int, int, Any, int]]) -> None:
        log = self._logs[stream]
        log.append(seal_samples(log.chain, rows, self._definitions))
        if (waiting := log.take_waiting()) is not None:
            self._answer(log, *waiting)

    def _arrived(self, incoming: Incoming) -> None:
        request = decode_request(incoming.payload)
        if isinstance(request, GetDefinitions):
            self._define(request, incoming)
            return
        assert isinstance(request, FetchFacts), request
        assert request.stream is not None
        log = self._logs[request.stream]
        if request.confirm is not None:
            lags_ns = log.confirmed(request.confirm.last_offset)
            if request.stream == STREAM:
                self._lags_ns.extend(lags_ns)
        log.take_waiting()
        if not request.wait_ms or log.after(request):
            self._answer(log, request, incoming)
        else:
            later = asyncio.get_running_loop().call_later(request.wait_ms / 1000, self._answer, log, request, incoming)
            log.waiting = request, incoming, later

    def _answer(self, log: Log, request: FetchFacts, incoming: Incoming) -> None:
        log.take_waiting()
        origin, batches = log.chain.origin, log.after(request)
        answer = FetchAnswer(
            store_zone=origin.zone,
            stream=log.chain.stream,
            frontier=log.frontier,
            end_offset=log.chain.next_sequence - 1,
            batches=[(batch.header.first_sequence, batch.header.last_sequence, len(batch.sealed)) for batch in batches],
            lease=None if request.lease is None else LEASE,
            life=origin.life.hex(),
            after=log.at(log.begins(request)),
            lives=[log.at(log.chain.next_sequence - 1)] if batches else [],
        )
        self._publish(answer, [batch.sealed for batch in batches], incoming)

    def _define(self, request: GetDefinitions, incoming: Incoming) -> None:
        origin, (wanted,) = self._logs[STREAM].chain.origin, request.wanted
        run = DefinitionRun(zone=wanted.zone, digest=wanted.digest, lengths=[len(body) for body in self._bodies])
        answer = DefinitionsAnswer(store_zone=origin.zone, life=origin.life.hex(), runs=[run])
        self._publish(answer, self._bodies, incoming)

    def _publish(self, answer: Answer, attachment: list[bytes], incoming: Incoming) -> None:
        payload = b"".join(answer_parts(answer, attachment))
        assert incoming.response_topic is not None
        assert incoming.correlation is not None
        with contextlib.suppress(TransportError):  # the node asks again
            self.link.require().publish_answer(incoming.response_topic, payload, incoming.correlation)


def plants(options: Options) -> None:
    """Run the plants until stopped, and until all is confirmed. SIGUSR1 begins or ends the load; ENDED has the lags
    under the last, and how many facts there were and how many batches of them are not confirmed."""
    asyncio.run(_plants(options))


async def _plants(options: Options) -> None:
    lags_ns = list[int]()
    broker = broker_access(options)
    some = [Plant(_as_zone(broker, zone), lags_ns) for zone in options["zones"]]
    is_loaded = asyncio.Event()

    def switch() -> None:
        is_loaded.clear() if is_loaded.is_set() else is_loaded.set()

    asyncio.get_running_loop().add_signal_handler(signal.SIGUSR1, switch)
    for plant in some:
        plant.append(1)
        plant.append_health()
    links = (_connected(plant, number * CONNECT_EVERY_S) for number, plant in enumerate(some))
    async with running(
        *links, _heartbeats(some), _health(some), _load(some, options["facts_per_plant"], is_loaded, lags_ns)
    ) as stopped:
        for plant in some:
            await plant.link.wait_up()
        emit("READY")
        await asyncio.to_thread(stopped.wait)
        for _ in range(LEVEL_LOOKS_MAX):
            if not any(plant.unconfirmed for plant in some):
                break
            await asyncio.sleep(LEVEL_LOOK_S)
    facts, left = sum(plant.facts for plant in some), sum(plant.unconfirmed for plant in some)
    emit("ENDED", {"lags_ns": lags_ns, "facts": facts, "unconfirmed": left})


def _as_zone(broker: BrokerAccess, zone: str) -> BrokerAccess:
    """The same access for another zone of the authority."""
    cert_file, key_file = (str(Path(file).with_stem(zone)) for file in (broker.cert_file, broker.key_file))
    return replace(broker, zone=zone, cert_file=cert_file, key_file=key_file)


async def _connected(plant: Plant, after_s: float) -> None:
    await asyncio.sleep(after_s)
    await plant.link.run()


async def _heartbeats(some: list[Plant]) -> None:
    """Those of a plant at the interval of a node; the plants are spread over it."""
    async for plant in _in_turn(some, HEARTBEAT_MS / 1000):
        plant.heartbeat()


async def _health(some: list[Plant]) -> None:
    """The same, with the health of each."""
    await asyncio.sleep(HEALTH_S)
    async for plant in _in_turn(some, HEALTH_S):
        plant.append_health()


async def _in_turn(some: list[Plant], interval_s: float) -> AsyncIterator[Plant]:
    """All plants again and again, spread over the interval."""
    due_s = time.monotonic()
    while True:
        for plant in some:
            due_s += interval_s / len(some)
            await asyncio.sleep(max(0.0, due_s - time.monotonic()))
            yield plant


async def _load(some: list[Plant], facts: int, is_loaded: asyncio.Event, lags_ns: list[int]) -> None:
    """Once a second each plant appends a batch; the plants are spread over the second."""
    due_s = time.monotonic()
    while True:
        if not is_loaded.is_set():
            await is_loaded.wait()
            lags_ns.clear()
            due_s = time.monotonic()
        for plant in some:
            due_s += 1 / len(some)
            await asyncio.sleep(max(0.0, due_s - time.monotonic()))
            plant.append(facts)
