"""The snapshot of a healthy node, which each test changes."""

import pytest

from agent.health.snapshot import (
    BrokerStatus,
    ConsumerStatus,
    Latency,
    NodeSnapshot,
    PeerStatus,
    RequestStatus,
    SourceStatus,
    StreamStatus,
)
from agent.telemetry import BOUNDS_S

NOW_MS = 1_795_000_000_000


@pytest.fixture
def healthy() -> NodeSnapshot:
    """Everything is connected, nothing is behind, the store is nearly empty."""
    counts = (90, 9, 1, *[0] * 11)
    return NodeSnapshot(
        zone="idmz",
        life="00112233445566778899aabbccddeeff",
        taken_unix_ms=NOW_MS,
        started_unix_ms=NOW_MS - 3_600_000,
        store_fill_percent=3.5,
        streams=(StreamStatus("facts.telemetry", 1, 12_000, 96_000),),
        consumers=(ConsumerStatus("enterprise.facts.telemetry", "facts.telemetry", "enterprise", "online", 12_000, 0),),
        brokers=(BrokerStatus("site", True, 1),),
        peers=(PeerStatus("plant", "facts.telemetry", True, 12_000, 12_000, 0.0, 0.4),),
        sources=(SourceStatus("line1", "opcua", True, NOW_MS - 500, 9_000, 0),),
        requests=RequestStatus(400, 390, 100, 0, 0, Latency(counts, 0.07, BOUNDS_S)),
        certificate_days_left=200.0,
    )
