"""The status of a node, taken from its parts as one frozen snapshot, for its status, its health in the store and the
line for systemd.

Most values are read from memory. Those that cost a read from disk (space, artifacts, the end of a certificate) are
refreshed in a thread every second or minute and kept, so a request for the status never slows the node down. A value
that cannot be read is logged once and is missing; it never ends the node.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import MISSING, dataclass, field, fields, replace
from datetime import UTC, datetime
from functools import cache
from itertools import islice
from pathlib import Path
from types import NoneType
from typing import Any, TypeVar

import msgspec

from agent.batch import Origin
from agent.errors import StoreError
from agent.fact_store import ConsumerSpace, ConsumerState, FactStore, Incident, StoreSpace
from agent.health.consumer_lag import AppendWindow, LagSamples, PollWindow, PullLag
from agent.health.snapshot import (
    AbuseStatus,
    BrokerStatus,
    CatchUpStatus,
    ClockChangeStatus,
    ClockStatus,
    ComparisonStatus,
    ConsumerStatus,
    EventStatus,
    HistoryStatus,
    IntegrityStatus,
    Latency,
    NodeSnapshot,
    NotInForceStatus,
    PacingStatus,
    PeerStatus,
    RequestStatus,
    ServingStatus,
    ShareStatus,
    SourceStatus,
    SpanStatus,
    StoreStatus,
    StreamStatus,
    UnreferencedStatus,
)
from agent.health.verdict import HISTORY, Verdict, assess, since_of
from agent.health.watchdog import PartProgress
from agent.ingest import Ingest, SourceStatistics
from agent.ingest.opcua.security.file_check import first_certificate_to_end
from agent.node.broker_runtime import BrokerRuntime
from agent.node.clock import ClockChanges, NodeClock
from agent.node.health_recorder import RecordedHealth, last_recorded
from agent.node.pairing import PairRunner
from agent.node.reload import Reloader
from agent.replication.pulling import Asking, PullStatistics
from agent.telemetry import BOUNDS_S, Telemetry

REFRESH_S = 1.0
ANSWER_S_MAX = 30.0
"""A restart of a node whose peers are there is no lag."""
CERTIFICATE_REFRESHES = 5  # certificates of sources are looked at every five seconds
HISTORY_MAX = 100  # incidents that the status has
DAY_MS = 24 * 3_600_000
ABUSES_S_MAX = 300.0  # an older file is of a watch that runs no more
STALL_S = 600.0  # storage may return after minutes; a restart cannot hasten that, and loses what waits in memory

log = logging.getLogger(__name__)

T = TypeVar("T")


@dataclass(slots=True)
class _FromDisk:
    """Values that cost a read, as of the last refresh."""

    space: StoreSpace | None = None
    artifact_bytes: int = 0
    artifact_bytes_lacking: int = 0
    artifact_limit: str = ""
    artifact_unreferenced: tuple[UnreferencedStatus, ...] = ()
    source_certificates: Mapping[str, tuple[float, Path]] = field(default_factory=dict)
    clock_changes: tuple[ClockChangeStatus, ...] = ()
    history: tuple[HistoryStatus, ...] = ()
    integrity: IntegrityStatus = field(default_factory=IntegrityStatus)
    own_ends: Mapping[str, str] = field(default_factory=dict)
    broker_abuses: tuple[AbuseStatus, ...] = ()


class StatusCollector:
    """Takes the node's snapshot. Made once its parts exist."""

    def __init__(
        self,
        store: FactStore,
        runtimes: Mapping[str, BrokerRuntime],
        ingest: Ingest,
        telemetry: Telemetry,
        reloader: Reloader,
        clock_s: Callable[[], float] = time.monotonic,
        clock: NodeClock | None = None,
        pair: PairRunner | None = None,
    ) -> None:
        self._reloader = reloader
        self._store = store
        self._runtimes, self._ingest = runtimes, ingest
        self._telemetry, self._pair = telemetry, pair
        self._clock, self._clock_changes = clock, ClockChanges(store.reader)
        self._clock_s = clock_s
        self._started_unix_ms = _now_unix_ms()
        self._lags: dict[tuple[str, str], PullLag] = {}
        self._from_disk = _FromDisk()
        self._lag_samples = LagSamples()
        self._appends = AppendWindow()
        self._polls = defaultdict[str, PollWindow](PollWindow)
        self._unreadable = ""  # why the store could not be read last time
        self._turns = 0
        self._since: dict[str, int] = {}
        self._recorded: RecordedHealth | None = None

    def recall(self) -> None:
        """Take over what an earlier process recorded last: since when what was wrong is so, and how far pulls are
        behind until they are answered."""
        with suppress(StoreError):  # the store itself says what is wrong with it
            self._recorded = last_recorded(self._store)
        if self._recorded is not None:
            self._since = self._recorded.since()

    async def run(self) -> None:
        """Refresh the values that cost a read, until cancelled."""
        while True:
            if self._turns % CERTIFICATE_REFRESHES == 0:
                self._from_disk.source_certificates = await asyncio.to_thread(self._source_certificates)
            await self._reloader.check_file()
            self._from_disk.space = await asyncio.to_thread(self._read_from_disk)
            self._sample_consumers()
            self._turns += 1
            await asyncio.sleep(REFRESH_S)

    def unseen_s(self, peer: str) -> float:
        """How old a fact of a peer may be that is not here, known or not (`PullLag`)."""
        pulls = [puller.statistics() for runtime in self._runtimes.values() for puller in runtime.pullers]
        levels = [(self._sample_pull(pull)[0], pull.level_ms) for pull in pulls if pull.peer_node == peer]
        now_s = self._clock_s()
        return max((lag.unseen_s(now_s, None if ms is None else ms / 1_000) for lag, ms in levels), default=0.0)

    def snapshot(self) -> NodeSnapshot:
        """The node now."""
        store, space = self._store, self._from_disk.space
        stream_spaces = {} if space is None else {stream.name: stream for stream in space.streams}
        consumer_spaces = {} if space is None else {consumer.name: consumer for consumer in space.consumers}
        runtimes = list(self._runtimes.values())
        comparers = [comparer for runtime in runtimes for comparer in runtime.comparers.values()]
        compared = {
            (comparison.peer_node, comparison.stream): comparison
            for comparer in comparers
            for comparison in comparer.statistics()
        }
        accepted = self._reloader.settings.zones_accepted
        return NodeSnapshot(
            zone=store.zone,
            node=store.node,
            life=store.life.hex(),
            taken_unix_ms=_now_unix_ms(),
            started_unix_ms=self._started_unix_ms,
            store_fill_percent=_fill_percent(space),
            streams=tuple(
                _status(
                    StreamStatus, info, stream_spaces.get(info.name), own_end=self._from_disk.own_ends.get(info.name)
                )
                for info in store.streams()
            ),
            consumers=tuple(
                self._consumer(consumer, consumer_spaces.get(consumer.name)) for consumer in store.consumers.all()
            ),
            brokers=tuple(map(_broker, runtimes)),
            broker_abuses=self._from_disk.broker_abuses,
            peers=tuple(
                self._peer(pull, compared.get((pull.peer_node, pull.stream)), broker)
                for broker, pull in (
                    (runtime.broker.name, puller.statistics()) for runtime in runtimes for puller in runtime.pullers
                )
            ),
            sources=tuple(map(self._source, self._ingest.statistics())),
            requests=self._requests(),
            serving=self._serving(),
            store=self._store_status(),
            spans=tuple(
                _status(
                    SpanStatus,
                    measured.step,
                    measured,
                    name=measured.step.span,
                    side=measured.step.span.side,
                    stopped=Latency(measured.counts, measured.sum_s, BOUNDS_S),
                )
                for measured in self._telemetry.statistics()
            ),
            **self._certificate(),
            clock=ClockStatus() if self._clock is None else self._clock.status(),
            clock_changes=self._from_disk.clock_changes,
            history=self._from_disk.history,
            facts_unsigned=self._reloader.settings.signing.key_file is not None and store.signer is None,
            pair=None if self._pair is None else self._pair.snapshot(),
            config_changed=self._reloader.is_file_changed,
            config_refused=self._reloader.refused,
            config_not_in_force=tuple(_status(NotInForceStatus, part) for part in self._reloader.not_in_force),
            config_waits=self._reloader.needs_restart,
            since=self._since,
            zones_accepted=None if accepted is None else tuple(sorted(accepted)),
            integrity=self._from_disk.integrity,
        )

    def judge(self) -> tuple[NodeSnapshot, Verdict]:
        """The node now, and the verdict on it."""
        snapshot = self.snapshot()
        verdict = assess(snapshot)
        self._since = since_of(verdict)
        return replace(snapshot, since=self._since), verdict

    def progress(self) -> list[PartProgress]:
        """Progress for the watchdog: commits, or appends that a full disk refused, while something waits. This call
        itself proves that the event loop runs."""
        counted = self._store.statistics()
        return [
            PartProgress("store writer", counted.commits + counted.appends_failed, counted.queue_facts > 0, STALL_S)
        ]

    def _consumer(self, consumer: ConsumerState, space: ConsumerSpace | None) -> ConsumerStatus:
        behind = max(0, self._store.end_offset(consumer.stream) - consumer.frontier)
        rate = self._lag_samples.rate(consumer.name)
        return _status(
            ConsumerStatus,
            consumer,
            space,
            rate,
            state=consumer.lifecycle.value,
            behind_facts=behind,
            oldest_unconfirmed_age_s=self._age_s(consumer, space) if behind else None,
            seconds_left=rate.seconds_left if rate and behind else None,
        )

    def _sample_consumers(self) -> None:
        ends = {stream.name: stream.end_offset for stream in self._store.streams()}
        frontiers = {
            consumer.name: (consumer.stream, consumer.frontier)
            for consumer in self._store.consumers.all()
            if consumer.stream in ends
        }
        self._lag_samples.sample(self._clock_s(), ends, frontiers)

    def _sample_pull(self, pull: PullStatistics) -> tuple[PullLag, float]:
        """The lag of a pull: sampled with each snapshot, which the recorder of health takes once a second."""
        now_s = self._clock_s()
        key = pull.peer_node, pull.stream
        lag = self._lags.get(key)
        if lag is None:
            behind_s = self._recorded.behind_s(*key, _now_unix_ms()) if self._recorded and pull.offset else 0.0
            lag = self._lags[key] = PullLag(now_s, behind_s)
        return lag, lag.sample(now_s, pull.offset, pull.peer_end_offset, is_connected=_is_connected(pull))

    def _age_s(self, consumer: ConsumerState, space: ConsumerSpace | None) -> float | None:
        """How long its oldest unconfirmed fact has waited: since the fact came here, or the consumer, if that was
        later."""
        bounds = [
            self._lag_samples.age_s(consumer.stream, consumer.frontier, self._clock_s()),
            None if space is None else space.hours_held * 3600,
        ]
        known = [age_s for age_s in bounds if age_s is not None]
        since_s = (_now_unix_ms() - consumer.registered_unix_ms) / 1000
        return min([*known, since_s] if since_s >= 0 else known) if known else None  # negative: the clock was set back

    def _peer(self, pull: PullStatistics, compared: object | None = None, broker: str = "") -> PeerStatus:
        lag, lag_s = self._sample_pull(pull)
        connected = _is_connected(pull)
        return _status(
            PeerStatus,
            pull,
            pull.counters,
            zone=pull.peer_node,
            pair_zone=self._pair_zones().get(pull.peer_node, ""),
            broker=broker,
            connected=connected,
            position=pull.offset,
            end_offset=pull.peer_end_offset,
            lag_seconds=lag_s if pull.last_answer_ms is not None or self._is_overdue(pull) else None,
            lag_seconds_max=lag.lag_s_max,
            trouble=pull.lost_reason or "",
            catch_up=pull.catch_up and _status(CatchUpStatus, pull.catch_up),
            compared=compared and _status(ComparisonStatus, compared),
            pacing=_pacing(pull),
            fenced=pull.asking is Asking.FENCED,
            blocked=pull.asking is Asking.BLOCKED,
        )

    def _pair_zones(self) -> Mapping[str, str]:
        """The zone of each peer for which another peer records, too."""
        settings = self._reloader.settings
        shared = settings.pair_zones - {settings.node.zone}
        return {peer.node: peer.zone for peer in settings.peer if peer.zone in shared} if shared else {}

    def _source(self, source: SourceStatistics) -> SourceStatus:
        events = source.events
        return _status(
            SourceStatus,
            source,
            state=source.state.value,
            last_value_unix_ms=source.last_value_unix_ms or None,
            **self._source_certificate(source.name),
            trouble="" if source.connected else source.last_error,
            lost_total=source.dropped_total,
            polls_missed_percent=self._polls[source.name].sample(
                self._clock_s(), source.polls_total, source.polls_missed_total
            ),
            events=events and _status(EventStatus, events, last_event_unix_ms=events.last_event_unix_ms or None),
        )

    def _is_overdue(self, pull: PullStatistics) -> bool:
        """Whether a pull that went well in an earlier process had time enough for its first answer in this one."""
        up_ms = _now_unix_ms() - self._started_unix_ms
        return self._recorded is not None and pull.offset > 0 and up_ms >= ANSWER_S_MAX * 1000

    def _requests(self) -> RequestStatus:
        counted = self._store.statistics()
        asked = [runtime.server.statistics().requests for runtime in self._runtimes.values()]
        latency = _status(Latency, counted.append_latency, bounds_s=BOUNDS_S)
        return _status(
            RequestStatus,
            counted,
            fetches_total=sum(requests.get("FetchFacts", 0) for requests in asked),
            append_failures_total=counted.appends_failed,
            append_latency=latency,
            append_p99_s=self._appends.sample(self._clock_s(), latency),
        )

    def _serving(self) -> ServingStatus:
        """All brokers together."""
        counted = [runtime.server.statistics() for runtime in self._runtimes.values()]
        return ServingStatus(
            requests=_sums(server.requests for server in counted),
            refusals=_sums(server.refusals for server in counted),
            drops=_sums(server.drops for server in counted),
            facts_sent_total=sum(server.facts_sent for server in counted),
            bytes_sent_total=sum(server.bytes_sent for server in counted),
            waiting=sum(server.parked for server in counted),
        )

    def _store_status(self) -> StoreStatus:
        counted = self._store.statistics()
        return _status(
            StoreStatus,
            counted,
            self._from_disk,
            log_bytes=counted.wal_bytes,
            shares_used_up=tuple(ShareStatus(*share) for share in sorted(counted.shares_used_up.items())),
            written_bytes_total=_written_bytes(),
            artifact_bytes_max=self._store.artifacts.limits.total_max or None,
            artifact_unreferenced_bytes_max=self._store.artifacts.limits.unreferenced_max,
        )

    # ------------------------------------------------------------------------------------------ in a thread, from disk

    def _read_from_disk(self) -> StoreSpace | None:
        try:
            damage = self._store.integrity()
            set_aside_bytes = sum(size for _, size in damage.quarantined)
            self._from_disk.integrity = _status(IntegrityStatus, damage, set_aside_bytes=set_aside_bytes)
            artifacts = self._store.artifacts
            self._from_disk.artifact_bytes = artifacts.bytes_used()
            self._from_disk.artifact_limit, self._from_disk.artifact_bytes_lacking = artifacts.lacking()
            by_zone = sorted(artifacts.unreferenced().items())
            self._from_disk.artifact_unreferenced = tuple(UnreferencedStatus(*unreferenced) for unreferenced in by_zone)
            watched = {runtime.broker.watch_file for runtime in list(self._runtimes.values())}
            self._from_disk.broker_abuses = tuple(abuse for file in watched for abuse in read_abuses(file))
            self._from_disk.clock_changes = self._clock_changes.read(time.time_ns())
            own = self._store.zone if self._pair is not None else ""
            self._from_disk.history = _history(self._store.reader.incidents(kinds=HISTORY), _now_unix_ms(), own)
            self._from_disk.own_ends = dict(_own_ends(self._store))
            space = self._store.space()
        except (StoreError, OSError) as error:  # OSError: a folder that cannot be listed, for want of files, say
            self._note_unreadable(str(error))
            return None
        self._note_unreadable("")
        return space

    def _note_unreadable(self, why: str) -> None:
        """Log once why the store cannot be read; empty: it can."""
        if why and why != self._unreadable:
            log.error("status_unreadable", extra={"what": "space", "why": why})
        self._unreadable = why

    def _source_certificates(self) -> dict[str, tuple[float, Path]]:
        """By source: days left of the one of our certificates for it that ends first, and its file."""
        now = datetime.now(UTC)
        found = {source.name: first_certificate_to_end(source, now) for source in self._reloader.settings.sources}
        return {name: certificate for name, certificate in found.items() if certificate is not None}

    def _source_certificate(self, name: str) -> dict[str, Any]:
        days, file = self._from_disk.source_certificates.get(name, (None, ""))
        return {"certificate_days_left": days, "certificate_file": str(file)}

    def _certificate(self) -> dict[str, Any]:
        """The certificate in use that ends first, and its file; none if none is in use, which the broker's status
        reports. From memory, so that a certificate that was just taken over shows."""
        now = datetime.now(UTC)
        used = [
            (runtime.link.statistics().identity_ends, runtime.broker.cert_file)
            for runtime in [*self._runtimes.values()]
        ]
        days = [((ends - now).total_seconds() // 86_400, str(file)) for ends, file in used if ends is not None]
        left, file = min(days, default=(None, ""))
        return {"certificate_days_left": left, "certificate_file": file}


def read_abuses(file: Path) -> list[AbuseStatus]:
    """What the watch of this machine's brokers has written; nothing if none runs here."""
    try:
        if time.time() - file.stat().st_mtime > ABUSES_S_MAX:
            return []
        return msgspec.json.decode(file.read_bytes(), type=list[AbuseStatus])
    except (OSError, msgspec.MsgspecError, RecursionError):
        return []


def _is_connected(pull: PullStatistics) -> bool:
    return pull.lost_reason is None and pull.last_answer_ms is not None


def _status(kind: type[T], *parts: object, **given: object) -> T:
    """A record of the status. Each field is `given`, or is the attribute of that name of the first part that has one (a
    counter's without `_total`). If a part is missing (None), a field that only it has keeps its default."""
    found = dict[str, Any](given)
    for name, place, attribute in _sources(kind, tuple(map(type, parts)), frozenset(given)):  # type: ignore[arg-type]
        found[name] = getattr(parts[place], attribute)
    return kind(**found)


@cache
def _sources(kind: type, parts: tuple[type, ...], given: frozenset[str]) -> list[tuple[str, int, str]]:
    """Each field of a record that is not given: its name, and the place and the attribute of the part that has it.
    Found once, because a node may have thousands of peers."""
    found = list[tuple[str, int, str]]()
    for declared in fields(kind):
        names = (declared.name, declared.name.removesuffix("_total"))
        places = [(place, name) for place, part in enumerate(parts) for name in names if hasattr(part, name)]
        if declared.name not in given and places:
            found.append((declared.name, *places[0]))
        assert declared.name in given or places or (NoneType in parts and declared.default is not MISSING), (
            kind,
            declared.name,
        )
    return found


def _broker(runtime: BrokerRuntime) -> BrokerStatus:
    seen = runtime.link.statistics()
    return _status(
        BrokerStatus,
        seen,
        name=runtime.broker.name,
        connected=seen.is_up,
        trouble=seen.down_reason or "",
        zones=runtime.nodes,
    )


def _pacing(pull: PullStatistics) -> PacingStatus | None:
    found = pull.pacing
    if found is None:
        return None
    return _status(PacingStatus, found, waits=pull.asking is Asking.PACED, waited_seconds_total=found.paced_ms / 1000)


def _fill_percent(space: StoreSpace | None) -> float | None:
    """The fill of the limit that is nearest."""
    if space is None:
        return None
    fills = [space.fill_percent, *(stream.fill_percent for stream in space.streams)]
    return max((fill for fill in fills if fill is not None), default=None)


def _history(incidents: Sequence[Incident], now_unix_ms: int, pair_zone: str = "") -> tuple[HistoryStatus, ...]:
    """Those of the last day about the history of a zone, or a loss of a consumer. What an opening has found is a loss
    of the store. `pair_zone`: our own, if another node records it, too; what is declined of it is told once."""
    declined = next((incident for incident in incidents if pair_zone and incident.declines(pair_zone)), None)
    found = (
        HistoryStatus(incident.kind, incident.subject, incident.detail)
        for incident in incidents
        if incident.kind in HISTORY
        and incident.last_unix_ms > now_unix_ms - DAY_MS
        and (incident.kind != "restored" or incident.is_told_by_peer)
        and (incident.kind != "declined" or incident is declined)
        and (incident.kind != "facts_expired" or incident.is_loss)
    )
    return tuple(islice(found, HISTORY_MAX))


def _own_ends(store: FactStore) -> Iterator[tuple[str, str]]:
    """By stream, the end of the facts that this process has recorded since it leads, of each of its own zones."""
    life = store.life
    for stream in store.streams():
        held = {zone: store.reader.held_of(stream.name, Origin(zone, life)) for zone in sorted(store.own_zones)}
        ends = [f"{zone}:{life.hex()}:{ranges[-1].last_sequence}" for zone, ranges in held.items() if ranges]
        if ends:
            yield stream.name, " ".join(ends)


def _sums(counts: Iterable[Mapping[str, int]]) -> dict[str, int]:
    return dict(sum((Counter(count) for count in counts), Counter[str]()))


def _now_unix_ms() -> int:
    return time.time_ns() // 1_000_000


def _written_bytes() -> int | None:
    """Bytes that this process has written to disks since its start; None if the kernel does not count them."""
    try:
        lines = Path("/proc/self/io").read_text("ascii").splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) for line in lines if line.startswith("write_bytes:")), None)
