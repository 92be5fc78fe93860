"""The metrics as Prometheus reads them: parsed by its own parser, under the specification's names."""

from dataclasses import replace

from prometheus_client.parser import text_string_to_metric_families

from agent.health.metrics import render
from agent.health.snapshot import NodeSnapshot, ServingStatus

# The names that the specification promises (section 8), as its readers will put them into a query.
PROMISED = {
    "bsfg_replication_lag_seconds",
    "bsfg_replication_lag_high_watermark",
    "bsfg_frontier_offset",
    "bsfg_fetch_requests_total",
    "bsfg_confirm_requests_total",
    "bsfg_append_requests_total",
    "bsfg_append_failures_total",
    "bsfg_store_buffer_fill_percent",
    "bsfg_append_latency_seconds_bucket",
    "bsfg_append_latency_seconds_count",
    "bsfg_append_latency_seconds_sum",
}


def samples(snapshot: NodeSnapshot) -> dict[str, dict[tuple[str, ...], float]]:
    """Sample name -> label values in the order of their names -> value, as the parser sees the rendered text."""
    found: dict[str, dict[tuple[str, ...], float]] = {}
    for family in text_string_to_metric_families(render(snapshot).decode()):
        assert family.documentation, family.name
        for sample in family.samples:
            row = found.setdefault(sample.name, {})
            labels = tuple(sample.labels.values())
            assert labels not in row, f"{sample.name}{labels} twice"
            row[labels] = sample.value
    return found


def test_the_promised_names_are_there(healthy: NodeSnapshot) -> None:
    """Each name of the specification appears as a sample, and every name of ours starts with bsfg_."""
    found = samples(healthy)
    assert found.keys() >= PROMISED
    assert all(name.startswith("bsfg_") for name in found)


def test_values_are_those_of_the_snapshot(healthy: NodeSnapshot) -> None:
    """The values are those of the snapshot, under their labels."""
    serving = ServingStatus({"FetchFacts": 7, "GetBounds": 2}, {"busy": 1, "fenced": 3})
    found = samples(replace(healthy, serving=serving))
    assert found["bsfg_requests_total"] == {("FetchFacts",): 7, ("GetBounds",): 2}
    assert found["bsfg_request_refusals_total"] == {("busy",): 1, ("fenced",): 3}
    assert found["bsfg_frontier_offset"] == {("enterprise.facts.telemetry", "facts.telemetry", "enterprise"): 12_000}
    assert found["bsfg_replication_lag_high_watermark"] == {("plant", "facts.telemetry"): 0.4}
    assert (found["bsfg_broker_up"], found["bsfg_broker_connects_total"]) == ({("site",): 1}, {("site",): 1})
    assert found["bsfg_fetch_requests_total"] == {(): 400}
    assert found["bsfg_source_last_value_timestamp_seconds"] == {("opcua", "line1"): 1_794_999_999.5}
    assert found["bsfg_node_verdict"] == {("good",): 1, ("late",): 0, ("full",): 0, ("broken",): 0}
    assert found["bsfg_node_alert"] == {(): 0}


def test_limits_and_hours_are_metrics(healthy: NodeSnapshot) -> None:
    """Limits and hours of a stream, and what is kept for a consumer. An unknown value has no sample, rather than one of
    0."""
    unknown = replace(healthy, peers=(replace(healthy.peers[0], lag_seconds=None),), certificate_days_left=None)
    absent = {"bsfg_store_hours_until_full", "bsfg_replication_lag_seconds", "bsfg_certificate_days_left"}
    assert not absent & samples(unknown).keys()
    stream = replace(
        healthy.streams[0], bytes_max=10**6, fill_percent=9.6, inflow_bytes_per_s=5.0, hours_until_full=50.0
    )
    consumer = replace(healthy.consumers[0], bytes_held=4096, hours_held=2.0, hours_until_ttl_loss=166.0)
    found = samples(replace(healthy, streams=(replace(stream, ttl_hours=168.0),), consumers=(consumer,)))
    by_stream, by_consumer = ("facts.telemetry",), ("enterprise.facts.telemetry", "facts.telemetry", "enterprise")
    assert found["bsfg_store_bytes_max"] == {by_stream: 10**6}
    assert found["bsfg_store_stream_fill_percent"] == {by_stream: 9.6}
    assert found["bsfg_store_inflow_bytes_per_second"] == {by_stream: 5.0}
    assert found["bsfg_store_hours_until_full"] == {by_stream: 50.0}
    assert found["bsfg_store_ttl_hours"] == {by_stream: 168.0}
    assert found["bsfg_consumer_held_bytes"] == {by_consumer: 4096}
    assert found["bsfg_consumer_held_hours"] == {by_consumer: 2.0}
    assert found["bsfg_consumer_hours_until_ttl_loss"] == {by_consumer: 166.0}
    assert "bsfg_store_hours_until_ttl_loss" not in found


def test_histogram_buckets_are_cumulative(healthy: NodeSnapshot) -> None:
    """Buckets are cumulative and end with the count."""
    found = samples(healthy)
    buckets = list(found["bsfg_append_latency_seconds_bucket"].values())
    assert buckets[:4] == [90, 99, 100, 100]
    assert buckets == sorted(buckets)
    assert buckets[-1] == found["bsfg_append_latency_seconds_count"][()] == 100
    assert found["bsfg_append_latency_seconds_sum"][()] == 0.07


def test_special_characters_in_names_are_escaped(healthy: NodeSnapshot) -> None:
    """Quotes, line ends and backslashes in a source's name are escaped and restored."""
    odd = 'a"b\\c\nd'
    found = samples(replace(healthy, sources=(replace(healthy.sources[0], name=odd),)))
    assert found["bsfg_source_up"] == {("opcua", odd): 1}
