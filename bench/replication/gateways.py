"""Gateways as one finds them, good ones and some in trouble, as snapshots: for the plants of a fleet and for tests."""

from __future__ import annotations

from dataclasses import replace

from agent.health.snapshot import (
    BrokerStatus,
    ConsumerStatus,
    NodeSnapshot,
    SourceStatus,
    StoreStatus,
    StreamStatus,
)

TROUBLES = {7: "lost", 12: "behind", 55: "full", 70: "bad"}
"""By the last two digits of a zone's number."""
LOST = "SourceLost: connection refused by 10.20.4.13:502"


def gateway(zone: str, now_ms: int) -> NodeSnapshot:
    """A gateway with three sources that feeds one zone above."""
    return NodeSnapshot(
        zone,
        "00" * 16,
        now_ms,
        now_ms - 9 * 86_400_000,
        22.0,
        streams=(StreamStatus("facts.telemetry", 1, 12_000_000, 1_760_000_000, inflow_bytes_per_s=1300.0),),
        consumers=(ConsumerStatus("idmz.facts.telemetry", "facts.telemetry", "idmz", "online", 12_000_000, 0),),
        brokers=(BrokerStatus("site", True, 1),),
        sources=(
            SourceStatus("press", "opcua", True, now_ms - 300, 9_000_000, tags=1200),
            SourceStatus("boiler", "modbus", True, now_ms - 900, 4_000_000, tags=340),
            SourceStatus("oven", "modbus", True, now_ms - 500, 400_000, tags=40),
        ),
        store=StoreStatus(file_bytes=1_800_000_000),
        certificate_days_left=200.0,
    )


def with_trouble(snapshot: NodeSnapshot, trouble: str) -> NodeSnapshot:
    """The same gateway with a device lost, a backlog, a full store, or bad tags."""
    first, *others = snapshot.sources
    (consumer,) = snapshot.consumers
    match trouble:
        case "lost":
            return replace(snapshot, sources=(replace(first, connected=False, trouble=LOST), *others))
        case "behind":
            late = replace(consumer, behind_facts=900_000, oldest_unconfirmed_age_s=840.0, bytes_held=9_000_000)
            return replace(snapshot, consumers=(late,))
        case "full":
            return replace(snapshot, store_fill_percent=83.0)
        case "bad":
            return replace(snapshot, sources=(replace(first, tags_bad=2), *others))
    return snapshot


def trouble_of(zone: str) -> str:
    """What ails a numbered zone, if anything."""
    number = zone.rpartition("-")[2]
    return TROUBLES.get(int(number) % 100, "") if number.isdecimal() else ""
