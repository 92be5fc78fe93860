"""The status of a node at one moment: taken by the node, judged and displayed by this package.

Each value is declared here once: its JSON name at /healthz?all is the field's name, and its annotations name the
Prometheus metric that shows it at /metrics (`metrics.py`) and the tag that records it (`samples.py`). A value that the
node does not have is None, never a default number. Counters (`_total`) count since the process started. `_unix_ms` is
wall clock time; ages are computed by the node.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Annotated, Any, get_type_hints

from agent import __version__

ROLES = ("leads", "follows", "alone")
RECORDING = ("leads", "alone")
STANDBY = "standby"
"""The state of a source that is connected while the other gateway of the zone records it."""

# --- how a field becomes a metric -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Label:
    """The field is this label of every metric in its record, and in the records below it."""

    name: str


@dataclass(frozen=True, slots=True)
class Gauge:
    """The field is this metric. A text counts as 1 unless it is empty. `divisor` converts the unit; `labels`, if given,
    are the only labels of the record that the metric has."""

    name: str
    help: str
    divisor: int = 1
    labels: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True)
class Counter(Gauge):
    """As a gauge, for a number that only grows. `key` is the label of a mapping's keys, `event` the value of the label
    of that name where several fields share one metric."""

    key: str = ""
    event: str = ""


@dataclass(frozen=True, slots=True)
class Histogram:
    """The field, a `Latency`, is this metric."""

    name: str
    help: str


@dataclass(frozen=True, slots=True)
class Sampled:
    """The field is recorded in the stream `health`, as a tag of the source `bsfg` (`samples.py`). `meaning` is that of
    a field without a metric."""

    unit: str = ""
    meaning: str = ""


@dataclass(frozen=True, slots=True)
class Latency:
    """A histogram of durations: `counts[i]` of them were in (bounds_s[i - 1], bounds_s[i]], the last ones above all
    bounds."""

    counts: tuple[int, ...] = (0,)
    sum_s: float = 0.0
    bounds_s: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        assert len(self.counts) == len(self.bounds_s) + 1, "one count per bound, and one for durations above them"
        assert list(self.bounds_s) == sorted(set(self.bounds_s)), "bounds rise"

    @property
    def count(self) -> int:
        """How many durations were measured."""
        return sum(self.counts)

    def quantile_s(self, quantile: float) -> float | None:
        """An upper bound of the quantile: the bound of the bucket it falls into; None when nothing was measured."""
        assert 0 < quantile <= 1, quantile
        wanted, seen = quantile * self.count, 0
        for bound, count in zip((*self.bounds_s, float("inf")), self.counts, strict=True):
            seen += count
            if seen and seen >= wanted:
                return bound
        return None


@functools.cache
def marks(kind: Any) -> Mapping[str, tuple[Any, ...]]:
    """The marks of each field of a record, none for a field without any."""
    hints = get_type_hints(kind, include_extras=True)
    return {field.name: getattr(hints[field.name], "__metadata__", ()) for field in fields(kind)}


# --- the status -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class StreamStatus:
    """A stream of the store: what it holds and how long its limits last.

    `fill_percent` is the part of `bytes_max` that retention cannot free. An `hours_` field is None if nothing is
    expected to happen: no limit, no inflow, no consumer behind, or another limit is met first.
    """

    name: Annotated[str, Label("stream")]
    first_offset: Annotated[int, Gauge("bsfg_first_offset", "Oldest offset kept.")]
    end_offset: Annotated[int, Gauge("bsfg_end_offset", "Newest offset written.")]
    bytes: Annotated[int, Gauge("bsfg_store_bytes", "Bytes of batches kept."), Sampled("B")]
    bytes_max: Annotated[int | None, Gauge("bsfg_store_bytes_max", "Bytes of batches the stream may keep.")] = None
    fill_percent: Annotated[
        float | None,
        Gauge("bsfg_store_stream_fill_percent", "Percentage of the stream's limit that retention cannot free."),
        Sampled("%"),
    ] = None
    inflow_bytes_per_s: Annotated[
        float | None,
        Gauge(
            "bsfg_store_inflow_bytes_per_second",
            "Bytes of batches stored, over the last hour, without history that a peer had kept.",
        ),
        Sampled("B/s"),
    ] = None
    hours_until_full: Annotated[
        float | None,
        Gauge("bsfg_store_hours_until_full", "Hours until the limit, if no consumer confirms from now on."),
        Sampled("h"),
    ] = None
    ttl_hours: Annotated[float | None, Gauge("bsfg_store_ttl_hours", "Time to live of unconfirmed facts.")] = None
    hours_until_ttl_loss: Annotated[
        float | None, Gauge("bsfg_store_hours_until_ttl_loss", "Hours until the first fact is dropped unconfirmed.")
    ] = None
    own_end: Annotated[
        str | None, Sampled(meaning="What this process recorded last, as zone:life:sequence, for each zone it records.")
    ] = None


@dataclass(frozen=True, slots=True)
class ConsumerStatus:
    """A registered consumer of a stream, how far it is behind, and what the store keeps for it.

    `oldest_unconfirmed_age_s` is the time since its oldest unconfirmed fact came to this store, or since the consumer
    registered if that was later. `facts_per_s` is None while it confirms nothing, `seconds_left` while its backlog does
    not shrink.
    """

    name: Annotated[str, Label("consumer")]
    stream: Annotated[str, Label("stream")]
    zone: Annotated[str, Label("zone")]
    state: Annotated[str, Sampled(meaning="Whether it is online.")]
    frontier: Annotated[int, Gauge("bsfg_frontier_offset", "Confirmed frontier.")]
    behind_facts: Annotated[int, Gauge("bsfg_consumer_behind_facts", "Facts not confirmed."), Sampled()]
    oldest_unconfirmed_age_s: Annotated[
        float | None,
        Gauge("bsfg_consumer_oldest_unconfirmed_seconds", "How long its oldest unconfirmed fact has waited."),
        Sampled("s"),
    ] = None
    bytes_held: Annotated[
        int | None, Gauge("bsfg_consumer_held_bytes", "Bytes of batches it has not confirmed."), Sampled("B")
    ] = None
    hours_held: Annotated[
        float | None,
        Gauge("bsfg_consumer_held_hours", "Age of its oldest unconfirmed fact, as its time to live counts it."),
    ] = None
    hours_until_ttl_loss: Annotated[
        float | None, Gauge("bsfg_consumer_hours_until_ttl_loss", "Hours until its oldest fact is dropped unconfirmed.")
    ] = None
    facts_per_s: Annotated[
        float | None, Gauge("bsfg_consumer_facts_per_second", "Facts confirmed per second, over the last minute.")
    ] = None
    seconds_left: Annotated[
        float | None,
        Gauge("bsfg_consumer_catch_up_seconds_left", "Seconds until it has confirmed everything, at that rate."),
    ] = None


@dataclass(frozen=True, slots=True)
class BrokerStatus:
    """A broker over which this node and its peers pull from each other."""

    name: Annotated[str, Label("broker")]
    connected: Annotated[bool, Gauge("bsfg_broker_up", "1 while connected."), Sampled()]
    connects_total: Annotated[int, Counter("bsfg_broker_connects_total", "Connections made.")] = 0
    failures_total: Annotated[int, Counter("bsfg_broker_connect_failures_total", "Failed attempts to connect.")] = 0
    unsolicited_total: Annotated[int, Counter("bsfg_broker_unsolicited_total", "Messages that answer no request.")] = 0
    trouble: Annotated[str, Sampled(meaning="Why it is not connected.")] = ""
    needs_person: bool = False
    """The cause does not pass by itself."""
    identity_trouble: str = ""
    """Why the certificate in its files is not in use."""
    zones: tuple[str, ...] = ()
    """The zones that this node meets there."""


@dataclass(frozen=True, slots=True)
class CatchUpStatus:
    """A pull that is far behind. `seconds_left` is None while it is not known, or while the backlog does not shrink."""

    from_offset: int
    percent: Annotated[float, Gauge("bsfg_peer_catch_up_percent", "Progress of a pull that is far behind.")]
    facts_per_s: float | None
    seconds_left: Annotated[
        float | None,
        Gauge("bsfg_peer_catch_up_seconds_left", "Seconds until it has caught up, at the rate of the last seconds."),
    ]


@dataclass(frozen=True, slots=True)
class PacingStatus:
    """The effect of a peer's `bytes_per_second_max` on a pull: whether the limit delays the next request now, and for
    how long in all. The byte counts are of all streams of the peer together, because they share the limit."""

    bytes_per_second_max: Annotated[
        int, Gauge("bsfg_peer_bandwidth_limit_bytes_per_second", "Rate at which the peer may send.", labels=("peer",))
    ]
    waits: Annotated[bool, Gauge("bsfg_peer_paced", "1 while the bandwidth limit delays the next request.")]
    waited_seconds_total: Annotated[
        float, Counter("bsfg_peer_paced_seconds_total", "Time for which the bandwidth limit delayed requests.")
    ]
    bytes_owed: Annotated[
        int,
        Gauge("bsfg_peer_bandwidth_owed_bytes", "Bytes by which the token bucket is overdrawn.", labels=("peer",)),
    ]
    bytes_waited_off_total: Annotated[
        int,
        Counter(
            "bsfg_peer_bandwidth_waited_off_bytes_total",
            "Overdrawn bytes that were paid back by waiting.",
            labels=("peer",),
        ),
    ]


@dataclass(frozen=True, slots=True)
class ComparisonStatus:
    """What comparisons with a peer have found and repaired since the start. `is_equal`: whether the last comparison
    left no difference; None before the first."""

    comparisons_total: Annotated[int, Counter("bsfg_comparisons_total", "Comparisons with this peer.")]
    failures_total: Annotated[int, Counter("bsfg_comparison_failures_total", "Comparisons that failed.")]
    divergent_ranges_total: Annotated[
        int, Counter("bsfg_divergent_ranges_total", "Ranges found missing, damaged or forked here.")
    ]
    repaired_ranges_total: Annotated[int, Counter("bsfg_repaired_ranges_total", "Ranges repaired from this peer.")]
    repaired_facts_total: Annotated[int, Counter("bsfg_repaired_facts_total", "Facts repaired from this peer.")]
    last_unix_ms: Annotated[
        int | None, Gauge("bsfg_peer_compared_time_seconds", "Unix time of the last comparison.", divisor=1000)
    ] = None
    is_equal: Annotated[bool | None, Gauge("bsfg_peer_equal", "1 if the last comparison left no difference.")] = None


@dataclass(frozen=True, slots=True)
class PeerStatus:
    """A stream pulled from another zone. `lag_seconds` is how long the oldest fact that is not here has been known
    to be at the peer, to a second. It is 0 if nothing is outstanding for longer, and grows while the peer is away. None
    before the first answer, unless an earlier process had some and half a minute has passed."""

    zone: Annotated[str, Label("peer")]
    stream: Annotated[str, Label("stream")]
    connected: Annotated[bool, Gauge("bsfg_peer_up", "1 while the peer answers."), Sampled()]
    position: Annotated[int, Gauge("bsfg_peer_position_offset", "Newest offset received.")]
    end_offset: Annotated[int, Gauge("bsfg_peer_end_offset", "Newest offset known to be at the peer.")]
    lag_seconds: Annotated[
        float | None,
        Gauge("bsfg_replication_lag_seconds", "Age of the oldest fact that the peer has and this node lacks."),
        Sampled("s"),
    ] = None
    lag_seconds_max: Annotated[
        float, Gauge("bsfg_replication_lag_high_watermark", "Highest lag in seconds since the start.")
    ] = 0.0
    trouble: Annotated[str, Sampled(meaning="Why it does not answer.")] = ""
    pair_zone: str = ""
    """The zone for which this peer and another one record; empty if no other one does."""
    fenced: Annotated[bool, Gauge("bsfg_peer_fenced", "1 if another instance of this node took over the pull.")] = False
    blocked: bool = False
    """Refused for good by the peer or by this store. The pull asks rarely, and goes on once an operator has removed the
    cause."""
    catch_up: CatchUpStatus | None = None
    lease: Annotated[int, Gauge("bsfg_peer_lease_epoch", "Lease epoch of this pull at the peer, 0 for none.")] = 0
    facts_stored_total: Annotated[int, Counter("bsfg_peer_facts_stored_total", "Facts received and stored.")] = 0
    facts_duplicate_total: Annotated[
        int, Counter("bsfg_peer_facts_duplicate_total", "Facts received that were held already.")
    ] = 0
    pages_total: Annotated[int, Counter("bsfg_peer_pages_total", "Pages accepted.")] = 0
    pages_late_total: Annotated[
        int, Counter("bsfg_peer_pages_late_total", "Accepted pages that answered a timed-out request.")
    ] = 0
    pages_dropped_total: Annotated[
        int, Counter("bsfg_peer_pages_dropped_total", "Pages dropped because they did not continue what is held.")
    ] = 0
    timeouts_total: Annotated[int, Counter("bsfg_peer_timeouts_total", "Requests that timed out.")] = 0
    unproven_total: Annotated[
        int,
        Counter(
            "bsfg_peer_unproven_total",
            "Answers without a valid proof of the peer; they are ignored.",
        ),
    ] = 0
    restarts_total: Annotated[
        int, Counter("bsfg_peer_restarts_total", "Pulls that started again because the peer's store was replaced.")
    ] = 0
    compared: ComparisonStatus | None = None
    page_waits: Annotated[str, Gauge("bsfg_peer_page_waits", "1 while a page that has arrived cannot be stored.")] = ""
    """Why a page that has arrived is not stored yet: the store refuses it, or an artifact it refers to is missing."""
    pacing: PacingStatus | None = None
    """None if the peer's bandwidth is not limited."""
    broker: str = ""
    """Over which it is pulled."""

    @property
    def is_silent(self) -> bool:
        """Whether the zone does not answer, for no reason of ours."""
        return not (self.connected or self.blocked or self.fenced)

    @property
    def subject(self) -> str:
        """What is wrong if something is: the stream, or all of a zone that is silent."""
        return f"peer {self.zone}" if self.is_silent else f"peer {self.zone}/{self.stream}"


