"""The benchmarks in small: that they run, say what they promise, and agree with themselves. Never how fast."""

import json
import os
import random
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from agent.batch import Origin
from agent.cli.bench import bench
from agent.columns import SampleColumns, pack
from agent.fact_store import FactStore
from agent.health.flash import BURST_FACTS
from bench.common import data_sets, measuring
from bench.store import lives

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "developers" / "benchmarks.md"
SHOWN = re.search(r"<!-- test: small-run -->\n(.*?)<!-- end -->", PAGE.read_text("utf-8"), re.DOTALL)
assert SHOWN
COMMANDS = [shlex.split(line)[1:] for line in SHOWN[1].strip().splitlines()]
SMALL = {
    " ".join([name, *options[: 2 * ("--source" in options)]]): [
        name,
        *(option for option in options if option != "--json"),
    ]
    for _, name, *options in COMMANDS
} | {
    "ids": ["ids", "--ids", "40000"],
    "retention": ["retention", "--facts", "50000", "--seconds", "0.2"],
}


def bsfg(*arguments: str) -> str:
    """Standard output of a `bsfg` command that must succeed. Without asyncio's debug mode, in which a busy machine
    makes it write of slow callbacks."""
    command = [sys.executable, "-m", "agent.cli", *arguments]
    plain = {name: value for name, value in os.environ.items() if name != "PYTHONASYNCIODEBUG"}
    ended = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT, env=plain)
    assert ended.returncode == 0, ended.stderr
    assert not ended.stderr
    return ended.stdout


def latencies(found: Any) -> Iterator[dict[str, float]]:
    """Every spread of durations anywhere in a result."""
    if isinstance(found, dict):
        if "p99_ms" in found and "max_ms" in found:
            yield found
        for value in found.values():
            yield from latencies(value)


