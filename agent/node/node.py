"""One node: the only place where the parts are put together, started in order, and stopped in order.

The store is opened first, then everything else starts at once in one TaskGroup; only the report "ready" waits for
brokers. At a stop the sources end first (stop reading, drain, wait for the commit), then the pulls, then the servers,
then the store. A part that ends by itself ends the node, and systemd restarts it; a source may fail alone, because it
has its own supervisor.

Nothing is decided here: the settings say which parts exist, and the parts decide everything else.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from functools import partial
from typing import Any

from agent import local_socket
from agent.config import NodeSettings
from agent.errors import BsfgError
from agent.fact_store import FactStore, StoreBusy, StoreFull
from agent.health import notify, server
from agent.health.verdict import assess
from agent.ingest import LEARNED, Ingest, SourceMemory, TagMap, load_tag_maps
from agent.node import compare
from agent.node.latest import has_peer_latest, latest_lookup, peer_latest, save_peer_latest
from agent.node.own_proof import OwnProof
from agent.node.removed_tags import find_removed_tags
from agent.node.status import StatusCollector
from agent.node.store_errors import REFUSAL_CODES, STORE_ERRORS
from agent.node.stored_samples import StoredSamples
from agent.node.trust import TrustFiles, requests_signer
from agent.replication.mqtt import Link, Requester
from agent.replication.pki import IdentityWatcher
from agent.replication.protocol.pull_events import ReceiverSettings
from agent.replication.pulling import HeadsWatch, LatestSeed, Puller, PullSettings, ThrottledRequester
from agent.replication.serving import Server
from agent.signing.freshness import Freshness
from agent.telemetry import Telemetry

log = logging.getLogger(__name__)

CHECKPOINT_TRY_S = 3600.0
_SOURCE_RETRIES = (StoreBusy, StoreFull)  # a source waits and tries again; a store that has failed ends the node


async def run_node(settings: NodeSettings, is_config_changed: Callable[[], bool] = lambda: False) -> None:
    """Run until SIGTERM or SIGINT. `is_config_changed` says whether node.toml is another than `settings`. Raises BsfgError when the node cannot start or cannot go on."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    failed_assertion = _first_assertion(loop)
    tag_maps = load_tag_maps(settings.sources)
    with local_socket.open_store(settings) as store:
        try:
            await Node(settings, store, tag_maps, is_config_changed).run(stop, failed_assertion)
        except BaseExceptionGroup as group:
            raise _first_reason(group) from group


