"""The parts of a node that use one broker: the link, the server, and the pulls from the peers at that broker.

They start and stop together while the node and its other brokers run: a changed peer or broker in node.toml costs the
peers of the same broker one reconnect, and others nothing (`reload_plan`). At a stop the pulls end first, then the
server and the link.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

from agent.concurrency import TaskGroup
from agent.fact_store import FactStore
from agent.node import compare
from agent.node.latest import has_peer_latest, latest_lookup, peer_latest, save_peer_latest
from agent.node.pairing import LeadDesk
from agent.replication.mqtt import BrokerLink, Requester
from agent.replication.pki import Identity
from agent.replication.pulling import (
    SPREAD_MS,
    SPREAD_OF_PULL_MS,
    LatestSeed,
    PageJudge,
    Puller,
    PullSettings,
    ReceiverSettings,
    ThrottledRequester,
)
from agent.replication.serving import PeerRights, Server, Turns
from agent.settings.node import NodeSettings
from agent.settings.peers import BrokerSettings
from agent.telemetry import Telemetry

REPEATED_MS = 1_000
"""Between two requests to the node of a pair that has nothing new: so late are facts when the other one dies."""


@dataclass(frozen=True, slots=True)
class SharedParts:
    """The parts of the node that every broker uses."""

    store: FactStore
    judge: PageJudge
    telemetry: Telemetry
    queue_depth: Callable[[str], int]
    """Facts of a stream that are known to be at peers and not yet here."""
    turns: Turns
    """The order in which data is read for peers, shared by all brokers."""
    lead_desk: LeadDesk
    """Answers nodes that record for one zone, who of them leads."""


class BrokerRuntime:
    """The parts that use one broker. `settings` are the node's; they do not change while it runs."""

    def __init__(self, settings: NodeSettings, broker: BrokerSettings, shared: SharedParts) -> None:
        self._settings, self._shared = settings, shared
        self._node = settings.node.name
        self._peers = [peer for peer in settings.peer if peer.broker == broker.name]
        self.broker = broker
        self.nodes = tuple(peer.node for peer in self._peers)
        self.identities: list[Identity] = []
        """One for each connection, because each tries a new certificate by itself."""
        self.link = self._link()
        self.server = self._server()
        self._requesters = {
            peer.node: Requester(self.link, peer.node, shared.judge.messages.refuses_answer)
            for peer in self._peers
            if peer.pulls
        }
        # A connection of its own: on a slow line a claim behind pages would come after the lease has run out.
        asked = [peer.node for peer in self._peers if peer.node in settings.pair.nodes]
        self._lead_link = self._link() if asked else None
        self._lead_requesters = {
            node: Requester(self._lead_link, node, shared.judge.messages.refuses_answer)
            for node in asked
            if self._lead_link
        }
        self.bandwidths = compare.bandwidths(self._peers)
        self._latest_seeds: list[LatestSeed] = []
        self.pullers = list(self._make_pullers())
        self.comparers = compare.comparers(
            settings, shared.store, self._requesters, self.bandwidths, shared.judge, shared.telemetry
        )
        self._stop = asyncio.Event()
        self._running: asyncio.Task[None] | None = None

    def _link(self) -> BrokerLink:
        """A connection to the broker."""
        identity, store = compare.identity_of(self.broker, self._node), self._shared.store
        self.identities.append(identity)
        access = compare.access_of(self.broker, identity, self._node, lambda: store.signer)
        return BrokerLink(access, identity=identity)

    @property
    def identity(self) -> Identity:
        """That of the connection for data."""
        return self.identities[0]

    def lead_requester(self, node: str) -> Requester | None:
        """The requester of a node that is asked who leads; None if it is not at this broker."""
        return self._lead_requesters.get(node)

    def start(self, group: TaskGroup) -> None:
        """Run in `group`; once."""
        assert self._running is None, "it runs once"
        self._running = group.create_permanent(self._run(), name=f"broker {self.broker.name}", until=self._stop)

    def stop(self) -> asyncio.Task[None]:
        """Begin to stop all parts; the task is done when they have ended."""
        assert self._running is not None, "it was started"
        self._stop.set()
        return self._running

    async def _run(self) -> None:
        async with TaskGroup() as group:
            start = partial(group.create_permanent, until=self._stop)
            pulling = [
                start(_begun_after(place * SPREAD_OF_PULL_MS / 1000, puller), name="pull")
                for place, puller in enumerate(self.pullers)
            ]
            pulling += [group.create_task(seed.run(), name="latest seed") for seed in self._latest_seeds]
            pulling += [start(comparer.run(), name="compare") for comparer in self.comparers.values()]
            serving = [
                start(self.server.run(), name="serve"),
                start(self.link.run(), name=f"link {self.broker.name}"),
            ]
            if self._lead_link is not None:
                serving.append(start(self._lead_link.run(), name=f"lead link {self.broker.name}"))
            await self._stop.wait()
            for tasks in (pulling, serving):
                for task in tasks:
                    task.cancel()
                await asyncio.wait(tasks) if tasks else None

    def _server(self) -> Server:
        shared, state_dir = self._shared, self._settings.node.state_dir
        return Server(
            self.link,
            shared.store,
            self._rights(),
            look_up=latest_lookup(shared.store.reader, shared.queue_depth, partial(peer_latest, state_dir)),
            telemetry=shared.telemetry,
            refuses_request=shared.judge.messages.refuses_request,
            turns=shared.turns,
            claim_lead=shared.lead_desk.answer,
        )

    def _rights(self) -> dict[str, PeerRights]:
        """Of the peers that may ask anything here."""
        return {
            peer.node: PeerRights(frozenset(peer.exports), frozenset(peer.appends), peer.own_zones, peer.limits)
            for peer in self._peers
            if peer.exports or peer.appends or peer.node in self._shared.lead_desk.claimants
        }

    def _make_pullers(self) -> Iterator[Puller]:
        shared, state_dir = self._shared, self._settings.node.state_dir
        count = sum(len(peer.pulls) for peer in self._peers)
        for peer in self._peers:
            if not peer.pulls:
                continue
            requester = self._requesters[peer.node]
            origins = self._settings.origins_of(peer)
            shared_zones = self._settings.shared_zones(peer)
            bandwidth = self.bandwidths.get(peer.node)
            for stream in peer.pulls:
                start = peer.start_of(stream)
                receiver = ReceiverSettings(
                    start="oldest" if start == "oldest" else "end",
                    spread_ms=max(SPREAD_MS, SPREAD_OF_PULL_MS * count),
                    repeated_ms=REPEATED_MS if shared_zones else 0,
                )
                settings = PullSettings(
                    peer.node,
                    stream,
                    f"{self._node}.{stream}",
                    origins,
                    receiver=receiver,
                    shared_zones=shared_zones,
                )
                puller = Puller(
                    requester,
                    shared.store,
                    settings,
                    bandwidth=bandwidth,
                    telemetry=shared.telemetry,
                    judge=shared.judge,
                )
                if start == "latest" and not has_peer_latest(state_dir, peer.node, stream):
                    within_limit = ThrottledRequester(requester, bandwidth, telemetry=shared.telemetry)
                    save = partial(save_peer_latest, state_dir)
                    self._latest_seeds.append(LatestSeed(within_limit, stream, origins, puller.begun, save))
                yield puller


async def _begun_after(wait_s: float, puller: Puller) -> None:
    await asyncio.sleep(wait_s)
    await puller.run()
