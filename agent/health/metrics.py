"""A snapshot as Prometheus metrics, under the names of the specification (section 8) and a few beside them.

A registry of our own with one collector: each scrape asks for a snapshot and renders it, so that nothing is counted twice
and nothing is kept here. The library's process metrics are left out: under the unit's ProcSubset=pid half of them cannot
be read, and systemd knows the rest.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import accumulate

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.registry import Collector

from agent.health.snapshot import ComparisonFigures, Latency, NodeSnapshot, PeerFigures
from agent.health.verdict import Level, assess

CONTENT_TYPE = CONTENT_TYPE_LATEST

# Name, help, field of the figures; what is not to be expected (None) is not exported.
_STREAM_GAUGES = (
    ("bsfg_store_bytes_max", "Bytes of batches the stream may keep.", "bytes_max"),
    ("bsfg_store_stream_fill_percent", "What would not yield to new facts, of the stream's limit.", "fill_percent"),
    (
        "bsfg_store_inflow_bytes_per_second",
        "Bytes of batches taken in, over the last hour, without history that a peer had kept.",
        "inflow_bytes_per_s",
    ),
    ("bsfg_store_hours_until_full", "Until the limit, if nobody confirms from now on.", "hours_until_full"),
    ("bsfg_store_ttl_hours", "Time to live of facts nobody confirms.", "ttl_hours"),
    ("bsfg_store_hours_until_ttl_loss", "Until the first fact is dropped unconfirmed.", "hours_until_ttl_loss"),
)
_CONSUMER_GAUGES = (
    ("bsfg_consumer_facts_per_second", "What it confirms, over the last minute.", "facts_per_s"),
    ("bsfg_consumer_catch_up_seconds_left", "Until it has everything, at that pace.", "seconds_left"),
    ("bsfg_consumer_held_bytes", "Bytes of batches it has not confirmed.", "bytes_held"),
    ("bsfg_consumer_held_hours", "Age of its oldest unconfirmed fact, as its time to live counts it.", "hours_held"),
    ("bsfg_consumer_hours_until_ttl_loss", "Until its oldest fact is dropped unconfirmed.", "hours_until_ttl_loss"),
)
_PEER_COUNTERS = (
    ("bsfg_peer_facts_stored", "Facts received and stored.", "facts_stored_total"),
    ("bsfg_peer_facts_duplicate", "Facts received that were held already.", "facts_duplicate_total"),
    ("bsfg_peer_pages", "Pages taken.", "pages_total"),
    ("bsfg_peer_pages_late", "Of them, in answer to a request that had been given up.", "pages_late_total"),
    ("bsfg_peer_pages_dropped", "Pages that were not at our position.", "pages_dropped_total"),
    ("bsfg_peer_timeouts", "Requests that nobody answered in time.", "timeouts_total"),
    ("bsfg_peer_restarts", "Readings begun anew because the peer's store had become another.", "restarts_total"),
)
_SOURCE_COUNTERS = (
    ("bsfg_source_connects", "Connections made.", "connects_total"),
    ("bsfg_source_errors", "Errors of the source.", "errors_total"),
    ("bsfg_source_values", "Values taken in.", "values_total"),
    ("bsfg_source_values_lost", "Values that came and could not be kept; facts name the gaps.", "lost_total"),
    ("bsfg_source_values_duplicate", "Values that were there already.", "duplicates_total"),
    ("bsfg_source_values_out_of_order", "Values that came behind newer ones.", "out_of_order_total"),
    ("bsfg_source_polls_missed", "Polls whose turn was over before they could begin.", "polls_missed_total"),
    ("bsfg_source_store_refusals", "Times that the store had no room for it.", "store_refused_total"),
)
_BROKER_COUNTERS = (
    ("bsfg_broker_connects", "Connections made.", "connects_total"),
    ("bsfg_broker_connect_failures", "Tries that came to no connection.", "failures_total"),
    ("bsfg_broker_strangers", "Messages that nobody here had asked for.", "strangers_total"),
)
_STORE_COUNTERS = (
    ("bsfg_store_facts_appended", "Facts recorded here.", "facts_appended_total"),
    ("bsfg_store_facts_received", "Facts of peers stored.", "facts_received_total"),
    ("bsfg_store_facts_duplicate", "Facts that were held already.", "facts_duplicate_total"),
    ("bsfg_store_commits", "Commits.", "commits_total"),
)
_STORE_GAUGES = (
    ("bsfg_store_queue_facts", "Facts that wait for the next commit.", "queue_facts"),
    ("bsfg_store_queue_facts_max", "Facts that may wait; more slow their source.", "queue_facts_max"),
    ("bsfg_store_queue_bytes", "Bytes that wait for the next commit.", "queue_bytes"),
    ("bsfg_store_queue_bytes_max", "Bytes that may wait; more slow their source.", "queue_bytes_max"),
    ("bsfg_store_file_bytes", "Size of the database.", "file_bytes"),
    ("bsfg_store_log_bytes", "Size of its write-ahead log.", "log_bytes"),
    ("bsfg_store_artifact_bytes", "Size of artifacts, also of what is still coming in.", "artifact_bytes"),
    ("bsfg_store_artifact_bytes_max", "What they may take, artifacts_total_bytes_max.", "artifact_bytes_max"),
    ("bsfg_store_artifact_bytes_lacking", "So much too little room for one that waits.", "artifact_bytes_lacking"),
)

_PACING_GAUGES = (
    ("bsfg_peer_bandwidth_limit_bytes_per_second", "What the peer may send.", "bytes_per_second_max"),
    ("bsfg_peer_bandwidth_owed_bytes", "Bytes that came early and are still to be waited off.", "bytes_owed"),
)
_COMPARISON_COUNTERS = (
    ("bsfg_comparisons", "Comparisons with this peer.", "comparisons_total"),
    ("bsfg_comparison_failures", "Comparisons that could not be carried out.", "failures_total"),
    ("bsfg_divergent_ranges", "Ranges found missing, damaged or forked here.", "divergent_ranges_total"),
    ("bsfg_repaired_ranges", "Ranges repaired from this peer.", "repaired_ranges_total"),
    ("bsfg_repaired_facts", "Facts repaired from this peer.", "repaired_facts_total"),
)


def render(snapshot: NodeSnapshot) -> bytes:
    """The snapshot in Prometheus' text format."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Fixed(snapshot))
    return generate_latest(registry)