@dataclass(frozen=True, slots=True)
class EventStatus:
    """Events and conditions of an OPC UA source."""

    events_total: Annotated[int, Counter("bsfg_source_events_total", "Events and states of conditions received.")]
    lost_total: Annotated[
        int, Counter("bsfg_source_events_lost_total", "Events received and lost; a fact records each loss.")
    ]
    conditions_retained: Annotated[
        int, Gauge("bsfg_source_conditions_retained", "Conditions that need an operator's attention.")
    ]
    last_event_unix_ms: Annotated[
        int | None,
        Gauge("bsfg_source_last_event_timestamp_seconds", "Unix time of the last event, by the server.", divisor=1000),
    ] = None


@dataclass(frozen=True, slots=True)
class SourceStatus:
    """A configured OPC UA server or Modbus device."""

    name: Annotated[str, Label("source")]
    kind: Annotated[str, Label("kind"), Sampled(meaning="Its protocol.")]
    connected: Annotated[bool, Gauge("bsfg_source_up", "1 while connected."), Sampled()]
    last_value_unix_ms: Annotated[
        int | None,
        Gauge("bsfg_source_last_value_timestamp_seconds", "Unix time of the last value.", divisor=1000),
        Sampled("ms"),
    ] = None
    values_total: Annotated[int, Counter("bsfg_source_values_total", "Values stored."), Sampled()] = 0
    errors_total: Annotated[int, Counter("bsfg_source_errors_total", "Errors of the source.")] = 0
    trouble: Annotated[str, Sampled(meaning="Why it is not connected.")] = ""
    tags_problem: str = ""
    """Why the current tag file is not in use."""
    tags: Annotated[int, Gauge("bsfg_source_tags", "Tags in its tag map."), Sampled()] = 0
    tags_bad: Annotated[int, Gauge("bsfg_source_tags_bad", "Tags whose last sample is bad."), Sampled()] = 0
    tags_silent: Annotated[
        int, Gauge("bsfg_source_tags_silent", "Tags without a sample since the start."), Sampled()
    ] = 0
    connects_total: Annotated[int, Counter("bsfg_source_connects_total", "Connections made.")] = 0
    lost_total: Annotated[
        int, Counter("bsfg_source_values_lost_total", "Values received and lost; a fact records each gap.")
    ] = 0
    backfilled_total: Annotated[
        int, Counter("bsfg_source_values_backfilled_total", "Values read from its history after a gap.")
    ] = 0
    gaps_open: Annotated[int, Gauge("bsfg_source_gaps_open", "Gaps that are not yet filled from its history.")] = 0
    duplicates_total: Annotated[
        int, Counter("bsfg_source_values_duplicate_total", "Values dropped because they were held already.")
    ] = 0
    out_of_order_total: Annotated[
        int,
        Counter(
            "bsfg_source_values_out_of_order_total", "Values recorded although they are older than the one before."
        ),
    ] = 0
    polls_total: Annotated[int, Counter("bsfg_source_polls_total", "Polls begun.")] = 0
    polls_missed_percent: float | None = None
    """In the last ten minutes; None if nothing is polled, or too short a time."""
    polls_missed_total: Annotated[
        int, Counter("bsfg_source_polls_missed_total", "Polls skipped because the one before took too long.")
    ] = 0
    polls_late_total: Annotated[
        int, Counter("bsfg_source_polls_late_total", "Polls begun more than a tenth of their interval late.")
    ] = 0
    store_refused_total: Annotated[
        int, Counter("bsfg_source_store_refusals_total", "Times that the store had no room for its values.")
    ] = 0
    certificate_days_left: Annotated[
        float | None,
        Gauge("bsfg_source_certificate_days_left", "Days until the first of our certificates for it expires."),
        Sampled("d"),
    ] = None
    certificate_file: str = ""
    """The one of these certificates that expires first."""
    clock_ahead_s: Annotated[
        float | None,
        Gauge("bsfg_source_clock_ahead_seconds", "By how much the clock of the source is ahead of this node's."),
    ] = None
    events: EventStatus | None = None
    """None if no events are asked for."""
    state: Annotated[str, Sampled(meaning="What it does now: waiting, connecting, connected, standby, ...")] = ""
    service_level: int | None = None
    """Of its OPC UA server, 0 to 255."""
    remarks: str = ""
    """What was learned about the device."""


