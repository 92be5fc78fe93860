"""The product's two ends of a benchmark: real stores, links, servers and pullers, put together as in a node.

Settings are the defaults: synchronous=FULL, every batch verified by its receiver, pages of the default size. The
server's store reports when a confirmation becomes durable.
"""

from __future__ import annotations

import asyncio
import hashlib
import signal
import threading
import time
from bisect import bisect_right
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import Future
from contextlib import asynccontextmanager, closing, contextmanager, suppress
from functools import partial
from itertools import cycle, islice
from pathlib import Path
from typing import Any

from agent.concurrency import TaskGroup
from agent.errors import StoreError
from agent.fact_store import FactStore, StoreReader
from agent.message import Sample
from agent.replication.mqtt import Access, BrokerLink, Requester
from agent.replication.pki import client_context
from agent.replication.pulling import PageJudge, Puller, PullSettings, TrustPolicy
from agent.replication.serving import PeerRights, Server
from agent.settings.signing import OriginSettings, SigningSettings
from agent.settings.store import StoreSettings
from agent.signing.files import load_identity, load_trust
from bench.common.data_sets import definitions, runs, samples
from bench.common.measuring import results
from bench.common.testbed import ASKING, SERVING, BrokerAccess
from bench.common.worker_io import Options, broker_access, emit, stop_event, usage
from bench.replication.bare_loop import insert_blobs, open_blobs

STREAM = "facts.telemetry"
BATCH_FACTS = 1000
IN_FLIGHT = 50  # appends queued at once while filling: half of what the queue holds
PAGE_BYTES = 4096 * 1024
PROBE_INTERVAL_NS = 10_000_000
LOAD_RUNS = 100  # distinct runs of samples that the load repeats
# Samples are committed at once; an empty file is no fact.
SETTINGS = StoreSettings(commit_interval_ms=0, ballast_bytes=0)


def consumer_of(stream: str) -> str:
    """The name under which the asking zone reads a stream."""
    return f"{ASKING}.{stream}"


CONSUMER = consumer_of(STREAM)


def access(broker: BrokerAccess) -> Access:
    """The connection settings of a link."""
    files = (Path(broker.ca_file), Path(broker.cert_file), Path(broker.key_file))
    return Access("bench", broker.zone, broker.host, broker.port, partial(client_context, *files))


def batches(file: Path) -> Iterator[tuple[bytes, bytes]]:
    """Every batch of a store's stream as (sealed bytes, digest), in order of offset, read without a writer."""
    with closing(StoreReader(file)) as reader:
        after_offset = 0
        while page := reader.read(STREAM, after_offset, 2**40, PAGE_BYTES).batches:
            for batch in page:
                yield batch.sealed, batch.sealed[-16:]
            after_offset = page[-1].last_offset


def fill(options: Options) -> None:
    """A store with a backlog in `file`, and the same sealed batches as blobs in `blobs` for the bare loop.

    The backlog is in batches of `batch_facts` and repeats itself after `distinct_facts`, if that is given.
    """
    stopped = stop_event()
    emit("READY")
    emit("RESULT", _fill(options))
    stopped.wait()


def _fill(options: Options) -> dict[str, Any]:
    file, batch_facts = Path(options["file"]), options["batch_facts"]
    facts = 0
    settings = StoreSettings(batch_facts_target=batch_facts)
    signer = load_identity(_signing(options), SERVING)
    with closing(FactStore.open(file, SERVING, settings=settings, signer=signer)) as store:
        store.appends.define(definitions()).result()
        backlog = _backlog(options["facts"], options.get("distinct_facts"), options["seed"], batch_facts)
        for appended in results((store.appends.append_samples(STREAM, run) for run in backlog), IN_FLIGHT):
            facts += appended.last_offset - appended.first_offset + 1
    count = size = 0
    if not options["blobs"]:
        return {"facts": facts}
    with closing(open_blobs(Path(options["blobs"]))) as database:
        source = batches(file)
        while blobs := [sealed for sealed, _ in islice(source, 1000)]:
            insert_blobs(database, count, blobs)
            count, size = count + len(blobs), size + sum(map(len, blobs))
    return {"facts": facts, "batches": count, "sealed_bytes": size}


def _signing(options: Options) -> SigningSettings:
    """The key that signs the facts of the serving zone, if this round has one."""
    key, certificate = (Path(options[name]) if options.get(name) else None for name in ("signer_key", "signer_cert"))
    return SigningSettings(key, certificate)


