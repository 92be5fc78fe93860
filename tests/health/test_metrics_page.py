"""docs/reference/metrics.md names every metric there is, with its labels, and no other; also every span.

Run this file as a program to write the table anew.
"""

import re
from collections.abc import Iterator
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
    PeerStatus,
    ServingStatus,
    SourceStatus,
    SpanStatus,
    StoreStatus,
    StreamStatus,
    UnreferencedStatus,
)
from agent.page.fleet import ZoneRow
from agent.telemetry import STEPS

PAGE = Path(__file__).parents[2] / "docs/reference/metrics.md"
HISTOGRAMS = {"`bsfg_append_latency_seconds`", "`bsfg_span_seconds`"}  # as the page says
TABLES = re.compile(r"(<!-- metrics: from agent/health/snapshot.py -->\n).*?(?=<!-- end -->)", re.DOTALL)


def known(record: Any) -> Any:
    """The same record with a value in place of each None."""
    unknown = {each.name: 1.0 for each in fields(record) if getattr(record, each.name) is None}
    inner = {each.name: getattr(record, each.name) for each in fields(record) if each.name not in unknown}
    return replace(record, **unknown, **{name: known(one) for name, one in inner.items() if is_dataclass(one)})


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
            serving=ServingStatus({"FetchFacts": 1}, {"busy": 1}, {"bad_topic": 1}),
            store=known(StoreStatus(artifact_unreferenced=(UnreferencedStatus("z", 1),))),
            spans=tuple(SpanStatus(span, side, "GetLatest") for span, side in STEPS),
        )
    )


def rows() -> Iterator[tuple[str, str, str, str]]:
    """Name, kind, labels and meaning of each metric, as a scrape shows them."""
    zone = ZoneRow("z", Level.GOOD, False, 0.0, "", "", 1.0, 1.0, 1.0)
    for family in families(everything(), [zone]):
        assert family.samples, family.name
        labels = dict.fromkeys(name for sample in family.samples for name in sample.labels if name != "le")
        name = f"{family.name}_total" if family.type == "counter" else family.name
        yield f"`{name}`", family.type, ", ".join(f"`{label}`" for label in labels), family.documentation


def written(page: str) -> str:
    """The page with its tables as they should be: one for the metrics of each set of labels."""
    tables: dict[str, list[str]] = {}
    for name, kind, labels, meaning in rows():
        assert (kind == "counter") is name.endswith("_total`"), name
        assert kind != "histogram" or name in HISTOGRAMS, name
        tables.setdefault(labels, []).append(f"| {name} | {meaning} |")
    head = "| metric | meaning |\n| --- | --- |"
    parts = ["\n".join([f"By {labels}:\n" if labels else "", head, *lines]) for labels, lines in tables.items()]
    page, found = TABLES.subn(lambda match: match[1] + "\n" + "\n\n".join(map(str.strip, parts)) + "\n\n", page)
    assert found == 1
    return page


def test_every_metric_is_on_the_page_and_no_other() -> None:
    """The tables have each metric of a snapshot without unknown values, and the page names no other metric."""
    page = PAGE.read_text("utf-8")
    assert page == written(page), "run: python -m tests.health.test_metrics_page"
    named = set(re.findall(r"bsfg_[a-z_]+", page))
    assert named == {row[0].strip("`") for row in rows()}


def test_every_span_is_on_the_page() -> None:
    """The table of spans has those of the code, in its order."""
    section = PAGE.read_text("utf-8").split("## Spans")[1]
    assert re.findall(r"^\| `([a-z_]+)` \| `([a-z]+)` \|", section, re.MULTILINE) == list(STEPS)


if __name__ == "__main__":
    PAGE.write_text(written(PAGE.read_text("utf-8")), "utf-8")