@dataclass(frozen=True, slots=True)
class RequestStatus:
    """What peers and applications asked of this node."""

    fetches_total: Annotated[int, Counter("bsfg_fetch_requests_total", "FetchFacts answered.")] = 0
    confirms_total: Annotated[int, Counter("bsfg_confirm_requests_total", "Confirmations stored.")] = 0
    appends_total: Annotated[int, Counter("bsfg_append_requests_total", "Appends requested.")] = 0
    append_failures_total: Annotated[int, Counter("bsfg_append_failures_total", "Appends refused or failed.")] = 0
    appends_full_total: Annotated[
        int, Counter("bsfg_append_full_total", "Appends refused because the store or its disk was full.")
    ] = 0
    append_latency: Annotated[
        Latency, Histogram("bsfg_append_latency_seconds", "From the request to durable storage.")
    ] = Latency()
    append_p99_s: float | None = None
    """Of the last ten minutes; None after a few appends only."""
    commit_s: Annotated[float, Gauge("bsfg_commit_under_way_seconds", "For how long the commit under way lasts.")] = 0.0


@dataclass(frozen=True, slots=True)
class ServingStatus:
    """Requests of other zones: all by operation, refused ones by error code, unanswered ones by reason."""

    requests: Annotated[
        Mapping[str, int], Counter("bsfg_requests_total", "Requests of other zones.", key="operation")
    ] = field(default_factory=dict)
    refusals: Annotated[
        Mapping[str, int], Counter("bsfg_request_refusals_total", "Requests answered with an error.", key="code")
    ] = field(default_factory=dict)
    drops: Annotated[
        Mapping[str, int], Counter("bsfg_request_drops_total", "Messages dropped without an answer.", key="reason")
    ] = field(default_factory=dict)
    facts_sent_total: Annotated[int, Counter("bsfg_facts_sent_total", "Facts in answers.")] = 0
    bytes_sent_total: Annotated[int, Counter("bsfg_bytes_sent_total", "Bytes of answers.")] = 0
    waiting: Annotated[int, Gauge("bsfg_fetches_waiting", "Fetches that wait for facts now.")] = 0


