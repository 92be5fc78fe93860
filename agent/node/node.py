"""One node: the only place where the parts are put together, started in order, and stopped in order.

Start: store, then everything else at once in one TaskGroup; a broker that is away delays nobody but the word "ready". Stop:
first the sources (stop taking, drain, see it committed), then the pulls, then what serves others, then the store. A part that
ends by itself ends the node, and systemd starts it again; the one thing that may fail alone is a source, and it has its own
supervisor.

Nothing is decided here: which parts exist follows from the settings, everything else from the parts.
"""

from __future__ import annotations

import asyncio
import logging
import signal
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

from agent import local_socket
from agent.config import NodeSettings
from agent.errors import BsfgError
from agent.fact_store import (
    AcksRefused,
    ArtifactMismatch,
    ArtifactMissing,
    ArtifactRefused,
    ArtifactsFull,
    ArtifactTooLarge,
    ConfirmBeyondLog,
    ConfirmRefused,
    ConsumerFenced,
    ConsumerNotYours,
    ConsumerStreamMismatch,
    FactsRefused,
    FactStore,
    StoreBusy,
    StoreError,
    StoreFull,
    StreamIsLocal,
    UnknownConsumer,
)
from agent.health import notify, server
from agent.health.verdict import assess
from agent.ingest.supervisor import Ingest
from agent.ingest.tags.file import load_tag_maps
from agent.ingest.tags.tag_map import TagMap
from agent.node import compare
from agent.node.latest import look_up_in
from agent.node.peer_latest_cache import heard_rows, is_kept, keep
from agent.node.status import Figures
from agent.replication.mqtt import Asker, Link
from agent.replication.pki import IdentityWatch
from agent.replication.protocol import ReceiverSettings
from agent.replication.pulling import LatestSeed, Puller, PullSettings, ThrottledRequester
from agent.replication.serving import Server
from agent.telemetry import Telemetry

log = logging.getLogger(__name__)

_NOT_NOW = (StoreBusy, StoreFull)  # what a source waits out; a store that has failed ends the node by `ended`

# What the store says to what a peer asked, in the words of the protocol. The server has looked before it asked the store, so
# those about consumers are races: one that was removed meanwhile, a stream that may not leave. The rest is about appends.
_REFUSALS: Mapping[type[Exception], str] = {
    AcksRefused: "bad_request",
    ArtifactMismatch: "artifact_mismatch",
    ArtifactMissing: "unknown_artifact",
    ArtifactRefused: "bad_request",
    ArtifactTooLarge: "artifact_too_large",
    FactsRefused: "bad_request",
    StoreFull: "store_full",
    ArtifactsFull: "store_full",
    UnknownConsumer: "unknown_consumer",
    ConsumerFenced: "fenced",
    ConsumerNotYours: "consumer_not_yours",
    ConsumerStreamMismatch: "consumer_stream_mismatch",
    StreamIsLocal: "stream_not_exported",
    ConfirmBeyondLog: "confirm_beyond_log",
    ConfirmRefused: "bad_request",
}