class Node:
    """The parts of one node and their lives."""

    def __init__(
        self,
        settings: NodeSettings,
        store: FactStore,
        tag_maps: Mapping[str, TagMap],
        is_config_changed: Callable[[], bool] = lambda: False,
    ) -> None:
        self._settings = settings
        self._store = store
        self._notifier = notify.Notifier.from_environment(os.environ, os.getpid())
        identities = [compare.identity_of(broker, settings.node.zone) for broker in settings.broker]
        self._identities = IdentityWatcher(identities)
        signer = requests_signer(settings)
        self._links = {
            broker.name: Link(compare.access_of(broker, identity, settings.node.zone, signer), identity=identity)
            for broker, identity in zip(settings.broker, identities, strict=True)
        }
        self._telemetry = Telemetry()
        self._freshness = Freshness()
        self._heads_watches: list[HeadsWatch] = []
        self._trust = TrustFiles.opened(settings, store)
        self._judge = self._trust.judge
        self._servers = [self._server(name, link) for name, link in self._links.items()]
        self._latest_seeds: list[LatestSeed] = []
        self._requesters = {
            peer.zone: Requester(self._links[peer.broker], peer.zone, self._judge.refuses_answer)
            for peer in settings.peer
            if peer.pulls
        }
        self._bandwidths = compare.bandwidths(settings)
        self._pullers = list(self._make_pullers())
        self._comparers = compare.comparers(
            *(settings, store, self._requesters, self._bandwidths, self._judge, self._telemetry)
        )
        stored = StoredSamples(store.reader, lambda: store.origin)
        self._ingest = Ingest(
            *(settings.node.zone, settings.sources, tag_maps, store.appends, _SOURCE_RETRIES),
            stored=stored,
            memory=SourceMemory(settings.node.state_dir / LEARNED),
            find_removed=lambda subjects: find_removed_tags(store.reader, store.origin, subjects),
        )
        self._collector = StatusCollector(
            *(settings, store, self._links, self._servers, self._pullers, self._ingest, self._telemetry),
            comparers=self._comparers.values(),
            freshness=self._freshness,
            is_config_changed=is_config_changed,
        )

    async def run(self, stop: asyncio.Event, failed_assertion: asyncio.Future[None]) -> None:
        """Run all parts until `stop`, then end them in order. `failed_assertion` fails when an assertion failed outside
        of any task.

        Raises an ExceptionGroup with the error of the part that ended by itself.
        """
        health = self._settings.health
        async with asyncio.TaskGroup() as group:
            ingest = group.create_task(self._ingest.run(), name="ingest")
            watching = [
                group.create_task(self._until_the_store_fails(), name="store"),
                group.create_task(_until(failed_assertion), name="assertions"),
                group.create_task(self._collector.run(), name="status"),
                group.create_task(
                    server.serve(health.listen_host, health.listen_port, self._collector.snapshot), name="health"
                ),
                group.create_task(notify.watch(self._notifier, self._collector.progress, self._status), name="notify"),
                group.create_task(self._report_ready(), name="ready"),
                group.create_task(self._checkpoint_daily(), name="checkpoints"),
                group.create_task(self._trust.run(), name="trust"),
            ]
            if self._links:
                watching.append(group.create_task(self._identities.run(), name="identities"))
            pulling = [group.create_task(puller.run(), name="pull") for puller in self._pullers]
            pulling += [group.create_task(each.run(), name="latest seed") for each in self._latest_seeds]
            pulling += [group.create_task(each.run(), name="heads") for each in self._heads_watches]
            pulling += [group.create_task(each.run(), name="compare") for each in self._comparers.values()]
            serving = [group.create_task(each.run(), name="serve") for each in self._servers]
            serving += [group.create_task(link.run(), name=f"link {name}") for name, link in self._links.items()]
            handler = local_socket.RequestHandler(
                *(self._store, partial(compare.compare, self._comparers)),
                sources=self._ingest,
            )
            serving.append(group.create_task(local_socket.serve(handler, self._settings.node.state_dir), name="local"))
            log.info("node_started", extra={"zone": self._store.zone, "epoch": self._store.epoch.hex()})
            await stop.wait()
            log.info("node_stopping", extra={"zone": self._store.zone})
            self._notifier.stopping()
            self._ingest.stop()
            await ingest  # before all else: what the sources have read is committed while the store still runs
            for tasks in (pulling, serving, watching):
                for task in tasks:
                    task.cancel()
                await asyncio.wait(tasks) if tasks else None
        log.info("node_stopped", extra={"zone": self._store.zone})

    async def _checkpoint_daily(self) -> None:
        """Record the day's checkpoint, which the store keeps once for each date."""
        while True:
            with contextlib.suppress(*_SOURCE_RETRIES):  # the next hour does it
                await asyncio.wrap_future(self._store.checkpoint(datetime.now(UTC).date().isoformat()))
            await asyncio.sleep(CHECKPOINT_TRY_S)

    def _server(self, broker: str, link: Link) -> Server:
        peers = [peer for peer in self._settings.peer if peer.broker == broker]
        return Server(
            link,
            self._store,
            {peer.zone: frozenset(peer.exports) for peer in peers if peer.exports},
            STORE_ERRORS,
            REFUSAL_CODES,
            appends={peer.zone: frozenset(peer.appends) for peer in peers if peer.appends},
            look_up=latest_lookup(
                self._store.reader, self._queue_depth, partial(peer_latest, self._settings.node.state_dir)
            ),
            telemetry=self._telemetry,
            limits={peer.zone: peer.limits for peer in peers},
            is_proven=OwnProof(self._store, self._judge),
            ends_known=self._freshness.newest,
            refuses_request=self._judge.refuses_request,
            signer=link.access.signer,
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
            requester = self._requesters[peer.zone]
            origins = frozenset({peer.zone, *peer.relays})
            bandwidth = self._bandwidths.get(peer.zone)
            for stream in peer.pulls:
                start = peer.start_of(stream)
                receiver = ReceiverSettings(start="oldest" if start == "oldest" else "end")
                settings = PullSettings(peer.zone, stream, f"{zone}.{stream}", origins, receiver=receiver)
                puller = Puller(
                    *(requester, self._store, settings, STORE_ERRORS),
                    bandwidth=bandwidth,
                    telemetry=self._telemetry,
                    judge=self._judge,
                )
                within_limit = ThrottledRequester(requester, bandwidth, telemetry=self._telemetry)
                self._heads_watches.append(
                    HeadsWatch(within_limit, self._store, stream, origins, self._judge, self._freshness)
                )
                if start == "latest" and not has_peer_latest(self._settings.node.state_dir, peer.zone, stream):
                    save = partial(save_peer_latest, self._settings.node.state_dir)
                    self._latest_seeds.append(LatestSeed(within_limit, stream, origins, puller.begun, save))
                yield puller

    async def _until_the_store_fails(self) -> None:
        """Raises when the store has failed at its disk: no part may go on without it."""
        await asyncio.wrap_future(self._store.ended)

    async def _report_ready(self) -> None:
        """Ready: the store is open, and every broker that is not optional has been reached."""
        for broker in self._settings.broker:
            if not broker.optional:
                await self._links[broker.name].wait_up()
        self._notifier.ready()
        log.info("node_ready", extra={"zone": self._store.zone})

    def _status(self) -> str:
        return assess(self._collector.snapshot()).summary()


def _first_assertion(loop: asyncio.AbstractEventLoop) -> asyncio.Future[None]:
    """Fails with the first AssertionError of a callback. asyncio only logs it, and the part that failed would do
    nothing more."""
    failed_assertion: asyncio.Future[None] = loop.create_future()

    def on_error(_: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        loop.default_exception_handler(context)
        error = context.get("exception")
        if isinstance(error, AssertionError) and not failed_assertion.done():
            failed_assertion.set_exception(error)

    loop.set_exception_handler(on_error)
    return failed_assertion


async def _until(ended: asyncio.Future[None]) -> None:
    await ended


def _first_reason(group: BaseExceptionGroup[BaseException]) -> BaseException:
    """The error to report: the first BsfgError, or the whole group if an assertion failed."""
    ours = group.subgroup(BsfgError)
    if ours is None or group.subgroup(AssertionError) is not None:
        return group
    error: BaseException = ours
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error