class NodeCollector(Collector):
    """For a program that has a registry already: each scrape takes a new snapshot."""

    def __init__(self, snapshot: Callable[[], NodeSnapshot]) -> None:
        self._snapshot = snapshot

    def collect(self) -> Iterable[Metric]:
        return families(self._snapshot())

    def describe(self) -> Iterable[Metric]:
        return ()  # known only once a snapshot is taken


class _Fixed(NodeCollector):
    def __init__(self, snapshot: NodeSnapshot) -> None:
        super().__init__(lambda: snapshot)


def families(snapshot: NodeSnapshot) -> Iterator[Metric]:
    """Every metric of a snapshot."""
    yield from _node(snapshot)
    yield from _streams_and_consumers(snapshot)
    yield from _peers(snapshot)
    yield from _requests(snapshot)
    yield from _serving(snapshot)
    yield from _store(snapshot)
    yield from _spans(snapshot)
    yield from _sources(snapshot)


def _gauge(name: str, text: str, labels: tuple[str, ...], rows: Iterable[tuple[Iterable[str], float | None]]) -> Metric:
    family = GaugeMetricFamily(name, text, labels=labels)
    for values, value in rows:
        if value is not None:  # what is not known is not there, rather than 0
            family.add_metric(list(values), value)
    return family


def _counter(name: str, text: str, labels: tuple[str, ...], rows: Iterable[tuple[Iterable[str], float]]) -> Metric:
    family = CounterMetricFamily(name, text, labels=labels)
    for values, value in rows:
        family.add_metric(list(values), value)
    return family