async def run_node(settings: NodeSettings) -> None:
    """Run until SIGTERM or SIGINT. Raises BsfgError when the node cannot start or cannot go on."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    mistake = _first_mistake(loop)
    tag_maps = load_tag_maps(settings.sources)
    with local_socket.open_store(settings) as store:
        try:
            await Node(settings, store, tag_maps).run(stop, mistake)
        except BaseExceptionGroup as group:
            raise _first_reason(group) from group


class Node:
    """The parts of one node and their lives."""

    def __init__(self, settings: NodeSettings, store: FactStore, tag_maps: Mapping[str, TagMap]) -> None:
        self._settings = settings
        self._store = store
        self._notifier = notify.notifier()
        identities = [compare.identity_of(broker, settings.node.zone) for broker in settings.broker]
        self._identities = IdentityWatch(identities)
        self._links = {
            broker.name: Link(compare.access_of(broker, identity, settings.node.zone), identity=identity)
            for broker, identity in zip(settings.broker, identities, strict=True)
        }
        self._telemetry = Telemetry()
        self._servers = [self._server(name, link) for name, link in self._links.items()]
        self._first_values: list[LatestSeed] = []
        self._askers = {peer.zone: Asker(self._links[peer.broker], peer.zone) for peer in settings.peer if peer.pulls}
        self._bandwidths = compare.bandwidths(settings)
        self._pullers = list(self._make_pullers())
        self._comparers = compare.comparers(settings, store, self._askers, self._bandwidths, self._telemetry)
        self._ingest = Ingest(settings.node.zone, settings.sources, tag_maps, store, _NOT_NOW)
        self._figures = Figures(
            *(settings, store, self._links, self._servers, self._pullers, self._ingest, self._telemetry),
            comparers=self._comparers.values(),
        )

    async def run(self, stop: asyncio.Event, mistake: asyncio.Future[None]) -> None:
        """Run all parts until `stop`, then end them in order. `mistake` fails when an assertion did outside of any task."""
        health = self._settings.health
        async with asyncio.TaskGroup() as group:
            ingest = group.create_task(self._ingest.run(), name="ingest")
            watching = [
                group.create_task(self._until_the_store_fails(), name="store"),
                group.create_task(_until(mistake), name="mistakes"),
                group.create_task(self._figures.run(), name="figures"),
                group.create_task(
                    server.serve(health.listen_host, health.listen_port, self._figures.snapshot), name="health"
                ),
                group.create_task(notify.watch(self._notifier, self._figures.progress, self._status), name="notify"),
                group.create_task(self._tell_ready(), name="ready"),
            ]
            if self._links:
                watching.append(group.create_task(self._identities.run(), name="identities"))
            pulling = [group.create_task(puller.run(), name="pull") for puller in self._pullers]
            pulling += [group.create_task(each.run(), name="first values") for each in self._first_values]
            pulling += [group.create_task(each.run(), name="compare") for each in self._comparers.values()]
            serving = [group.create_task(each.run(), name="serve") for each in self._servers]
            serving += [group.create_task(link.run(), name=f"link {name}") for name, link in self._links.items()]
            door = local_socket.Door(self._store, partial(compare.compare, self._comparers))
            serving.append(group.create_task(local_socket.serve(door, self._settings.node.state_dir), name="local"))
            log.info("node_started", extra={"zone": self._store.zone, "epoch": self._store.epoch.hex()})
            await stop.wait()
            log.info("node_stopping", extra={"zone": self._store.zone})
            self._notifier.stopping()
            self._ingest.stop()
            await ingest
            for tasks in (pulling, serving, watching):
                for task in tasks:
                    task.cancel()
                await asyncio.wait(tasks) if tasks else None
        log.info("node_stopped", extra={"zone": self._store.zone})

    def _server(self, broker: str, link: Link) -> Server:
        peers = [peer for peer in self._settings.peer if peer.broker == broker]
        return Server(
            link,
            self._store,
            {peer.zone: frozenset(peer.exports) for peer in peers if peer.exports},
            (StoreError,),
            _REFUSALS,
            appends={peer.zone: frozenset(peer.appends) for peer in peers if peer.appends},
            look_up=look_up_in(
                self._store.reader, self._queue_depth, partial(heard_rows, self._settings.node.state_dir)
            ),
            telemetry=self._telemetry,
        )

    def _queue_depth(self, stream: str) -> int:
        """Facts of a stream that are known to be at peers and not yet here."""
        pulls = [pull for each in self._pullers if (pull := each.statistics()).stream == stream]
        return sum(max(0, pull.peer_end_offset - pull.offset) for pull in pulls)

    def _make_pullers(self) -> Iterator[Puller]:
        zone = self._settings.node.zone
        for peer in self._settings.peer:
            if not peer.pulls:
                continue
            asker = self._askers[peer.zone]
            origins = frozenset({peer.zone, *peer.relays})
            bandwidth = self._bandwidths.get(peer.zone)
            for stream in peer.pulls:
                start = peer.start_of(stream)
                receiver = ReceiverSettings(start="oldest" if start == "oldest" else "end")
                settings = PullSettings(peer.zone, stream, f"{zone}.{stream}", origins, receiver=receiver)
                puller = Puller(
                    asker, self._store, settings, (StoreError,), bandwidth=bandwidth, telemetry=self._telemetry
                )
                if start == "latest" and not is_kept(self._settings.node.state_dir, peer.zone, stream):
                    keep_here = partial(keep, self._settings.node.state_dir)
                    paying = ThrottledRequester(asker, bandwidth, telemetry=self._telemetry)
                    self._first_values.append(LatestSeed(paying, stream, origins, puller.begun, keep_here))
                yield puller

    async def _until_the_store_fails(self) -> None:
        """Raises when the disk failed the store: nothing may go on without it."""
        await asyncio.wrap_future(self._store.ended)

    async def _tell_ready(self) -> None:
        """Ready means: the store is open, and every broker that is not optional has been reached."""
        for broker in self._settings.broker:
            if not broker.optional:
                await self._links[broker.name].wait_up()
        self._notifier.ready()
        log.info("node_ready", extra={"zone": self._store.zone})

    def _status(self) -> str:
        return assess(self._figures.snapshot()).summary()


def _first_mistake(loop: asyncio.AbstractEventLoop) -> asyncio.Future[None]:
    """Fails with the first AssertionError of a callback, which asyncio would log and forget, leaving a part standing still."""
    mistake: asyncio.Future[None] = loop.create_future()

    def noticed(_: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        loop.default_exception_handler(context)
        error = context.get("exception")
        if isinstance(error, AssertionError) and not mistake.done():
            mistake.set_exception(error)

    loop.set_exception_handler(noticed)
    return mistake


async def _until(ended: asyncio.Future[None]) -> None:
    await ended


def _first_reason(group: BaseExceptionGroup[BaseException]) -> BaseException:
    """What an operator is told: the first error of ours, or the group itself when it is our own mistake."""
    ours = group.subgroup(BsfgError)
    if ours is None or group.subgroup(AssertionError) is not None:
        return group
    error: BaseException = ours
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error