@dataclass(frozen=True, slots=True)
class UnreferencedStatus:
    """What a zone brought that no fact refers to."""

    zone: Annotated[str, Label("zone")]
    bytes: Annotated[
        int,
        Gauge(
            "bsfg_store_artifact_unreferenced_bytes", "Artifacts that no fact refers to, by the zone that sent them."
        ),
    ]


@dataclass(frozen=True, slots=True)
class AbuseStatus:
    """A zone whose certificate uses more of a broker of this machine than a zone does."""

    zone: Annotated[str, Label("zone")]
    why: str
    sessions: Annotated[int, Gauge("bsfg_broker_abusing_sessions", "Sessions of a zone that has too many.")]


@dataclass(frozen=True, slots=True)
class ShareStatus:
    """A zone whose facts are refused, because its share of the store is used up and the rest is kept for others."""

    zone: Annotated[str, Label("zone")]
    why: Annotated[str, Gauge("bsfg_store_share_used_up", "1 while facts of the zone are refused for its share.")]


@dataclass(frozen=True, slots=True)
class StoreStatus:
    """What the store took in, what its queue holds, and the size of its files."""

    facts_appended_total: Annotated[int, Counter("bsfg_store_facts_appended_total", "Facts recorded here.")] = 0
    facts_received_total: Annotated[int, Counter("bsfg_store_facts_received_total", "Facts of peers stored.")] = 0
    facts_duplicate_total: Annotated[
        int, Counter("bsfg_store_facts_duplicate_total", "Facts that were held already.")
    ] = 0
    commits_total: Annotated[int, Counter("bsfg_store_commits_total", "Commits.")] = 0
    queue_facts: Annotated[int, Gauge("bsfg_store_queue_facts", "Facts that wait for the next commit.")] = 0
    queue_facts_max: Annotated[
        int, Gauge("bsfg_store_queue_facts_max", "Facts that may wait; at this limit sources are slowed.")
    ] = 0
    queue_bytes: Annotated[int, Gauge("bsfg_store_queue_bytes", "Bytes that wait for the next commit.")] = 0
    queue_bytes_max: Annotated[
        int, Gauge("bsfg_store_queue_bytes_max", "Bytes that may wait; at this limit sources are slowed.")
    ] = 0
    file_bytes: Annotated[int, Gauge("bsfg_store_file_bytes", "Size of the database."), Sampled("B")] = 0
    log_bytes: Annotated[int, Gauge("bsfg_store_log_bytes", "Size of its write-ahead log.")] = 0
    written_bytes_total: Annotated[
        int | None,
        Counter("bsfg_store_written_bytes_total", "Bytes that the node wrote to its disks, as counted by the kernel."),
    ] = None
    artifact_bytes: Annotated[
        int, Gauge("bsfg_store_artifact_bytes", "Size of artifacts, including incomplete ones.")
    ] = 0
    artifact_bytes_max: Annotated[
        int | None, Gauge("bsfg_store_artifact_bytes_max", "Their limit, artifacts_total_bytes_max.")
    ] = None
    artifact_bytes_lacking: Annotated[
        int, Gauge("bsfg_store_artifact_bytes_lacking", "Bytes missing for the artifact that a limit last refused.")
    ] = 0
    artifact_limit: str = ""
    """The setting that last refused an artifact which still waits."""
    artifact_unreferenced_bytes_max: Annotated[
        int, Gauge("bsfg_store_artifact_unreferenced_bytes_max", "Limit per zone; 0 is no limit.")
    ] = 0
    artifact_unreferenced: tuple[UnreferencedStatus, ...] = ()
    appends_refused: Annotated[
        str, Gauge("bsfg_store_appends_refused", "1 while the store refuses new facts."), Sampled()
    ] = ""
    """Why; empty if the last append was stored."""
    refused_remedy: str = ""
    refused_since_unix_ms: int | None = None
    shares_used_up: tuple[ShareStatus, ...] = ()


