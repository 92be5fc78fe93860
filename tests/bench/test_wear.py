"""The wear benchmark in small: what it counts is what was written, by cause, and it leaves nothing behind. Never how
much."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from agent.fact_store import FactStore
from bench.wear.wal_watch import WalWatch
from tests.fact_store.making import AT_ONCE, TELEMETRY, done, message, samples, tag

ROOT = Path(__file__).resolve().parents[2]
MADE = 400  # commits of six pages at least: the log begins anew


def test_each_commit_is_seen_once(tmp_path: Path) -> None:
    """Beside a store whose log begins anew meanwhile: as many commits as were made, none twice, and the pages of each
    belong to the tables that it changed."""
    path = tmp_path / "facts.db"
    with FactStore.open(path, "plant", settings=AT_ONCE) as store:
        done(store.appends.define([tag(1)]))
        done(store.appends.append_samples(TELEMETRY, samples(1)))
        done(store.consumers.register("idmz.a", "idmz", TELEMETRY))
        watch = WalWatch(path)
        for number in range(MADE):
            done(store.appends.append_samples(TELEMETRY, samples(10, 10 * number)))
            if number % 7 == 0:
                watch.poll()
        for offset in (5, 9):
            done(store.consumers.confirm("idmz.a", offset))
        watch.poll()
        assert len(watch.commits) == MADE + 2
        assert watch.turns
        assert watch.confirmations_alone() == 2
        causes = watch.causes()
    assert causes["log: facts"] >= MADE * 4096
    assert causes["log: confirmations"] >= 2 * 4096
    assert 0 < causes["checkpoints"] < causes["log: facts"]


def test_commits_before_the_count_begins_do_not_count(tmp_path: Path) -> None:
    """What was written before is not attributed to the run."""
    path = tmp_path / "facts.db"
    with FactStore.open(path, "plant", settings=AT_ONCE) as store:
        done(store.appends.append_message("facts.events", message("a")))
        watch = WalWatch(path)
        assert watch.commits == []
        done(store.appends.append_message("facts.events", message("b")))
        assert watch.poll()
        watch.begin()
        assert not watch.poll()
        assert watch.commits == []


@pytest.mark.system
def test_two_nodes_are_measured(tmp_path: Path) -> None:
    """Real nodes on file systems of their own where root allows: every byte has a cause, and at the end neither a mount
    nor a loop device is left."""
    command = [sys.executable, "-m", "agent.cli", "bench", "wear", "--tags", "400", "--seconds", "0.3", "--json"]
    ended = subprocess.run(
        [*command, "--interval-ms", "20", "--folder", str(tmp_path)],
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
    )
    assert ended.returncode == 0, ended.stderr
    found = json.loads(ended.stdout)
    assert not any(tmp_path.iterdir())
    assert str(tmp_path) not in Path("/proc/self/mounts").read_text("utf-8")
    assert not any(
        str(tmp_path) in file.read_text("utf-8") for file in Path("/sys/block").glob("loop*/loop/backing_file")
    )
    (measured,) = found["rounds"]
    for zone in ("plant-a", "idmz"):
        worn = measured[zone]
        assert worn["bytes_per_fact"] > measured["sealed_bytes_per_fact"]
        assert sum(worn["causes"].values()) == pytest.approx(worn["bytes_per_fact"], rel=0.05)
        assert worn["causes"]["log: facts"] > 0
        assert worn["commits_per_s"] > worn["confirmations_alone_per_s"]
        sum_of_years = 8e9 * 3000 / 2 / (worn["gb_a_day"] * 1e9) / 365
        assert worn["flash_years"] == pytest.approx(sum_of_years, rel=0.01)
        assert worn["lag"]["count"] > 0
    assert found["ratio"] == pytest.approx(found["bytes_per_fact"] / found["limit"]["bytes_per_fact"], rel=0.01)
