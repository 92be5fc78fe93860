"""One node: the only place where the parts are put together, started in order, and stopped in order.

The store is opened first, then everything else starts at once in one TaskGroup; only the report "ready" waits for
brokers. At a stop the sources end first (stop reading, drain, wait for the commit), then the pulls, then the servers,
then the store. A part that ends by itself ends the node, and systemd restarts it; a source may fail alone, because it
has its own supervisor.

Nothing is decided here: the settings say which parts exist, `reload_plan` which of them restart when the settings
change, and the parts decide everything else.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import time
from collections.abc import Collection, Mapping
from datetime import UTC, datetime
from functools import partial
from typing import Any

from agent import local_socket
from agent.concurrency import TaskGroup
from agent.config import ConfigFile, InForce
from agent.errors import BsfgError, StoreBusy, StoreFull
from agent.fact_store import FactStore, StoreLocked
from agent.health import notify
from agent.health.brief import encode_health
from agent.ingest import Ingest, IngestPorts, TagFile, TagMapError, load_tag_maps
from agent.local_socket.serving import RequestHandler, open_store, serve
from agent.node import compare
from agent.node.broker_runtime import BrokerRuntime, SharedParts
from agent.node.clock import NodeClock
from agent.node.health_recorder import HealthRecorder
from agent.node.latest import facts_at_peers, latest_lookup, peer_latest
from agent.node.pairing import LEADS_FILE, LeadDesk, PairPorts, PairRunner, partner_lacks
from agent.node.reload import Reloader
from agent.node.reload_plan import ReloadPlan
from agent.node.removed_tags import find_removed_tags
from agent.node.start import Start, read_start
from agent.node.status import StatusCollector
from agent.node.stored_samples import StoredSamples
from agent.node.trust import TrustFiles
from agent.positions import begun_ms
from agent.replication.mqtt import Requester
from agent.replication.pki import IdentityWatcher
from agent.replication.serving import Turns, store_name_of
from agent.settings.node import NodeSettings
from agent.telemetry import Telemetry

log = logging.getLogger(__name__)

CHECKPOINT_TRY_S = 3600.0
LOCK_WAIT_S = 10.0
"""Time for a command that has opened the store while no node ran; after that a second node is refused."""
LOCK_STEP_S = 0.05


async def run_node(file: ConfigFile) -> None:
    """Run until SIGTERM or SIGINT; read the file again at SIGHUP. Raises BsfgError when the node cannot start or cannot
    go on."""
    start = read_start(file)
    settings = start.settings
    stop, reload_asked = asyncio.Event(), asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    loop.add_signal_handler(signal.SIGHUP, reload_asked.set)  # before the store is opened: SIGHUP would end the process
    failed_assertion = _first_assertion(loop)
    with contextlib.ExitStack() as resources:
        store = await _open_store(settings, resources)
        start.report(store)
        try:
            await Node(store, start, file, reload_asked).run(stop, failed_assertion)
        except BaseExceptionGroup as group:
            raise _first_reason(group) from group


async def _open_store(settings: NodeSettings, resources: contextlib.ExitStack) -> FactStore:
    """The node's store, closed with `resources`. Raises StoreLocked when another process has it open for long."""
    deadline, is_logged = time.monotonic() + LOCK_WAIT_S, False
    while True:
        try:
            return resources.enter_context(open_store(settings))
        except StoreLocked as error:
            if time.monotonic() >= deadline:
                raise
            if not is_logged:
                log.warning("store_locked", extra={"reason": error.why})
                is_logged = True
        await asyncio.sleep(LOCK_STEP_S)