@dataclass(frozen=True, slots=True)
class SpanStatus:
    """Requests of one operation (agent/telemetry.py). `stopped` are the durations of those that were answered."""

    name: Annotated[str, Label("span")]
    side: Annotated[str, Label("side")]
    operation: Annotated[str, Label("operation")] = ""
    """Of the protocol; empty for unreadable requests."""
    started_total: Annotated[int, Counter("bsfg_spans_total", "Requests between nodes, by event.", event="start")] = 0
    failed_total: Annotated[
        int, Counter("bsfg_spans_total", "Requests between nodes, by event.", event="exception")
    ] = 0
    discarded_total: Annotated[
        int, Counter("bsfg_spans_total", "Requests between nodes, by event.", event="discarded")
    ] = 0
    stopped: Annotated[
        Latency,
        Counter("bsfg_spans_total", "Requests between nodes, by event.", event="stop"),
        Histogram("bsfg_span_seconds", "Durations of requests that were answered."),
    ] = Latency()


@dataclass(frozen=True, slots=True)
class IntegrityStatus:
    """Damage found since the start, batches verified in the background, the size of damaged files that were set aside,
    and how often the store was found gone or short."""

    damages: Annotated[int, Gauge("bsfg_store_damages", "Damaged places found since the start.")] = 0
    batches_verified: Annotated[
        int, Counter("bsfg_store_batches_verified_total", "Batches compared with their digest in the background.")
    ] = 0
    last_full_pass_unix_ms: Annotated[
        int | None,
        Gauge("bsfg_store_verified_time_seconds", "Unix time when all was last verified.", divisor=1000),
    ] = None
    set_aside_bytes: Annotated[int, Gauge("bsfg_store_set_aside_bytes", "Bytes of damaged files set aside.")] = 0
    losses: Annotated[
        int,
        Gauge(
            "bsfg_store_losses",
            "How often within the last day the store was found missing or to be an old copy.",
        ),
    ] = 0