@pytest.fixture(scope="module", params=SMALL)
def result(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The JSON object of one small run; where docs/developers/benchmarks.md shows the command, with the options of the
    page."""
    name, *options = SMALL[request.param]
    folder = tmp_path_factory.mktemp(name)
    found: dict[str, Any] = json.loads(bsfg("bench", name, *options, "--folder", str(folder), "--json"))
    assert found["name"] == name
    assert not any(folder.iterdir()), "a benchmark leaves nothing behind"
    return found


@pytest.mark.system
def test_each_result_describes_itself(result: dict[str, Any]) -> None:
    """Every benchmark prints the keys that docs/developers/benchmarks.md promises, with values that can be true."""
    assert ("facts_per_s" in result) != ("p50_ms" in result)
    assert result["limit"]["what"]
    assert result["ratio"] > 0
    few = result["name"] in {"page", "pair"}  # a handful of samples of health, or of messages
    assert 0 < result["bytes_per_fact"] < (500_000 if few else 10_000)  # with the files of an empty store
    assert result["machine"]["cores"] >= 1
    assert re.fullmatch(r"3\.\d+\.\d+", result["machine"]["sqlite"])
    assert result["machine"]["python"].startswith("3.")
    promised = re.findall(r"`(\w+)`", PAGE.read_text("utf-8"))
    assert set(result) - {"seed", "facts", "seconds"} <= {*promised, *EXPLAINED_BY_THEIR_NAME}


EXPLAINED_BY_THEIR_NAME = {
    *("count", "batch_facts", "fetch_facts", "distinct_facts", "page_bytes", "pages", "request_bytes", "answer_bytes"),
    *("bytes_per_fact_set_b", "bytes_per_fact_sealed", "bytes_per_fact_alone", "one_fact_ratio", "rounds_facts_per_s"),
    *("name", "machine", "wire_bytes_per_fact", "cpu_share"),
    "released_share",
    "in_flight",
    "plants",
}


@pytest.mark.system
def test_the_ratio_is_the_quotient_of_the_printed_figures(result: dict[str, Any]) -> None:
    """The ratio is the quotient of what is printed, and spreads are ordered."""
    figure = "facts_per_s" if "facts_per_s" in result else "p50_ms"
    assert result["ratio"] == pytest.approx(result[figure] / result["limit"][figure], rel=0.01)
    for spread in latencies(result):
        assert 0 < spread["p50_ms"] <= spread["p99_ms"] <= spread["max_ms"]
        assert spread["count"] > 0


@pytest.mark.system
@pytest.mark.parametrize("result", ["replicate"], indirect=True)
def test_a_replication_that_lost_something_is_no_result(result: dict[str, Any]) -> None:
    """The wire carries at least the sealed bytes, the store keeps at least them, and both ends hold the same."""
    assert result["equal"] is True
    assert result["wire_bytes_per_fact"] > result["bytes_per_fact_sealed"]
    assert result["bytes_per_fact"] > result["bytes_per_fact_sealed"]
    assert set(result["cpu_us_per_fact"]) == {"sender", "receiver", "broker"}
    assert min(result["peak_rss_mib"].values()) > 10


@pytest.mark.system
def test_without_json_a_benchmark_prints_lines(tmp_path: Path) -> None:
    """A person gets the name of the benchmark, its figures with the ratio, and the machine."""
    assert {command for command, *_ in COMMANDS} == {"bench"}
    printed = bsfg("bench", *SMALL["growth"], "--folder", str(tmp_path))
    assert printed.startswith("growth")
    assert "ratio" in printed
    assert "machine" in printed.splitlines()[-1]


def test_a_store_accepts_the_lives_of_the_benchmark(tmp_path: Path) -> None:
    """What it writes agrees with itself: the store opens with it, and the newest life of a zone goes on."""
    with FactStore.open(tmp_path / "facts.db", "idmz") as store:
        store._writer.submit("lives", lambda transaction: lives.add_lives(transaction, range(1_000, 3_500))).result()
    with FactStore.open(tmp_path / "facts.db", "idmz") as store:
        assert store.end_offset(lives.STREAM) == 2_500 * lives.FACTS_OF_LIFE
        batch = lives._sealed(0, 3_500)
        held = store.reader.held_of(lives.STREAM, batch.header.origin)
        assert held == ()
        assert store.log(lives.STREAM).at(1) == lives._life(lives.ZONES, 1)
        before = Origin("plant-0000", lives._life(0, 3))
        assert store.reader.held_of(lives.STREAM, before)[0].last_digest == batch.header.previous_digest


@pytest.mark.parametrize("data_set", ["A", "B"])
def test_samples_match_the_data_set(data_set: data_sets.DataSet) -> None:
    """500 tags a scan in order, valid, the same for the same seed, with the set's precision and jitter."""
    scans = list(data_sets.runs(data_set, 7, 5 * data_sets.TAGS, data_sets.TAGS))
    assert scans == list(data_sets.runs(data_set, 7, 5 * data_sets.TAGS, data_sets.TAGS))
    assert scans != list(data_sets.runs(data_set, 8, 5 * data_sets.TAGS, data_sets.TAGS))
    for number, scan in enumerate(scans):
        assert [sample.tag for sample in scan] == list(range(1, data_sets.TAGS + 1))
        pack(SampleColumns.of(scan), data_sets.TAGS)
        kinds = [type(sample.value) for sample in scan]
        assert (kinds.count(float), kinds.count(int), kinds.count(bool)) == (400, 50, 50)
        exact = [s for s in scan if isinstance(s.value, float) and s.value != round(s.value, 2)]
        assert len(exact) == (200 if data_set == "A" else 0)
        jitters = [sample.source_time_ns - data_sets.START_NS - number * data_sets.SCAN_NS for sample in scan]
        assert min(jitters) >= 0
        assert max(jitters) < 1_000_000
        assert (len(set(jitters)) == 1) == (data_set == "B")
    assert len(data_sets.definitions()) == data_sets.TAGS


def test_runs_end_at_the_given_count() -> None:
    """The last run holds what is left."""
    assert [len(run) for run in data_sets.runs("A", 1, 2500, 1000)] == [1000, 1000, 500]


def test_percentiles_are_values_that_were_measured() -> None:
    """Of 1 to n the share p is ceil(p * n), for any n, and the extremes are the extremes."""
    chance = random.Random(1)
    for count in (1, 2, 3, 10, 99, 100, 101, 1000):
        values = sorted(chance.sample(range(10_000), count))
        assert measuring.percentile(values, 1.0) == values[-1]
        assert measuring.percentile(values, 0.5) == values[-(-count // 2) - 1] == measuring.median(values)
        assert measuring.percentile(values, 0.99) == values[-(-99 * count // 100) - 1]


def test_a_backlog_has_the_batches_a_node_makes() -> None:
    """`bsfg bench replicate` measures, unless told otherwise, batches of the size that a node commits early by
    default."""
    option = next(parameter for parameter in bench.commands["replicate"].params if parameter.name == "batch_facts")
    assert option.default == BURST_FACTS