def _node(snapshot: NodeSnapshot) -> Iterator[Metric]:
    verdict = assess(snapshot)
    yield _gauge("bsfg_node_info", "Zone and store epoch.", ("zone", "epoch"), [((snapshot.zone, snapshot.epoch), 1)])
    yield _gauge(
        *("bsfg_node_verdict", "1 for the verdict that holds.", ("verdict",)),
        [((level.value,), float(level is verdict.level)) for level in Level],
    )
    yield _gauge("bsfg_node_alert", "1 when somebody must act.", (), [((), float(verdict.alert))])
    started = snapshot.started_unix_ms / 1000
    yield _gauge("bsfg_node_start_time_seconds", "Unix time at which the node started.", (), [((), started)])
    yield _gauge(
        *("bsfg_store_buffer_fill_percent", "What would not yield to new facts, of the nearest limit.", ()),
        [((), snapshot.store_fill_percent)],
    )
    found = snapshot.integrity
    yield _counter(
        "bsfg_store_batches_verified",
        "Batches compared with their digest in the background.",
        (),
        [((), found.batches_verified)],
    )
    yield _gauge("bsfg_store_damages", "Damaged places found since the start.", (), [((), found.damages)])
    yield _gauge("bsfg_store_set_aside_bytes", "Bytes of damaged files set aside.", (), [((), found.set_aside_bytes)])
    passed_ms = found.last_full_pass_unix_ms
    passed_s = None if passed_ms is None else passed_ms / 1000
    yield _gauge("bsfg_store_verified_time_seconds", "Unix time when all was last verified.", (), [((), passed_s)])
    days = snapshot.certificate_days_left
    yield _gauge("bsfg_certificate_days_left", "Until our certificate ends.", (), [((), days)])


def _streams_and_consumers(snapshot: NodeSnapshot) -> Iterator[Metric]:
    streams, consumers = snapshot.streams, snapshot.consumers
    by_stream = ("stream",)
    yield _gauge("bsfg_store_bytes", "Bytes of batches kept.", by_stream, [((s.name,), s.bytes) for s in streams])
    yield _gauge("bsfg_first_offset", "Oldest offset kept.", by_stream, [((s.name,), s.first_offset) for s in streams])
    yield _gauge("bsfg_end_offset", "Newest offset written.", by_stream, [((s.name,), s.end_offset) for s in streams])
    for name, text, field in _STREAM_GAUGES:
        yield _gauge(name, text, by_stream, [((s.name,), getattr(s, field)) for s in streams])
    labels = ("consumer", "stream", "zone")
    named = [((c.name, c.stream, c.zone), c) for c in consumers]
    yield _gauge("bsfg_frontier_offset", "Confirmed frontier.", labels, [(n, c.frontier) for n, c in named])
    yield _gauge("bsfg_consumer_behind_facts", "Facts not confirmed.", labels, [(n, c.behind_facts) for n, c in named])
    yield _gauge(
        *(
            "bsfg_consumer_oldest_unconfirmed_seconds",
            "For how long its oldest unconfirmed fact has waited for it.",
            labels,
        ),
        [(n, c.oldest_unconfirmed_age_s) for n, c in named],
    )
    for name, text, field in _CONSUMER_GAUGES:
        yield _gauge(name, text, labels, [(n, getattr(c, field)) for n, c in named])