@dataclass(frozen=True, slots=True)
class ClockChangeStatus:
    """The last change of the clock of a zone whose facts are here, within a day."""

    zone: Annotated[str, Label("zone")]
    text: Annotated[str, Sampled(meaning="How its clock was set last, within a day.")]


@dataclass(frozen=True, slots=True)
class HistoryStatus:
    """An incident of the last day about the history of a zone, or about this log: its kind, subject and detail."""

    kind: str
    subject: str
    text: str


@dataclass(frozen=True, slots=True)
class ClockStatus:
    """The node's clock. `doubt`: why it is not believed (agent/ingest/clock.py), empty if it is; `newest_unix_ms`: the
    newest time that was believed."""

    doubt: Annotated[str, Gauge("bsfg_clock_not_believed", "1 while times of this node's clock are not believed.")] = ""
    newest_unix_ms: int = 0


@dataclass(frozen=True, slots=True)
class NotInForceStatus:
    """A part of node.toml that was wrong at the start. `is_kept`: it goes on as it was last in force; otherwise the
    node runs without it."""

    subject: str
    why: str
    is_kept: bool


@dataclass(frozen=True, slots=True)
class PairRefusal:
    """The other gateway or the witness refuses this one's question who leads: the code of its answer, its words, and
    what to do for the code."""

    node: str
    code: str
    why: str
    hint: str