def _judge(options: Options, store: FactStore) -> PageJudge:
    """A judge that demands signatures of that key; without a key, the default of a node."""
    signing = _signing(options)
    if signing.certificate_file is None:
        return PageJudge(store)
    identity = load_identity(signing, SERVING)
    assert identity is not None
    pin = hashlib.sha256(identity.certificate).hexdigest()
    trust = load_trust(SigningSettings(), [OriginSettings(SERVING, "required", (pin,))])
    return PageJudge(store, TrustPolicy(trust, {SERVING: "required"}, ASKING))


def _backlog(facts: int, distinct_facts: int | None, seed: int, batch_facts: int) -> Iterator[list[Sample]]:
    if distinct_facts is None or distinct_facts >= facts:
        return runs("A", seed, facts, batch_facts)
    return islice(cycle(list(runs("A", seed, distinct_facts, batch_facts))), facts // batch_facts)


# -------------------------------------------------------------------------------------------------------------- serving


OnConfirmed = Callable[[str, int, int], None]
"""(consumer, frontier, now_ns), in the writer's thread."""


def _watch_confirmations(store: FactStore, on_confirmed: OnConfirmed) -> None:
    """Report when a confirmation of this store becomes durable."""
    confirm = store.consumers.confirm

    def watched(consumer: str, *range_: Any, **shown: Any) -> Future[int]:
        confirmed = confirm(consumer, *range_, **shown)
        confirmed.add_done_callback(partial(report, consumer))
        return confirmed

    def report(consumer: str, future: Future[int]) -> None:
        if future.exception() is None:
            on_confirmed(consumer, future.result(), time.monotonic_ns())

    store.consumers.confirm = watched  # type: ignore[method-assign]


def serve(options: Options) -> None:
    """Serve until stopped; RESULT once `until` is confirmed, if that is above 0."""
    done = threading.Event()
    noted: dict[str, int] = {}

    def confirmed(_consumer: str, frontier: int, now_ns: int) -> None:
        if frontier == options["until"]:
            noted["confirmed_ns"] = now_ns
            done.set()

    with opened(Path(options["file"]), SERVING) as store:
        asyncio.run(serve_while(options, store, confirmed, partial(_emit_result, options, done, noted)))


def _emit_result(options: Options, done: threading.Event, noted: dict[str, int], stopped: threading.Event) -> None:
    since_ns = time.process_time_ns()
    emit("READY")
    while not done.wait(0.02):
        if stopped.is_set():
            return
    emit("RESULT", {**noted, **usage(since_ns, broker_access(options).port)})
    stopped.wait()


async def serve_while(
    options: Options,
    store: FactStore,
    on_confirmed: OnConfirmed,
    work: Callable[[threading.Event], None],
) -> None:
    """A server that runs while `work` does, in a thread of its own, until the process is stopped."""
    streams = options.get("streams", [STREAM])
    for stream in streams:
        with suppress(StoreError):  # no earlier round: no consumer
            await asyncio.wrap_future(store.consumers.remove(consumer_of(stream), force=True, now=True))
    link = BrokerLink(access(broker_access(options)))
    _watch_confirmations(store, on_confirmed)
    await asyncio.wrap_future(store.set_signer(load_identity(_signing(options), SERVING)))
    server = Server(link, store, {options["asking"]: PeerRights(frozenset(streams))})
    async with running(link.run(), server.run()) as stopped:
        await link.wait_up()
        await asyncio.to_thread(work, stopped)


# -------------------------------------------------------------------------------------------------------------- pulling


def pull_settings(stream: str = STREAM) -> PullSettings:
    """The settings of a pull, with all defaults of a node."""
    return PullSettings(SERVING, stream, consumer_of(stream), frozenset({SERVING}))


def pull(options: Options) -> None:
    """Pull into a store until stopped."""
    with opened(Path(options["file"]), ASKING) as store:
        asyncio.run(_pull(options, store))


async def _pull(options: Options, store: FactStore) -> None:
    broker = broker_access(options)
    link = BrokerLink(access(broker))
    judge = _judge(options, store)
    asker = Requester(link, SERVING, judge.messages.refuses_answer)
    streams = options.get("streams", [STREAM])
    pullers = [Puller(asker, store, pull_settings(stream), judge=judge) for stream in streams]
    async with running(link.run()):
        await link.wait_up()
        since_ns, started_ns = time.process_time_ns(), time.monotonic_ns()
        async with running(*(puller.run() for puller in pullers)) as stopped:
            emit("READY")
            await asyncio.to_thread(stopped.wait)
        found = [puller.statistics() for puller in pullers]
        emit(
            "ENDED",
            {
                "started_ns": started_ns,
                "facts_stored": sum(puller.counters.facts_stored for puller in found),
                "pages": sum(puller.counters.pages for puller in found),
                **usage(since_ns, broker.port),
            },
        )


# ------------------------------------------------------------------------------------------------------------------ lag


class Probes:
    """Facts in flight: the time from the start of each append until its confirmation is durable."""

    def __init__(self) -> None:
        self.begun_ns: list[int] = []
        self.lags_ns: list[int] = []
        self.appended = 0
        self._lock = threading.Lock()
        self._offsets: list[int] = []
        self._started_ns: list[int] = []

    def append(self, store: FactStore, rows: list[Sample], stream: str = STREAM) -> None:
        """Append rows without waiting."""
        started_ns = time.monotonic_ns()
        store.appends.append_samples(stream, rows).add_done_callback(partial(self._appended, started_ns))

    def _appended(self, started_ns: int, future: Future[Any]) -> None:
        with self._lock:
            self.appended += 1
            self._offsets.append(future.result().last_offset)
            self._started_ns.append(started_ns)

    def confirmed(self, frontier: int, now_ns: int) -> None:
        """Record that everything up to `frontier` is confirmed."""
        with self._lock:
            count = bisect_right(self._offsets, frontier)
            self.begun_ns.extend(self._started_ns[:count])
            self.lags_ns.extend(now_ns - started_ns for started_ns in self._started_ns[:count])
            del self._offsets[:count], self._started_ns[:count]

    def all_confirmed(self, count: int) -> bool:
        """Whether `count` facts were appended and all of them confirmed."""
        with self._lock:
            return self.appended == count and not self._offsets


def lag(options: Options) -> None:
    """Serve, and append a fact every 10 ms among `load_facts_per_s` others; RESULT when all are confirmed."""
    probes = Probes()

    def confirmed(_consumer: str, frontier: int, now_ns: int) -> None:
        probes.confirmed(frontier, now_ns)

    with opened(Path(options["file"]), SERVING) as store:
        store.appends.define(definitions()).result()
        asyncio.run(serve_while(options, store, confirmed, partial(_probe, options, store, probes)))


def _probe(options: Options, store: FactStore, probes: Probes, stopped: threading.Event) -> None:
    load_facts = options["load_facts_per_s"] * PROBE_INTERVAL_NS // 1_000_000_000
    load = list(runs("A", options["seed"], load_facts * LOAD_RUNS, load_facts)) if load_facts else []
    single = list(islice(samples("A", options["seed"]), BATCH_FACTS))
    emit("READY")
    while store.consumers.get(CONSUMER) is None and not stopped.wait(0.01):
        pass
    since_ns = time.process_time_ns()
    count = int(options["seconds"] * 1e9 / PROBE_INTERVAL_NS)
    due_ns = time.monotonic_ns()
    for number in range(count):
        due_ns += PROBE_INTERVAL_NS
        time.sleep(max(0, due_ns - time.monotonic_ns()) / 1e9)
        beside = load[number % LOAD_RUNS] if load else []
        probes.append(store, [*beside, single[number % BATCH_FACTS]])
    while not probes.all_confirmed(count) and not stopped.wait(0.01):
        pass
    warm = probes.lags_ns[count // 20 :]  # the first few fill caches and meet the first definitions
    facts = count * (load_facts + 1)
    emit("RESULT", {"lags_ns": warm, "facts": facts, **usage(since_ns, broker_access(options).port)})
    stopped.wait()


# --------------------------------------------------------------------------------------------------------------- common


@contextmanager
def opened(file: Path, zone: str) -> Iterator[FactStore]:
    """The store of a zone, closed at the end of the block."""
    with closing(FactStore.open(file, zone, settings=SETTINGS)) as store:
        yield store


@asynccontextmanager
async def running(*coroutines: Any) -> AsyncIterator[threading.Event]:
    """The coroutines run during the block and are cancelled after it; the event is set when the process is to stop."""
    stopped = threading.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopped.set)
    async with TaskGroup() as group:
        tasks = [group.create_task(coroutine, name=f"bench {index}") for index, coroutine in enumerate(coroutines)]
        yield stopped
        for task in tasks:
            task.cancel()