def _peers(snapshot: NodeSnapshot) -> Iterator[Metric]:
    reached = [((b.name,), b) for b in snapshot.brokers]
    yield _gauge("bsfg_broker_up", "1 while connected.", ("broker",), [(n, float(b.connected)) for n, b in reached])
    for name, text, field in _BROKER_COUNTERS:
        yield _counter(name, text, ("broker",), [(n, getattr(b, field)) for n, b in reached])
    labels = ("peer", "stream")
    named = [((p.zone, p.stream), p) for p in snapshot.peers]
    yield _gauge("bsfg_peer_up", "1 while the peer answers.", labels, [(n, float(p.connected)) for n, p in named])
    yield _gauge(
        *("bsfg_peer_fenced", "1 when another instance took this one's place.", labels),
        [(n, float(p.fenced)) for n, p in named],
    )
    yield _gauge(
        *("bsfg_peer_page_waits", "1 while a page that has come cannot be stored.", labels),
        [(n, float(bool(p.page_waits))) for n, p in named],
    )
    yield _gauge("bsfg_peer_lease_epoch", "Ours at the peer, 0 for none.", labels, [(n, p.lease) for n, p in named])
    yield _gauge("bsfg_peer_position_offset", "Received up to here.", labels, [(n, p.position) for n, p in named])
    yield _gauge("bsfg_peer_end_offset", "Known to be there.", labels, [(n, p.end_offset) for n, p in named])
    yield _gauge(
        *("bsfg_replication_lag_seconds", "Age of the oldest fact there and not here.", labels),
        [(n, p.lag_seconds) for n, p in named],
    )
    yield _gauge(
        *("bsfg_peer_catch_up_percent", "How far a pull that is far behind has come.", labels),
        [(n, p.catch_up.percent if p.catch_up else None) for n, p in named],
    )
    yield _gauge(
        *("bsfg_peer_catch_up_seconds_left", "Until it has caught up, at the pace of the last seconds.", labels),
        [(n, p.catch_up.seconds_left if p.catch_up else None) for n, p in named],
    )
    yield from _pacing(snapshot.peers)
    yield from _comparisons([(n, p.compared) for n, p in named if p.compared], labels)
    yield _gauge(
        *("bsfg_replication_lag_high_watermark", "Highest lag in seconds since the start.", labels),
        [(n, p.lag_seconds_max) for n, p in named],
    )
    for name, text, field in _PEER_COUNTERS:
        yield _counter(name, text, labels, [(n, getattr(p, field)) for n, p in named])


def _pacing(peers: tuple[PeerFigures, ...]) -> Iterator[Metric]:
    found = [((p.zone, p.stream), p.pacing) for p in peers if p.pacing is not None]
    labels = ("peer", "stream")
    yield _gauge(
        *("bsfg_peer_paced", "1 while the peer's bandwidth limit keeps this pull from asking.", labels),
        [(n, float(one.waits)) for n, one in found],
    )
    yield _counter(
        *("bsfg_peer_paced_seconds", "For so long the bandwidth limit kept this pull from asking.", labels),
        [(n, one.waited_seconds_total) for n, one in found],
    )
    shared = {(zone,): one for (zone, _), one in found}.items()  # all streams of a peer have one limit together
    for name, text, field in _PACING_GAUGES:
        yield _gauge(name, text, ("peer",), [(n, getattr(one, field)) for n, one in shared])
    yield _counter(
        *("bsfg_peer_bandwidth_waited_off_bytes", "Bytes that came early and were waited off.", ("peer",)),
        [(n, one.bytes_waited_off_total) for n, one in shared],
    )


def _comparisons(found: list[tuple[tuple[str, str], ComparisonFigures]], labels: tuple[str, ...]) -> Iterator[Metric]:
    for name, text, field in _COMPARISON_COUNTERS:
        yield _counter(name, text, labels, [(n, getattr(one, field)) for n, one in found])
    yield _gauge(
        *("bsfg_peer_equal", "1 when the last comparison left nothing that differs.", labels),
        [(n, None if one.is_equal is None else float(one.is_equal)) for n, one in found],
    )
    yield _gauge(
        *("bsfg_peer_compared_time_seconds", "Unix time of the last comparison.", labels),
        [(n, None if one.last_unix_ms is None else one.last_unix_ms / 1000) for n, one in found],
    )


