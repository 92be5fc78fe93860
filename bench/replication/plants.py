"""Many plants in one process for `bench fleet`: each has a real connection to the broker and answers FetchFacts as a
node does, from memory. A store for each would cost the machine more than the node that is measured.
"""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections import deque
from dataclasses import replace
from pathlib import Path

from agent.batch import Batch, Definitions, Origin, seal_samples
from agent.batch import Link as Chain
from agent.message import TagDefinition
from agent.replication.mqtt import Incoming, Link
from agent.replication.protocol.codec import answer_parts, decode_request, encode_heartbeat
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

CONNECT_EVERY_S, LEVEL_LOOK_S, LEVEL_LOOKS_MAX = 0.02, 0.05, 400
LEASE = 1


class Plant:
    """One plant. `lags_ns` collects, of each batch, the time until the next zone has confirmed it."""

    def __init__(self, broker: BrokerAccess, lags_ns: list[int]) -> None:
        self.link = Link(access(broker))
        self.link.route(request_topic(broker.zone, ASKING), self._arrived)
        self._lags_ns = lags_ns
        definition = TagDefinition(f"tag:{broker.zone}/value", source="bench").to_json()
        self._definition, self._definitions = definition, Definitions().extended(definition)
        self._chain = Chain(STREAM, Origin(broker.zone, os.urandom(16)))
        self._held: deque[tuple[int, int, Batch]] = deque(maxlen=1000)  # first sequence, when it was appended
        self._frontier = 0
        self._waiting = dict[str, tuple[FetchFacts, Incoming, asyncio.TimerHandle]]()  # by stream

    @property
    def facts(self) -> int:
        """How many were appended."""
        return self._chain.next_sequence - 1

    @property
    def unconfirmed(self) -> int:
        """Batches that wait for their confirmation."""
        return len(self._held)

    def append(self, facts: int) -> None:
        """Record that many facts as one batch, and answer the request that waits for them."""
        now_ns = time.time_ns()
        rows = [(1, now_ns + number, float(number), 0) for number in range(facts)]
        batch = seal_samples(self._chain, rows, self._definitions)
        self._held.append((self._chain.next_sequence, time.monotonic_ns(), batch))
        self._chain = batch.link
        if (waiting := self._waiting.get(STREAM)) is not None:
            self._answer(*waiting[:2])

    def heartbeat(self) -> None:
        """Name the requests that wait."""
        waiting = [incoming for _, incoming, _ in self._waiting.values()]
        if waiting and waiting[0].response_topic is not None:
            named = encode_heartbeat(one.correlation or b"" for one in waiting)
            self.link.require().publish_answer(waiting[0].response_topic, named, b"")

    def _arrived(self, incoming: Incoming) -> None:
        request = decode_request(incoming.payload)
        if isinstance(request, GetDefinitions):
            self._define(request, incoming)
            return
        assert isinstance(request, FetchFacts), request
        assert request.stream is not None
        if request.stream == STREAM and request.confirm is not None:
            self._confirmed(request.confirm.last_offset)
        if (before := self._waiting.pop(request.stream, None)) is not None:
            before[2].cancel()
        if not request.wait_ms or self._after(request):
            self._answer(request, incoming)
        else:
            later = asyncio.get_running_loop().call_later(request.wait_ms / 1000, self._answer, request, incoming)
            self._waiting[request.stream] = request, incoming, later

    def _after(self, request: FetchFacts) -> list[Batch]:
        """What is to be answered; nothing of any stream but one."""
        after = self._begins(request)
        return [batch for first, _, batch in self._held if first > after] if request.stream == STREAM else []

    def _begins(self, request: FetchFacts) -> int:
        """Where the page begins."""
        named = request.trail[-1:] if request.trail is not None else [request.after or self._at(self._frontier)]
        return named[0].offset if named else 0

    def _at(self, offset: int) -> LogPosition:
        return LogPosition(offset=offset, life=self._chain.origin.life.hex() if offset else "")

    def _confirmed(self, frontier: int) -> None:
        now_ns = time.monotonic_ns()
        while self._held and self._held[0][2].link.next_sequence <= frontier + 1:
            self._lags_ns.append(now_ns - self._held.popleft()[1])
        self._frontier = max(self._frontier, frontier)

    def _answer(self, request: FetchFacts, incoming: Incoming) -> None:
        assert request.stream is not None
        if (waiting := self._waiting.pop(request.stream, None)) is not None:
            waiting[2].cancel()
        origin, is_live = self._chain.origin, request.stream == STREAM
        batches = self._after(request)
        answer = FetchAnswer(
            store_zone=origin.zone,
            stream=request.stream,
            frontier=self._frontier if is_live else 0,
            end_offset=self._chain.next_sequence - 1 if is_live else 0,
            batches=[(one.header.first_sequence, one.header.last_sequence, len(one.sealed)) for one in batches],
            lease=None if request.lease is None else LEASE,
            life=origin.life.hex(),
            after=self._at(self._begins(request)),
            lives=[self._at(self._chain.next_sequence - 1)] if batches else [],
        )
        self._publish(answer, [one.sealed for one in batches], incoming)

    def _define(self, request: GetDefinitions, incoming: Incoming) -> None:
        origin, (wanted,) = self._chain.origin, request.wanted
        run = DefinitionRun(zone=wanted.zone, digest=wanted.digest, lengths=[len(self._definition)])
        answer = DefinitionsAnswer(store_zone=origin.zone, life=origin.life.hex(), runs=[run])
        self._publish(answer, [self._definition], incoming)

    def _publish(self, answer: Answer, attachment: list[bytes], incoming: Incoming) -> None:
        payload = b"".join(answer_parts(answer, attachment))
        assert incoming.response_topic is not None
        assert incoming.correlation is not None
        self.link.require().publish_answer(incoming.response_topic, payload, incoming.correlation)


def plants(options: Options) -> None:
    """Run the plants until stopped, and until all is confirmed. SIGUSR1 begins or ends the load; ENDED has the lags
    under it, and how many facts there were and how many batches of them are not confirmed."""
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
    links = (_connected(plant, number * CONNECT_EVERY_S) for number, plant in enumerate(some))
    async with running(
        *links, _heartbeats(some), _load(some, options["facts_per_plant"], is_loaded, lags_ns)
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
    due_s = time.monotonic()
    while True:
        for plant in some:
            due_s += HEARTBEAT_MS / 1000 / len(some)
            await asyncio.sleep(max(0.0, due_s - time.monotonic()))
            plant.heartbeat()


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
