"""docs/reference/metrics.md names metrics that there are, and every span."""

import re
from dataclasses import fields, is_dataclass, replace
from pathlib import Path
from typing import Any

from agent.health.metrics import families
from agent.health.problems import Level
from agent.health.snapshot import (
    AbuseStatus,
    CatchUpStatus,
    ComparisonStatus,
    EventStatus,
    NodeSnapshot,
    PacingStatus,
    PairSnapshot,
    ServingStatus,
    SpanStatus,
    StoreStatus,
    UnreferencedStatus,
)
from agent.page.fleet import Gateway, ZoneRow
from agent.telemetry import Span

PAGE = Path(__file__).parents[2] / "docs/reference/metrics.md"


def known(value: Any) -> Any:
    """The same record with a value in place of each None in it, and in the records that it holds."""
    if isinstance(value, tuple):
        return tuple(map(known, value))
    if is_dataclass(value) and not isinstance(value, type):
        return replace(value, **{member.name: known(getattr(value, member.name)) for member in fields(value)})
    return 1.0 if value is None else value


def everything(healthy: NodeSnapshot) -> NodeSnapshot:
    """A snapshot without an unknown value."""
    peer = replace(
        healthy.peers[0],
        catch_up=CatchUpStatus(0, 1.0, 1.0, 1.0),
        compared=ComparisonStatus(1, 1, 1, 1, 1),
        pacing=PacingStatus(1, True, 1.0, 1, 1),
    )
    whole = replace(
        healthy,
        broker_abuses=(AbuseStatus("z", "", 1),),
        peers=(peer,),
        sources=(replace(healthy.sources[0], events=EventStatus(1, 1, 1)),),
        serving=ServingStatus({"FetchFacts": 1, "GetBounds": 2}, {"busy": 1}, {"bad_topic": 1}),
        store=StoreStatus(artifact_unreferenced=(UnreferencedStatus("z", 1),)),
        spans=tuple(SpanStatus(span, span.side, "GetLatest") for span in Span),
        pair=PairSnapshot("z", "leads", 1, "a", "b", 0),
    )
    return known(whole)  # type: ignore[no-any-return]


def names(healthy: NodeSnapshot) -> set[str]:
    """The names of all metrics, as a scrape shows them."""
    gateway = Gateway("z", "leads", 0.0, True, Level.GOOD, 0.0, "", 1.0)
    zone = ZoneRow("z", Level.GOOD, False, 0.0, "", "", 1.0, 1.0, 1.0, gateways=(gateway,))
    return {sample.name for family in families(everything(healthy), [zone]) for sample in family.samples}


def test_the_page_names_metrics_that_there_are(healthy: NodeSnapshot) -> None:
    """A metric that was renamed is renamed on the page, too."""
    assert set(re.findall(r"bsfg_[a-z_]+", PAGE.read_text("utf-8"))) - {"bsfg_span_seconds"} <= names(healthy)


def test_every_span_is_on_the_page() -> None:
    """The table of spans has those of the code, in its order."""
    section = PAGE.read_text("utf-8").split("## Spans")[1]
    assert re.findall(r"^\| `([a-z_]+)` \| `([a-z]+)` \|", section, re.MULTILINE) == [
        (span, span.side) for span in Span
    ]
