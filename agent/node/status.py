"""What a node says of itself: figures of all its parts in one frozen picture, for the health page and the status line.

Most figures are looks into memory. What costs a read from disk (what is held for whom, free space, how long a certificate still
lasts) is refreshed in a thread every second or minute and remembered, so that nobody who asks
can slow the node down. A figure that cannot be read is told once in the log and is missing; it never ends the node.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from agent.config import NodeSettings
from agent.fact_store import ConsumerSpace, ConsumerState, FactStore, StoreError, StoreSpace, StreamInfo
from agent.health.behind import Behind
from agent.health.snapshot import (
    BrokerFigures,
    CatchUpFigures,
    ComparisonFigures,
    ConsumerFigures,
    IntegrityFigures,
    Latency,
    NodeSnapshot,
    PacingFigures,
    PeerFigures,
    RequestFigures,
    ServingFigures,
    SourceFigures,
    SpanFigures,
    StoreFigures,
    StreamFigures,
)
from agent.health.watchdog import Progress
from agent.ingest.supervisor import Ingest, SourceStatistics
from agent.replication.mqtt import Link, LinkStatistics
from agent.replication.protocol import Asking
from agent.replication.pulling import AntiEntropy, Puller, PullStatistics
from agent.replication.serving import Server
from agent.telemetry import BOUNDS_S, SpanStatistics, Telemetry

REFRESH_S = 1.0
CERTIFICATE_REFRESHES = 60  # certificates are looked at once a minute
STALL_S = 60.0  # a commit that takes a minute is a disk that will not come back by itself

log = logging.getLogger(__name__)


@dataclass(slots=True)
class _Caught:
    """When a pull last had everything its peer had, and the longest it was behind."""

    level_s: float
    lag_s_max: float = 0.0


@dataclass(slots=True)
class _Remembered:
    """Figures that cost a read, as of the last refresh."""

    space: StoreSpace | None = None
    artifact_bytes: int = 0
    artifact_bytes_lacking: int = 0
    certificate_days_left: float | None = None


class Figures:
    """Takes the node's picture. Made once its parts exist."""

    def __init__(
        self,
        settings: NodeSettings,
        store: FactStore,
        links: Mapping[str, Link],
        servers: Sequence[Server],
        pullers: Sequence[Puller],
        ingest: Ingest,
        telemetry: Telemetry,
        clock_s: Callable[[], float] = time.monotonic,
        comparers: Iterable[AntiEntropy] = (),
    ) -> None:
        self._comparers = tuple(comparers)
        self._settings = settings
        self._store = store
        self._links, self._servers, self._pullers, self._ingest = links, servers, pullers, ingest
        self._telemetry = telemetry
        self._clock_s = clock_s
        self._started_unix_ms = _now_unix_ms()
        self._caught: dict[tuple[str, str], _Caught] = {}
        self._remembered = _Remembered()
        self._behind = Behind()
        self._unreadable: dict[str, str] = {}  # what could not be read last time, and why
        self._turns = 0

    async def run(self) -> None:
        """Refresh what costs a read, until cancelled."""
        while True:
            if self._turns % CERTIFICATE_REFRESHES == 0:
                self._remembered.certificate_days_left = await asyncio.to_thread(self._certificate_days_left)
            self._remembered.space = await asyncio.to_thread(self._read_from_disk)
            self._look_at_consumers()
            self._turns += 1
            await asyncio.sleep(REFRESH_S)

    def snapshot(self) -> NodeSnapshot:
        """The node now."""
        store, remembered = self._store, self._remembered
        return NodeSnapshot(
            zone=store.zone,
            epoch=store.epoch.hex(),
            taken_unix_ms=_now_unix_ms(),
            started_unix_ms=self._started_unix_ms,
            store_fill_percent=_fill_percent(remembered.space),
            streams=tuple(_stream(info, remembered.space) for info in store.streams()),
            consumers=self._consumers(),
            brokers=tuple(_broker(name, link.statistics()) for name, link in self._links.items()),
            peers=tuple(self._peer(puller.statistics()) for puller in self._pullers),
            sources=tuple(_source(source) for source in self._ingest.statistics()),
            requests=self._requests(),
            serving=self._serving(),
            store=self._store_figures(),
            spans=tuple(_span(one) for one in self._telemetry.statistics()),
            certificate_days_left=remembered.certificate_days_left,
            integrity=self._integrity(),
        )

    def progress(self) -> list[Progress]:
        """Proof of work for the watchdog: commits, or refusals by a full disk, while something waits for one, and this very
        event loop's turns."""
        counted = self._store.statistics()
        return [Progress("store writer", counted.commits + counted.appends_failed, counted.queue_facts > 0, STALL_S)]

    def _integrity(self) -> IntegrityFigures:
        found = self._store.integrity()
        return IntegrityFigures(
            found.damages,
            found.batches_verified,
            found.last_full_pass_unix_ms,
            sum(size for _, size in found.set_aside),
        )

    def _consumers(self) -> tuple[ConsumerFigures, ...]:
        figures = []
        space = self._remembered.space
        held = {} if space is None else {one.name: one for one in space.consumers}
        for consumer in self._store.consumers():
            kept = held.get(consumer.name)
            behind = max(0, self._store.end_offset(consumer.stream) - consumer.frontier)
            reads = self._behind.reads(consumer.name)
            figures.append(
                ConsumerFigures(
                    name=consumer.name,
                    stream=consumer.stream,
                    zone=consumer.zone,
                    state=consumer.lifecycle.value,
                    frontier=consumer.frontier,
                    behind_facts=behind,
                    oldest_unconfirmed_age_s=self._age_s(consumer, kept) if behind else None,
                    facts_per_s=reads.facts_per_s if reads else None,
                    seconds_left=reads.seconds_left if reads and behind else None,
                    bytes_held=kept.bytes_held if kept else None,
                    hours_held=kept.hours_held if kept else None,
                    hours_until_ttl_loss=kept.hours_until_ttl_loss if kept else None,
                )
            )
        return tuple(figures)

    def _look_at_consumers(self) -> None:
        ends = {stream.name: stream.end_offset for stream in self._store.streams()}
        frontiers = {one.name: (one.stream, one.frontier) for one in self._store.consumers() if one.stream in ends}
        self._behind.look(self._clock_s(), ends, frontiers)

    def _age_s(self, consumer: ConsumerState, kept: ConsumerSpace | None) -> float | None:
        """For how long the oldest fact that it lacks has waited for it: since it came here, or the consumer, if that was later."""
        bounds = [
            self._behind.age_s(consumer.stream, consumer.frontier, self._clock_s()),
            None if kept is None else kept.hours_held * 3600,
        ]
        known = [one for one in bounds if one is not None]
        since_s = (_now_unix_ms() - consumer.registered_unix_ms) / 1000
        return min([*known, since_s] if since_s >= 0 else known) if known else None  # a clock set back says nothing

    def _peer(self, pull: PullStatistics) -> PeerFigures:
        """Lag is the time since this pull last had everything: an upper bound that needs no clock but ours."""
        now_s = self._clock_s()
        caught = self._caught.setdefault((pull.peer_zone, pull.stream), _Caught(now_s))
        connected = pull.lost_reason is None and pull.last_answer_ms is not None
        if connected and pull.is_caught_up:
            caught.level_s = now_s
        lag_s = now_s - caught.level_s
        caught.lag_s_max = max(caught.lag_s_max, lag_s)
        return PeerFigures(
            zone=pull.peer_zone,
            stream=pull.stream,
            connected=connected,
            position=pull.offset,
            end_offset=pull.peer_end_offset,
            lag_seconds=lag_s if pull.last_answer_ms is not None else None,
            lag_seconds_max=caught.lag_s_max,
            trouble=pull.lost_reason or "",
            catch_up=_catch_up(pull),
            compared=self._compared(pull.peer_zone, pull.stream),
            pacing=_pacing(pull),
            page_waits=pull.page_waits,
            fenced=pull.asking is Asking.FENCED,
            stands=pull.asking is Asking.BLOCKED,
            lease=pull.lease,
            facts_stored_total=pull.facts_stored,
            facts_duplicate_total=pull.facts_duplicate,
            pages_total=pull.pages,
            pages_late_total=pull.pages_late,
            pages_dropped_total=pull.pages_dropped,
            timeouts_total=pull.timeouts,
            restarts_total=pull.restarts,
        )

    def _compared(self, zone: str, stream: str) -> ComparisonFigures | None:
        for comparer in self._comparers:
            for one in comparer.statistics():
                if (one.peer_zone, one.stream) == (zone, stream):
                    return ComparisonFigures(
                        one.comparisons,
                        one.failures,
                        one.divergent_ranges,
                        one.repaired_ranges,
                        one.repaired_facts,
                        one.last_unix_ms,
                        one.is_equal,
                    )
        return None

    def _requests(self) -> RequestFigures:
        counted = self._store.statistics()
        asked = [server.statistics().requests for server in self._servers]
        latency = counted.append_latency
        return RequestFigures(
            fetches_total=sum(requests.get("FetchFacts", 0) for requests in asked),
            confirms_total=counted.confirms,
            appends_total=counted.appends,
            append_failures_total=counted.appends_failed,
            append_latency=Latency(latency.counts, latency.sum_s, latency.bounds_s),
        )

    def _serving(self) -> ServingFigures:
        """All brokers together."""
        counted = [server.statistics() for server in self._servers]
        return ServingFigures(
            requests=_sums(one.requests for one in counted),
            refusals=_sums(one.refusals for one in counted),
            drops=_sums(one.drops for one in counted),
            facts_sent_total=sum(one.facts_sent for one in counted),
            bytes_sent_total=sum(one.bytes_sent for one in counted),
            waiting=sum(one.parked for one in counted),
        )

    def _store_figures(self) -> StoreFigures:
        counted = self._store.statistics()
        return StoreFigures(
            facts_appended_total=counted.facts_appended,
            facts_received_total=counted.facts_received,
            facts_duplicate_total=counted.facts_duplicate,
            commits_total=counted.commits,
            queue_facts=counted.queue_facts,
            queue_facts_max=counted.queue_facts_max,
            queue_bytes=counted.queue_bytes,
            queue_bytes_max=counted.queue_bytes_max,
            file_bytes=counted.file_bytes,
            log_bytes=counted.wal_bytes,
            artifact_bytes=self._remembered.artifact_bytes,
            artifact_bytes_max=self._store.artifacts.bytes_max,
            artifact_bytes_lacking=self._remembered.artifact_bytes_lacking,
        )

    # ---------------------------------------------------------------------------------------------- in a thread, from disk

    def _read_from_disk(self) -> StoreSpace | None:
        try:
            self._remembered.artifact_bytes = self._store.artifacts.bytes_used()
            self._remembered.artifact_bytes_lacking = self._store.artifacts.bytes_lacking()
            space = self._store.space()
        except StoreError as error:
            self._note("space", error)
            return None
        self._note("space", None)
        return space

    def _note(self, what: str, error: Exception | None) -> None:
        """Say once what cannot be read."""
        why = "" if error is None else str(error)
        if why and self._unreadable.get(what) != why:
            log.error("figure_unreadable", extra={"what": what, "why": why})
            self._unreadable[what] = why
        elif not why:
            self._unreadable.pop(what, None)

    def _certificate_days_left(self) -> float | None:
        """Of the certificate in use that ends first; None when none can be used, which the link to its broker tells better."""
        now = datetime.now(UTC)
        ends = [link.statistics().identity_ends for link in self._links.values()]
        return min(((each - now).total_seconds() // 86_400 for each in ends if each is not None), default=None)


def _catch_up(pull: PullStatistics) -> CatchUpFigures | None:
    state = pull.catch_up
    if state is None:
        return None
    return CatchUpFigures(state.from_offset, state.percent, state.facts_per_s, state.seconds_left)


def _pacing(pull: PullStatistics) -> PacingFigures | None:
    found = pull.pacing
    if found is None:
        return None
    waits = pull.asking is Asking.PACED
    return PacingFigures(
        found.bytes_per_second_max, waits, found.paced_ms / 1000, found.bytes_owed, found.bytes_waited_off
    )


def _fill_percent(space: StoreSpace | None) -> float | None:
    """Of the limit that is nearest."""
    if space is None:
        return None
    fills = [space.fill_percent, *(stream.fill_percent for stream in space.streams)]
    return max((fill for fill in fills if fill is not None), default=None)


def _stream(info: StreamInfo, space: StoreSpace | None) -> StreamFigures:
    figures = StreamFigures(info.name, info.first_offset, info.end_offset, info.bytes)
    for one in () if space is None else space.streams:
        if one.name == info.name:
            return replace(
                figures,
                bytes_max=one.bytes_max,
                fill_percent=one.fill_percent,
                inflow_bytes_per_s=one.inflow_bytes_per_s,
                hours_until_full=one.hours_until_full,
                ttl_hours=one.ttl_hours,
                hours_until_ttl_loss=one.hours_until_ttl_loss,
            )
    return figures


def _broker(name: str, link: LinkStatistics) -> BrokerFigures:
    return BrokerFigures(
        name=name,
        connected=link.is_up,
        connects_total=link.connects,
        failures_total=link.failures,
        strangers_total=link.strangers,
        trouble=link.down_reason or "",
        needs_person=link.needs_person,
        identity_trouble=link.identity_trouble,
    )


def _span(span: SpanStatistics) -> SpanFigures:
    stopped = Latency(span.counts, span.sum_s, BOUNDS_S)
    return SpanFigures(*span.step, span.started, span.failed, span.discarded, stopped)


def _sums(counts: Iterable[Mapping[str, int]]) -> dict[str, int]:
    return dict(sum((Counter(one) for one in counts), Counter[str]()))


def _source(source: SourceStatistics) -> SourceFigures:
    return SourceFigures(
        name=source.name,
        kind=source.kind,
        connected=source.connected,
        last_value_unix_ms=source.last_value_unix_ms or None,
        values_total=source.values_total,
        errors_total=source.errors_total,
        trouble="" if source.connected else source.last_error,
        tags_problem=source.tags_problem,
        tags=source.tags,
        tags_bad=source.tags_bad,
        connects_total=source.connects_total,
        lost_total=source.dropped_total,
        duplicates_total=source.duplicates_total,
        out_of_order_total=source.out_of_order_total,
        polls_missed_total=source.polls_missed_total,
        store_refused_total=source.store_refused_total,
    )


def _now_unix_ms() -> int:
    return time.time_ns() // 1_000_000
