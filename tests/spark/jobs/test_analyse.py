"""docs/how-to/analyse.md, run as it stands there, but for the paths, on four hours of a line whose truth is known."""

import math
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from agent.fact_store import FactStore
from agent.message import Envelope, Fact, Message, Sample, TagDefinition, canonical_json
from pyspark_bsfg import __main__ as program
from tests.sim import IS_LONG
from tests.spark.making import AT_ONCE, NOON_NS, OPERATIONAL, SECOND_NS, TELEMETRY
from tests.support.page import code

pytestmark = [
    pytest.mark.spark,
    pytest.mark.system,
    pytest.mark.skipif(not IS_LONG, reason="half a minute of Spark: make spark-stream-test"),
]

shown = partial(code, "docs/how-to/analyse.md")
STEP_S, HOURS = 30, 4
DECLARED_S, UNDECLARED_S = (5400, 6600), (10_800, 11_400)
STOPS_S = ((1800, 2700), (8100, 8400))
MODULUS = 65_536


def is_running(second: int) -> bool:
    """Whether the line runs then."""
    return not any(begin <= second < end for begin, end in STOPS_S)


def filled(second: int) -> int:
    """Bottles since the beginning: two a second while the line runs, a little less."""
    return sum(57 for at in range(0, second, STEP_S) if is_running(at))


def seconds() -> list[int]:
    """When the tags are sampled: every half minute, but for two gaps."""
    gaps = (DECLARED_S, UNDECLARED_S)
    return [at for at in range(0, HOURS * 3600, STEP_S) if not any(begin < at < end for begin, end in gaps)]


def record(path: Path) -> None:
    """The store of the line."""
    names = ("running", "pressure", "filled", "rejected")
    definitions = [TagDefinition(f"tag:line-1/{name}", unit="bar" if name == "pressure" else "") for name in names]
    runs: list[Sample] = []
    for at in seconds():
        time_ns = NOON_NS + at * SECOND_NS
        bar = 6 + math.sin(at / 900) + 0.3 * math.sin(at / 47) if is_running(at) else 1.0
        values = (is_running(at), bar, (60_000 + filled(at)) % MODULUS, (filled(at) // 50) % MODULUS)
        runs += [Sample(tag, time_ns, value) for tag, value in enumerate(values, 1)]
    begin, end = (f"2026-01-01T{12 + at // 3600}:{at // 60 % 60:02}:00Z" for at in DECLARED_S)
    lost = {
        "count": 39,
        "count_exact": True,
        "first_time": begin,
        "last_time": end,
        "reason": "source_lost",
        "tags": [],
    }
    envelope = Envelope("gap", "plant-a", "*", NOON_NS // 1_000_000)
    with FactStore.open(path, "plant-a", settings=AT_ONCE) as store:
        store.appends.define(definitions).result()
        store.appends.append_samples(TELEMETRY, runs).result()
        declared = Message(envelope, Fact("source:plant-a/press", "samples_lost", canonical_json(lost)))
        store.appends.append_messages(OPERATIONAL, [declared]).result()


@pytest.fixture(autouse=True)
def _elsewhere(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The analyst's computer is not in UTC, so that Spark gives Python local times."""
    with monkeypatch.context() as there:
        there.setenv("TZ", "America/New_York")
        time.tzset()
        yield
    time.tzset()


def test_the_page_does_what_it_says(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The figures are those of plain Python, each gap has its cause and its place, the line of the picture is broken
    where no value was valid, its legend has no text twice, and the picture is written."""
    monkeypatch.setattr("pyspark_bsfg.session.session", lambda *_: spark)
    monkeypatch.setattr(program, "session", lambda *_: spark)
    monkeypatch.setattr(type(spark), "stop", lambda _: None)
    record(tmp_path / "facts.db")
    (tmp_path / "data").mkdir()

    def here(text: str) -> str:
        return text.replace("/var/lib/bsfg/enterprise", str(tmp_path)).replace("/data", str(tmp_path / "data"))

    (tmp_path / "jobs.toml").write_text(here(shown("settings")))
    assert program.main([str(tmp_path / "jobs.toml")]) == 0
    made: dict[str, Any] = {}
    for name in ("gaps", "oee", "stops", "plot"):
        exec(here(shown(name)), made)  # noqa: S102  the text of our own page
    after = [*seconds()[1:], HOURS * 3600]
    known_s = {at: min(90, until - at) for at, until in zip(seconds(), after, strict=True)}
    running_s = sum(known for at, known in known_s.items() if is_running(at))
    found, last = made["found"], seconds()[-1]
    assert found["known_s"] == pytest.approx(sum(known_s.values()))
    assert made["availability"] == pytest.approx(running_s / sum(known_s.values()))
    assert (found["filled"], found["rejected"]) == (filled(last), filled(last) // 50)
    minutes = [round(row["minutes"]) for row in made["stops"].collect()]
    assert minutes == [(end - begin) // 60 for begin, end in STOPS_S]
    noon_s = NOON_NS // SECOND_NS
    holes = [(begin - noon_s, end - noon_s, is_declared) for begin, end, is_declared in made["holes"]]
    assert holes == [(*DECLARED_S, True), (*UNDECLARED_S, False)]
    assert made["TIMES"][0] == made["utc"](noon_s)
    gaps = [range(begin // 60 + 2, end // 60) for begin, end in (DECLARED_S, UNDECLARED_S)]
    assert [math.isnan(value) for value in made["pressure"]] == [
        any(n in gap for gap in gaps) for n in range(HOURS * 60)
    ]
    assert [text.get_text() for text in made["trend"].get_legend().get_texts()] == [
        "mean of the minute", "gap, declared", "gap, not declared",
    ]  # fmt: skip
    assert (tmp_path / "data" / "line-1.png").stat().st_size > 20_000