def _requests(snapshot: NodeSnapshot) -> Iterator[Metric]:
    asked = snapshot.requests
    yield _counter("bsfg_fetch_requests", "FetchFacts answered.", (), [((), asked.fetches_total)])
    yield _counter("bsfg_confirm_requests", "Receipts taken.", (), [((), asked.confirms_total)])
    yield _counter("bsfg_append_requests", "Appends asked for.", (), [((), asked.appends_total)])
    yield _counter("bsfg_append_failures", "Appends refused or failed.", (), [((), asked.append_failures_total)])
    yield _histogram("bsfg_append_latency_seconds", "From asked to durable.", asked.append_latency)


def _serving(snapshot: NodeSnapshot) -> Iterator[Metric]:
    served = snapshot.serving
    for name, text, label, rows in (
        ("bsfg_requests", "Requests of other zones.", "operation", served.requests),
        ("bsfg_request_refusals", "Requests answered with an error.", "code", served.refusals),
        ("bsfg_request_drops", "Messages that got no answer.", "reason", served.drops),
    ):
        yield _counter(name, text, (label,), [((value,), count) for value, count in sorted(rows.items())])
    yield _counter("bsfg_facts_sent", "Facts in answers.", (), [((), served.facts_sent_total)])
    yield _counter("bsfg_bytes_sent", "Bytes of answers.", (), [((), served.bytes_sent_total)])
    yield _gauge("bsfg_fetches_waiting", "Fetches that wait for facts now.", (), [((), served.waiting)])


def _store(snapshot: NodeSnapshot) -> Iterator[Metric]:
    for name, text, field in _STORE_COUNTERS:
        yield _counter(name, text, (), [((), getattr(snapshot.store, field))])
    for name, text, field in _STORE_GAUGES:
        yield _gauge(name, text, (), [((), getattr(snapshot.store, field))])


def _spans(snapshot: NodeSnapshot) -> Iterator[Metric]:
    """How steps of replication began and ended, and how long those took that stopped."""
    rows = [
        ((span.name, span.side, span.operation, event), count)
        for span in snapshot.spans
        for event, count in (
            ("start", span.started_total),
            ("stop", span.stopped.count),
            ("exception", span.failed_total),
            ("discarded", span.discarded_total),
        )
    ]
    labels = ("span", "side", "operation")
    yield _counter("bsfg_spans", "Steps of replication, by how they began and ended.", (*labels, "event"), rows)
    durations = HistogramMetricFamily("bsfg_span_seconds", "Of spans that stopped.", labels=labels)
    for span in snapshot.spans:
        durations.add_metric([span.name, span.side, span.operation], _buckets(span.stopped), span.stopped.sum_s)
    yield durations


def _histogram(name: str, text: str, latency: Latency) -> Metric:
    return HistogramMetricFamily(name, text, buckets=_buckets(latency), sum_value=latency.sum_s)


def _buckets(latency: Latency) -> list[tuple[str, float]]:
    bounds = [str(bound) for bound in latency.bounds_s] + ["+Inf"]
    return list(zip(bounds, (float(total) for total in accumulate(latency.counts)), strict=True))


def _sources(snapshot: NodeSnapshot) -> Iterator[Metric]:
    labels = ("source", "kind")
    named = [((s.name, s.kind), s) for s in snapshot.sources]
    yield _gauge("bsfg_source_up", "1 while connected.", labels, [(n, float(s.connected)) for n, s in named])
    yield _gauge("bsfg_source_tags", "Tags of its map.", labels, [(n, s.tags) for n, s in named])
    yield _gauge(
        "bsfg_source_tags_bad", "Of them, that cannot be read now.", labels, [(n, s.tags_bad) for n, s in named]
    )
    for name, text, field in _SOURCE_COUNTERS:
        yield _counter(name, text, labels, [(n, getattr(s, field)) for n, s in named])
    yield _gauge(
        *("bsfg_source_last_value_timestamp_seconds", "Unix time of the last value.", labels),
        [(n, None if s.last_value_unix_ms is None else s.last_value_unix_ms / 1000) for n, s in named],
    )