@dataclass(frozen=True, slots=True)
class PairSnapshot:
    """A gateway of two that record for one zone. `role`: leads, follows, or alone, which records without hearing the
    other gateway or the witness. `leader`: the node that leads by what this one knows; empty if none does.
    `partner_state`: leads, follows or releases, as the other one said last. A `_heard_ms` is the time since the last
    answer; None before the first. `since_unix_ms`: of role and leader. `refusals` are those of the last seconds."""

    zone: str
    role: Annotated[str, Sampled(meaning="Whether it leads, follows, or records alone.")]
    term: Annotated[int, Gauge("bsfg_pair_term", "Number of the life with which the leader records."), Sampled()]
    leader: Annotated[str, Sampled(meaning="The gateway that leads, empty if none does.")]
    partner: Annotated[str, Sampled(meaning="The other gateway.")]
    since_unix_ms: Annotated[int, Sampled("ms", "Since when role and leader are these.")]
    partner_state: str = ""
    partner_heard_ms: Annotated[
        int | None,
        Gauge("bsfg_pair_partner_heard_seconds", "Time since the other gateway answered.", divisor=1000),
        Sampled("ms"),
    ] = None
    witness: Annotated[str, Sampled(meaning="The node that lends the lead.")] = ""
    witness_heard_ms: Annotated[
        int | None,
        Gauge("bsfg_pair_witness_heard_seconds", "Time since the witness answered.", divisor=1000),
        Sampled("ms"),
    ] = None
    partner_clock_ahead_ms: Annotated[
        int | None,
        Gauge("bsfg_pair_clock_ahead_seconds", "How far the other gateway's clock is ahead.", divisor=1000),
        Sampled("ms"),
    ] = None
    refusals: tuple[PairRefusal, ...] = ()

    @property
    def is_recording(self) -> bool:
        """Whether this gateway records the zone."""
        return self.role in RECORDING