class Node:
    """The parts of one node and their lives."""

    def __init__(
        self,
        store: FactStore,
        start: Start,
        file: ConfigFile,
        reload_asked: asyncio.Event,
    ) -> None:
        settings = start.settings
        self._store = store
        self._in_force = InForce(settings)
        self._in_force.keep_settings(settings, start.tag_files)
        self._notifier = notify.Notifier.from_environment(os.environ, os.getpid())
        self._telemetry = Telemetry()
        self._trust = TrustFiles.opened(settings, store)
        self._clock = NodeClock(store, settings.node.state_dir)
        stored = StoredSamples(store.reader)
        self._ingest = Ingest(
            settings.node.zone,
            settings.sources,
            start.tag_maps,
            IngestPorts(
                store.appends,
                stored,
                partial(find_removed_tags, store.reader),
                keep_files=self._in_force.keep_files,
                doubted=self._clock.doubted,
            ),
            problems=start.tag_problems,
            stale=start.stale,
            is_recording=not settings.pair.partner,
        )
        self._reloader = Reloader(
            settings,
            file,
            self._trust,
            self._carry_out,
            reload_asked,
            tag_maps=self._ingest.tag_maps,
            not_in_force=start.not_in_force,
        )
        desk = LeadDesk(
            settings.lead_claimants,
            settings.node.state_dir / LEADS_FILE,
            lambda: store_name_of(store.zone, store.node, store.life),
            settings.pair.partner,
        )
        self._shared = SharedParts(store, self._trust.judge, self._telemetry, self._queue_depth, Turns(), desk)
        self._runtimes = {broker.name: BrokerRuntime(settings, broker, self._shared) for broker in settings.broker}
        self._identities = [identity for runtime in self._runtimes.values() for identity in runtime.identities]
        self._pair = self._make_pair(settings, desk)
        self._collector = StatusCollector(
            store, self._runtimes, self._ingest, self._telemetry, self._reloader, clock=self._clock, pair=self._pair
        )
        self._group: TaskGroup | None = None
        self._readiness: asyncio.Task[None] | None = None
        self._is_served = asyncio.Event()

    async def run(self, stop: asyncio.Event, failed_assertion: asyncio.Future[None]) -> None:
        """Run all parts until `stop`, then end them in order. `failed_assertion` fails when an assertion failed outside
        of any task.

        Raises an ExceptionGroup with the error of the part that ended by itself.
        """
        settings = self._reloader.settings
        state_dir = settings.node.state_dir
        await asyncio.to_thread(self._collector.recall)
        async with TaskGroup() as group:
            self._group, start = group, partial(group.create_permanent, until=stop)
            ingest = start(self._ingest.run(), name="ingest")
            watching = [
                # It ends the group when the store has failed at its disk: no part may go on without it.
                start(_until(asyncio.wrap_future(self._store.ended)), name="store"),
                start(_until(failed_assertion), name="assertions"),
                start(self._clock.run(), name="clock"),
                start(self._collector.run(), name="status"),
                start(notify.watch(self._notifier, self._collector.progress, self._status), name="notify"),
                start(HealthRecorder(self._store, self._collector.judge).run(), name="health"),
                start(self._checkpoint_daily(), name="checkpoints"),
                start(self._trust.run(), name="trust"),
                start(IdentityWatcher(self._identities).run(), name="identities"),
            ]
            pairing = [] if self._pair is None else [start(self._pair.run(), name="pair")]
            for runtime in self._runtimes.values():
                runtime.start(group)
            self._wait_for_readiness(group)
            handler = RequestHandler(
                self._store,
                self._compare,
                self._ingest,
                self._reload,
                status=lambda everything: encode_health(*self._collector.judge(), everything=everything),
                look_up=latest_lookup(self._store.reader, self._queue_depth, partial(peer_latest, state_dir)),
                switch=None if self._pair is None else self._pair.switch,
            )
            local = start(serve(handler, state_dir, self._is_served.set), name="local")
            reloading = start(self._reloader.run(), name="reload")
            log.info("node_started", extra={"zone": self._store.zone, "life": self._store.life.hex()})
            await stop.wait()
            log.info("node_stopping", extra={"zone": self._store.zone})
            self._notifier.stopping()
            await _cancelled([reloading])  # from here on no part starts
            self._ingest.stop()
            await ingest  # first: what the sources have read is committed while the store still runs
            await _cancelled(pairing)
            if self._pair is not None:
                await self._pair.leave()
            await _ended([runtime.stop() for runtime in self._runtimes.values()])
            assert self._readiness is not None
            await _cancelled([local])
            await _cancelled([self._readiness, *watching])
        log.info("node_stopped", extra={"zone": self._store.zone})

    def _make_pair(self, settings: NodeSettings, desk: LeadDesk) -> PairRunner | None:
        """What asks who leads, if another node records for our zone."""
        partner = settings.pair.partner
        if not partner:
            return None

        def requester_of(node: str) -> Requester | None:
            found = (runtime.lead_requester(node) for runtime in self._runtimes.values())
            return next((requester for requester in found if requester is not None), None)

        def lacks(ends: Mapping[str, int]) -> str:
            exports = (peer.exports for peer in self._reloader.settings.peer if peer.node == partner)
            frontiers = {
                consumer.name: consumer.frontier for consumer in self._store.consumers.all() if consumer.zone == partner
            }
            return partner_lacks(partner, next(exports, ()), ends, frontiers)

        ports = PairPorts(
            self._store,
            self._ingest,
            requester_of,
            accepts=lambda: not self._store.refuses_appends,
            ends=lambda: {stream.name: stream.end_offset for stream in self._store.streams()},
            lacks=lacks,
            unseen_s=lambda: self._collector.unseen_s(partner),
            zone_term=_zone_term(self._store),
        )
        return PairRunner(settings, ports, desk)

    def _wait_for_readiness(self, group: TaskGroup) -> None:
        """Report ready once. If the brokers have changed before, begin to wait again."""
        if self._readiness is not None:
            self._readiness.cancel()
        if not self._notifier.is_ready:
            self._readiness = group.create_task(self._report_ready(), name="ready")

    async def _reload(self) -> local_socket.Reloaded:
        plan = await self._reloader.reload()
        problems = list[str]()
        try:  # as the files are now: the watch may not have seen the edit that this reload is about
            await asyncio.to_thread(load_tag_maps, plan.settings.sources)
        except TagMapError as error:
            problems = list(map(str, error.problems))
        return local_socket.Reloaded(list(plan.applied), list(plan.needs_restart), problems)

    async def _carry_out(self, plan: ReloadPlan, tag_files: Mapping[str, TagFile]) -> None:
        """Apply the plan. Parts that it does not name go on undisturbed."""
        settings, group = plan.settings, self._group
        assert group is not None, "a node that runs"
        if plan.has_new_limits:
            holds = {peer.node: peer.zone_limit for peer in settings.peer}
            self._store.set_limits(settings.store.bytes_max, settings.stream, holds, settings.pair_zones)
        self._shared.lead_desk.claimants = settings.lead_claimants
        if plan.has_new_trust:
            self._trust.reconfigure(settings)
        # Also if no source changes: what was not in force kept tag files unread, and removed tags unrecorded.
        await self._ingest.change(settings.sources, {name: found.map for name, found in tag_files.items()})
        ending = [self._runtimes.pop(name).stop() for name in plan.brokers & self._runtimes.keys()]
        await _ended(ending)
        for broker in settings.broker:
            if broker.name in plan.brokers:
                self._runtimes[broker.name] = BrokerRuntime(settings, broker, self._shared)
                self._runtimes[broker.name].start(group)
        self._identities[:] = [identity for runtime in self._runtimes.values() for identity in runtime.identities]
        if plan.brokers:
            self._wait_for_readiness(group)
        files = {name: found.data for name, found in tag_files.items()}
        await asyncio.to_thread(self._in_force.keep_settings, settings, files)

    async def _compare(self, request: local_socket.ComparePeer) -> local_socket.Compared:
        known = {zone: comparer for runtime in self._runtimes.values() for zone, comparer in runtime.comparers.items()}
        return await compare.compare(known, request)

    async def _checkpoint_daily(self) -> None:
        """Record the day's checkpoint. The store keeps one for each date."""
        while True:
            with contextlib.suppress(StoreBusy, StoreFull):  # the next hour does it
                await asyncio.wrap_future(self._store.checkpoint(datetime.now(UTC).date().isoformat()))
            await asyncio.sleep(CHECKPOINT_TRY_S)

    def _queue_depth(self, stream: str) -> int:
        pullers = [puller for runtime in self._runtimes.values() for puller in runtime.pullers]
        return facts_at_peers((puller.statistics() for puller in pullers), stream)

    async def _report_ready(self) -> None:
        """Ready: the store is open, programs can connect, and every broker that is not optional has been reached."""
        await self._is_served.wait()
        for runtime in list(self._runtimes.values()):
            if not runtime.broker.optional:
                await runtime.link.wait_up()
        self._notifier.ready()
        log.info("node_ready", extra={"zone": self._store.zone})

    def _status(self) -> str:
        return self._collector.judge()[1].summary()


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


async def _cancelled(tasks: Collection[asyncio.Task[None]]) -> None:
    """Cancel tasks and wait for their end."""
    for task in tasks:
        task.cancel()
    await _ended(tasks)


async def _ended(tasks: Collection[asyncio.Task[None]]) -> None:
    await asyncio.wait(tasks) if tasks else None


def _zone_term(store: FactStore) -> int:
    """The number of the newest life of the zone that is held here, whichever node has recorded it."""
    found = [store.reader.zone_held(stream.name, store.zone) for stream in store.streams()]
    return max((begun_ms(held.newest.life) for held in found if held is not None), default=0)


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
