"""Nodes for replication tests: a store with a server or pulls, on a real broker, made with the node's own settings and
error tables."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any
from weakref import WeakSet

from click.testing import CliRunner

from agent.cli import bsfg
from agent.config import ConfigFile
from agent.fact_store.store import FactStore
from agent.local_socket.serving import open_store
from agent.message import Sample, TagDefinition
from agent.node.compare import access_of, identity_of
from agent.node.latest import latest_lookup, peer_latest
from agent.node.node import Node as WholeNode
from agent.node.start import Start
from agent.replication.mqtt.carrier import Access
from agent.replication.mqtt.link import BrokerLink
from agent.replication.mqtt.requester import Requester
from agent.replication.protocol.pacing import BYTES_MAX
from agent.replication.protocol.token_bucket import TokenBucket
from agent.replication.pulling import EvidenceFolder, PageJudge, Puller, PullSettings, TrustPolicy
from agent.replication.pulling.receiving.pull_events import ReceiverSettings
from agent.replication.serving.admission import PeerRights
from agent.replication.serving.server import Server
from agent.settings.peers import BrokerSettings
from agent.settings.store import StoreSettings, StreamSettings
from agent.signing.records import RecordSigner
from tests.support.mosquitto import Mosquitto
from tests.waiting import LIMIT_S, wait_until_async

STREAM = "facts.telemetry"
OPENED = WeakSet[FactStore]()
"""The stores of nodes: `conftest` closes at the end of a test what it has left open."""
IMPATIENT = ReceiverSettings(wait_ms=200, answer_timeout_ms=500, backoff_ms_min=20, backoff_ms_max=500, blocked_ms=500)
"""A receiver for tests that take a peer away or block a stream: with the product's settings it tries again after up to
a minute."""


def access(broker: Mosquitto, zone: str) -> Access:
    """The address of the broker and the identity of `zone`."""
    return link_to(broker, zone).access


def link_to(broker: Mosquitto, zone: str, signer: RecordSigner | None = None) -> BrokerLink:
    """The link of `zone` to the broker, with an identity that may be replaced, as a node has; `signer` signs its
    requests."""
    mine = broker.identity(zone)
    settings = BrokerSettings("private", broker.host, mine.ca_file, mine.cert_file, mine.key_file, port=broker.port)
    identity = identity_of(settings, zone)
    return BrokerLink(access_of(settings, identity, zone, lambda: signer), identity=identity)


@dataclass
class Node:
    """Store and link of one zone; a server and pulls are added before `running`."""

    zone: str
    store: FactStore
    link: BrokerLink
    settings: StoreSettings
    judge: PageJudge
    server: Server | None = None
    requesters: dict[str, Requester] = field(default_factory=dict)
    pullers: list[Puller] = field(default_factory=list)

    @classmethod
    def open(
        cls,
        broker: Mosquitto,
        zone: str,
        folder: Path,
        settings: StoreSettings | None = None,
        streams: Sequence[StreamSettings] = (),
        signer: RecordSigner | None = None,
        policy: TrustPolicy | None = None,
    ) -> "Node":
        """A node with its store in `folder`, opened as `bsfg run` opens it. Settings are the product's defaults; a test
        that needs others says why. It signs its facts with `signer`, and trusts others as `policy` says."""
        folder.mkdir(parents=True, exist_ok=True)
        settings = settings or StoreSettings()
        store = FactStore.open(
            folder / f"{zone}.db", zone, settings=settings, streams=streams, signer=signer, unattended=True
        )
        OPENED.add(store)
        judge = PageJudge(store, policy, EvidenceFolder(folder / "declined"))
        return cls(zone, store, link_to(broker, zone, signer), settings, judge)

    def serve(
        self,
        exports: dict[str, Iterable[str]],
        appends: dict[str, Iterable[str]] | None = None,
        peer_latest_in: Path = Path("/nonexistent"),
        **settings: Any,
    ) -> Server:
        """Serve these zones: streams they may read, streams they may append to. `peer_latest_in`: folder of the latest
        values received from peers; `settings`: of the server."""
        appends = appends or {}
        peers = {
            zone: PeerRights(frozenset(exports.get(zone, ())), frozenset(appends.get(zone, ())))
            for zone in exports | appends
        }
        look_up = latest_lookup(self.store.reader, lambda _: 0, partial(peer_latest, peer_latest_in))
        settings = {"refuses_request": self.judge.messages.refuses_request, **settings}
        self.server = Server(self.link, self.store, peers, look_up=look_up, **settings)
        return self.server

    def requester(self, peer_node: str) -> Requester:
        """The requester for `peer_node`."""
        if peer_node not in self.requesters:
            self.requesters[peer_node] = Requester(self.link, peer_node, self.judge.messages.refuses_answer)
        return self.requesters[peer_node]

    def pull(
        self,
        peer_node: str,
        relays: Iterable[str] = (),
        stream: str = STREAM,
        bandwidth: TokenBucket | None = None,
        page_bytes_max: int = BYTES_MAX,
        **settings: object,
    ) -> Puller:
        """Pull a stream of `peer_node`."""
        origins = frozenset({peer_node, *relays})
        receiver = ReceiverSettings(page_bytes_max=page_bytes_max)
        pull = PullSettings(peer_node, stream, f"{self.zone}.{stream}", origins, receiver=receiver)
        requester, pull = self.requester(peer_node), replace(pull, **settings)
        puller = Puller(requester, self.store, pull, bandwidth=bandwidth, judge=self.judge)
        self.pullers.append(puller)
        return puller

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator["Node"]:
        """Run all parts in one task group, connected; stop them in order afterwards."""
        work = [self.link.run(), *(puller.run() for puller in self.pullers)]
        if self.server is not None:
            work.append(self.server.run())
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(coroutine) for coroutine in work]
            try:
                async with asyncio.timeout(LIMIT_S):
                    await self.link.wait_up()
                yield self
            finally:
                for task in reversed(tasks):
                    task.cancel()

    async def append(self, first: int, count: int) -> None:
        """Append `count` facts of one tag from number `first`, and wait until they are durable, batch by batch: of
        `batch_facts_target` facts, which are committed at once, and the rest after `commit_interval_ms`."""
        await define(self.store, "line1/temperature")
        batch = self.settings.batch_facts_target
        for start in range(first, first + count, batch):
            rows = samples(start, min(batch, first + count - start))
            await asyncio.wrap_future(self.store.appends.append_samples(STREAM, rows))

    async def wait_end(self, end_offset: int, stream: str = STREAM) -> None:
        """Wait until the stream ends at `end_offset`."""
        await wait_until_async(
            lambda: self.store.end_offset(stream) >= end_offset, f"{self.zone} to reach {end_offset}"
        )


@contextlib.asynccontextmanager
async def whole_node(folder: Path, broker: Mosquitto, zone: str, peer: str) -> AsyncIterator[Path]:
    """The whole node of `zone` in `folder`, as `bsfg run` makes it, with one peer; yields its node.toml when it is
    connected."""
    file = write_node_toml(folder, broker, zone, peer)
    config, stop = ConfigFile(file), asyncio.Event()
    settings = config.load()
    with open_store(settings) as store:
        node = WholeNode(store, Start(settings), config, asyncio.Event())
        async with asyncio.TaskGroup() as group:
            group.create_task(node.run(stop, asyncio.get_running_loop().create_future()))
            try:
                async with asyncio.timeout(LIMIT_S):
                    await node._runtimes["site"].link.wait_up()
                yield file
            finally:
                stop.set()


async def run_commands(node: Node, commands: Iterable[Sequence[str]]) -> list[tuple[int, str]]:
    """Exit status and output of each `bsfg` command, run while the node runs; its store is closed afterwards."""
    async with node.running():
        done = [await asyncio.to_thread(CliRunner().invoke, bsfg, command) for command in commands]
    node.store.close()
    return [(result.exit_code, result.output + str(result.exception or "")) for result in done]


def write_node_toml(folder: Path, broker: Mosquitto, zone: str, peer: str) -> Path:
    """Write the node.toml of a zone at this broker, with the lines of one peer."""
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / "node.toml"
    file.write_text(f'[node]\nzone = "{zone}"\n{broker.section(zone)}[[peer]]\nbroker = "site"\n{peer}\n')
    return file


async def define(store: FactStore, *names: str) -> list[int]:
    """Define tags by name."""
    return await asyncio.wrap_future(store.appends.define([TagDefinition(subject=f"tag:{name}") for name in names]))


def samples(first: int, count: int, tag: int = 1) -> Sequence[Sample]:
    """Consecutive samples of one tag."""
    return [
        Sample(tag, 1_700_000_000_000_000_000 + number * 1_000_000, float(number), 0)
        for number in range(first, first + count)
    ]


def sealed(store: FactStore, stream: str = STREAM) -> list[bytes]:
    """Every batch of a stream, byte for byte."""
    found, after = [], 0
    while page := store.read(stream, after, 100_000, 10_000_000).batches:
        found += [batch.sealed for batch in page]
        after = page[-1].last_offset
    return found
