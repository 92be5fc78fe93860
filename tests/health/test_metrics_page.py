"""docs/reference/metrics.md names metrics that there are, and every span."""

import re
from dataclasses import fields, is_dataclass, replace
from pathlib import Path
from typing import Any

from agent.health.metrics import families
from agent.health.problems import Level
from agent.health.snapshot import (
    AbuseStatus,
    BrokerStatus,
    CatchUpStatus,
    ComparisonStatus,
    ConsumerStatus,
    EventStatus,
    NodeSnapshot,
    PacingStatus,
    PairSnapshot,
    PeerStatus,
    ServingStatus,
    SourceStatus,
    SpanStatus,
    StoreStatus,
    StreamStatus,
    UnreferencedStatus,
)
from agent.page.fleet import Gateway, ZoneRow
from agent.telemetry import Span

PAGE = Path(__file__).parents[2] / "docs/reference/metrics.md"


def known(record: Any) -> Any:
    """The same record with a value in place of each None."""
    unknown = {member.name: 1.0 for member in fields(record) if getattr(record, member.name) is None}
    inner = {member.name: getattr(record, member.name) for member in fields(record) if member.name not in unknown}
    return replace(record, **unknown, **{name: known(member) for name, member in inner.items() if is_dataclass(member)})


def everything() -> NodeSnapshot:
    """A snapshot without an unknown value."""
    return known(
        NodeSnapshot(
            "idmz",
            "0" * 32,
            0,
            0,
            0.0,
            streams=(known(StreamStatus("s", 1, 1, 1)),),
            consumers=(known(ConsumerStatus("c", "s", "z", "online", 1, 0)),),
            brokers=(BrokerStatus("b", True),),
            broker_abuses=(AbuseStatus("z", "", 1),),
            peers=(
                known(
                    PeerStatus(
                        "p",
                        "s",
                        True,
                        1,
                        1,
                        catch_up=CatchUpStatus(0, 1.0, 1.0, 1.0),
                        compared=ComparisonStatus(1, 1, 1, 1, 1),
                        pacing=PacingStatus(1, True, 1.0, 1, 1),
                    )
                ),
            ),
            sources=(known(SourceStatus("o", "opcua", True, events=EventStatus(1, 1, 1))),),
            serving=ServingStatus({"FetchFacts": 1, "GetBounds": 2}, {"busy": 1}, {"bad_topic": 1}),
            store=known(StoreStatus(artifact_unreferenced=(UnreferencedStatus("z", 1),))),
            spans=tuple(SpanStatus(span, span.side, "GetLatest") for span in Span),
            pair=known(PairSnapshot("z", "leads", 1, "a", "b", 0)),
        )
    )


def names() -> set[str]:
    """The names of all metrics, as a scrape shows them."""
    gateway = Gateway("z", "leads", 0.0, True, Level.GOOD, 0.0, "", 1.0)
    zone = ZoneRow("z", Level.GOOD, False, 0.0, "", "", 1.0, 1.0, 1.0, gateways=(gateway,))
    return {sample.name for family in families(everything(), [zone]) for sample in family.samples}


def test_the_page_names_metrics_that_there_are() -> None:
    """A metric that was renamed is renamed on the page, too."""
    assert set(re.findall(r"bsfg_[a-z_]+", PAGE.read_text("utf-8"))) - {"bsfg_span_seconds"} <= names()


def test_every_span_is_on_the_page() -> None:
    """The table of spans has those of the code, in its order."""
    section = PAGE.read_text("utf-8").split("## Spans")[1]
    assert re.findall(r"^\| `([a-z_]+)` \| `([a-z]+)` \|", section, re.MULTILINE) == [
        (span, span.side) for span in Span
    ]
