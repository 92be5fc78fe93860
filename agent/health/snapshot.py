"""What health reads: one frozen picture of a node, taken by the node, judged and shown here.

The picture is the port between health and everything else. No part of the product is known here, only figures; a figure
that the node cannot know is None, never a made-up number. Counters count since the process started. Times ending in
`_unix_ms` are wall clock, ages are already ages, because only the node knows which clock to trust.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

# From a tenth of an fsync on good flash to the time after which a caller has long given up.
LATENCY_BOUNDS_S = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0)


@dataclass(frozen=True, slots=True)
class Latency:
    """A histogram: `counts[i]` durations lay above bounds_s[i - 1] and not above bounds_s[i]; the last, above them all."""

    counts: tuple[int, ...] = (0,) * (len(LATENCY_BOUNDS_S) + 1)
    sum_s: float = 0.0
    bounds_s: tuple[float, ...] = LATENCY_BOUNDS_S

    def __post_init__(self) -> None:
        assert len(self.counts) == len(self.bounds_s) + 1, "one count per bound, and one for what lies above"
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


@dataclass(frozen=True, slots=True)
class StreamFigures:
    """A stream of the store: what it holds, from the first offset kept to the last one written, and what is to be expected.

    `fill_percent` is what would not yield to new facts, of `bytes_max`. Hours are None where nothing is to be expected: no
    limit, no inflow, nobody behind, or the other end comes first.
    """

    name: str
    first_offset: int
    end_offset: int
    bytes: int
    bytes_max: int | None = None
    fill_percent: float | None = None
    inflow_bytes_per_s: float | None = None
    hours_until_full: float | None = None
    ttl_hours: float | None = None
    hours_until_ttl_loss: float | None = None


@dataclass(frozen=True, slots=True)
class ConsumerFigures:
    """A registered reader of a stream, how far it is behind, and what is kept for it alone or among others.

    `oldest_unconfirmed_age_s` is for how long the oldest fact that it lacks has waited for it here, whatever its source time;
    `facts_per_s` what it confirms, None while it stands still; `seconds_left` until it has everything, None where it does not close in.
    """

    name: str
    stream: str
    zone: str
    state: str
    frontier: int
    behind_facts: int
    oldest_unconfirmed_age_s: float | None = None
    bytes_held: int | None = None
    hours_held: float | None = None
    hours_until_ttl_loss: float | None = None
    facts_per_s: float | None = None
    seconds_left: float | None = None


@dataclass(frozen=True, slots=True)
class BrokerFigures:
    """A broker where this node meets its peers: without it nobody can pull from here, nor we from anybody."""

    name: str
    connected: bool
    connects_total: int = 0
    failures_total: int = 0  # tries that came to no connection
    strangers_total: int = 0  # messages that nobody here had asked for
    trouble: str = ""
    needs_person: bool = False  # what keeps us out does not pass by itself
    identity_trouble: str = ""  # why the certificate in its files is not the one in force


@dataclass(frozen=True, slots=True)
class CatchUpFigures:
    """How a pull that is far behind catches up; `seconds_left` is None while it is not known, or where it does not close in."""

    from_offset: int
    percent: float
    facts_per_s: float | None
    seconds_left: float | None


@dataclass(frozen=True, slots=True)
class PacingFigures:
    """What `bytes_per_second_max` of a peer does to a pull: whether and for how long, in all, it kept it from asking. Of all streams of
    the peer together: bytes that came before they were due, still to be waited off, and waited off since the start."""

    bytes_per_second_max: int
    waits: bool
    waited_seconds_total: float
    bytes_owed: int
    bytes_waited_off_total: int


@dataclass(frozen=True, slots=True)
class ComparisonFigures:
    """What comparing with a peer has found and repaired since the start. `is_equal`: whether the last comparison left nothing that
    differs, None before the first."""

    comparisons_total: int
    failures_total: int
    divergent_ranges_total: int
    repaired_ranges_total: int
    repaired_facts_total: int
    last_unix_ms: int | None = None
    is_equal: bool | None = None


@dataclass(frozen=True, slots=True)
class PeerFigures:
    """A stream we pull from another zone. `lag_seconds` is the age of the oldest fact that is there and not yet here; 0 when
    nothing is outstanding, growing while the peer cannot be asked, None before the first answer."""

    zone: str
    stream: str
    connected: bool
    position: int
    end_offset: int
    lag_seconds: float | None = None
    lag_seconds_max: float = 0.0
    trouble: str = ""
    fenced: bool = False  # another instance of this node pulls in its place: it has stopped for good
    stands: bool = (
        False  # refused for good, by the peer or by our store: it is asked rarely, and waiting does not mend it
    )
    catch_up: CatchUpFigures | None = None
    lease: int = 0  # ours at the peer; 0 where it gives none
    facts_stored_total: int = 0
    facts_duplicate_total: int = 0
    pages_total: int = 0
    pages_late_total: int = 0
    pages_dropped_total: int = 0
    timeouts_total: int = 0
    restarts_total: int = 0  # because the peer's store had become another
    compared: ComparisonFigures | None = None
    page_waits: str = (
        ""  # why a page that has come is not stored yet: our store refuses it, or what it refers to does not come
    )
    pacing: PacingFigures | None = None  # where the peer's bandwidth is limited


@dataclass(frozen=True, slots=True)
class SourceFigures:
    """A configured OPC UA server or Modbus device. Of its values: those taken in, those lost (facts name the gaps), those not kept because
    they were there already or came behind newer ones; polls whose turn was over; times that the store had no room."""

    name: str
    kind: str
    connected: bool
    last_value_unix_ms: int | None = None
    values_total: int = 0
    errors_total: int = 0
    trouble: str = ""
    tags_problem: str = ""  # why its tag file as it stands is not in force
    tags: int = 0
    tags_bad: int = 0  # of them, that cannot be read although the source is there
    connects_total: int = 0
    lost_total: int = 0
    duplicates_total: int = 0
    out_of_order_total: int = 0
    polls_missed_total: int = 0
    store_refused_total: int = 0


@dataclass(frozen=True, slots=True)
class RequestFigures:
    """What was asked of this node, by peers and by applications."""

    fetches_total: int = 0
    confirms_total: int = 0
    appends_total: int = 0
    append_failures_total: int = 0
    append_latency: Latency = Latency()


@dataclass(frozen=True, slots=True)
class ServingFigures:
    """What was asked by other zones: requests by operation, those answered with an error by its code, those not answered by the
    reason; facts and bytes in answers; fetches that wait for facts now."""

    requests: Mapping[str, int] = field(default_factory=dict)
    refusals: Mapping[str, int] = field(default_factory=dict)
    drops: Mapping[str, int] = field(default_factory=dict)
    facts_sent_total: int = 0
    bytes_sent_total: int = 0
    waiting: int = 0


@dataclass(frozen=True, slots=True)
class StoreFigures:
    """What the store took in, what waits for its disk now and may at most, and its files: the database, its write-ahead
    log, and artifacts, also such as are still coming in."""

    facts_appended_total: int = 0
    facts_received_total: int = 0
    facts_duplicate_total: int = 0
    commits_total: int = 0
    queue_facts: int = 0
    queue_facts_max: int = 0
    queue_bytes: int = 0
    queue_bytes_max: int = 0
    file_bytes: int = 0
    log_bytes: int = 0
    artifact_bytes: int = 0
    artifact_bytes_max: int | None = None
    artifact_bytes_lacking: int = 0  # for the artifact that this limit last refused, and that waits


@dataclass(frozen=True, slots=True)
class SpanFigures:
    """One kind of step of replication (agent/telemetry.py): how many began, failed or were discarded, how long the others took."""

    name: str
    side: str
    operation: str = ""  # of the protocol, where they are counted one by one
    started_total: int = 0
    failed_total: int = 0
    discarded_total: int = 0
    stopped: Latency = Latency()


@dataclass(frozen=True, slots=True)
class IntegrityFigures:
    """What the store found damaged in this life, what it looked at, and what lies set aside beside it."""

    damages: int = 0
    batches_verified: int = 0
    last_full_pass_unix_ms: int | None = None
    set_aside_bytes: int = 0


@dataclass(frozen=True, slots=True)
class NodeSnapshot:
    """A node at one moment."""

    zone: str
    epoch: str
    taken_unix_ms: int
    started_unix_ms: int
    store_fill_percent: float | None  # of its limits, what would not yield to new facts
    streams: tuple[StreamFigures, ...] = ()
    consumers: tuple[ConsumerFigures, ...] = ()
    brokers: tuple[BrokerFigures, ...] = ()
    peers: tuple[PeerFigures, ...] = ()
    sources: tuple[SourceFigures, ...] = ()
    requests: RequestFigures = RequestFigures()
    serving: ServingFigures = ServingFigures()
    store: StoreFigures = StoreFigures()
    spans: tuple[SpanFigures, ...] = ()
    certificate_days_left: float | None = None
    integrity: IntegrityFigures = IntegrityFigures()

    def to_json(self) -> dict[str, Any]:
        """The same figures as plain objects."""
        return asdict(self)