@dataclass(frozen=True, slots=True)
class NodeSnapshot:
    """The status of a node at one moment."""

    zone: Annotated[str, Sampled(meaning="The zone for which it records.")]
    life: str
    taken_unix_ms: int
    started_unix_ms: Annotated[
        int, Gauge("bsfg_node_start_time_seconds", "Unix time at which the node started.", divisor=1000), Sampled("ms")
    ]
    store_fill_percent: Annotated[
        float | None,
        Gauge("bsfg_store_buffer_fill_percent", "Percentage of the nearest limit that retention cannot free."),
        Sampled("%"),
    ]
    streams: tuple[StreamStatus, ...] = ()
    consumers: tuple[ConsumerStatus, ...] = ()
    brokers: tuple[BrokerStatus, ...] = ()
    broker_abuses: tuple[AbuseStatus, ...] = ()
    peers: tuple[PeerStatus, ...] = ()
    sources: tuple[SourceStatus, ...] = ()
    requests: RequestStatus = RequestStatus()
    serving: ServingStatus = ServingStatus()
    store: StoreStatus = StoreStatus()
    spans: tuple[SpanStatus, ...] = ()
    certificate_days_left: Annotated[
        float | None,
        Gauge("bsfg_certificate_days_left", "Days until the first certificate in use expires."),
        Sampled("d"),
    ] = None
    certificate_file: str = ""
    """That certificate."""
    integrity: IntegrityStatus = IntegrityStatus()
    clock: ClockStatus = ClockStatus()
    clock_changes: tuple[ClockChangeStatus, ...] = ()
    history: tuple[HistoryStatus, ...] = ()
    facts_unsigned: Annotated[bool, Gauge("bsfg_facts_unsigned", "1 while the node cannot use its signing key.")] = (
        False
    )
    config_changed: bool = False
    """node.toml has changed since the node last read it."""
    config_refused: str = ""
    """Why the node kept its settings when node.toml was reloaded; empty if it took them over."""
    config_not_in_force: tuple[NotInForceStatus, ...] = ()
    """What the start left out of node.toml."""
    config_waits: tuple[str, ...] = ()
    """Settings of node.toml that a restart puts in force."""
    version: Annotated[str, Sampled(meaning="Version of the program.")] = __version__
    since: Mapping[str, int] = field(default_factory=dict)
    """Since when each level and each reason has been there (`problems.Reason.key`), in Unix milliseconds."""
    node: str = ""
    """Its name, if it is not that of its zone."""
    pair: PairSnapshot | None = None
    """None if no other gateway records for its zone."""
    zones_accepted: tuple[str, ...] | None = None
    """The zones whose facts peers may bring; None if nothing is pulled, as over a store from elsewhere."""

    @property
    def name(self) -> str:
        """The name of the node, which is the zone of its health."""
        return self.node or self.zone
