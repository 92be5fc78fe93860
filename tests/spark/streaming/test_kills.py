"""Exactly once, from the demonstration's plant to rollups, while drivers, nodes and the network are taken away.

`make spark-stream-test` runs these; `make test` has the same promises in one process: `test_land_job.py`,
`test_over_mqtt.py`, `tests/spark/jobs`.
"""

import json
import os
import random
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from agent.demo import layout
from agent.demo.layout import ENTERPRISE, TELEMETRY
from agent.demo.processes import Child
from agent.demo.scenario import RunningZones, run_zones
from agent.fact_store import StoreReader
from pyspark_bsfg.jobs import rollup
from pyspark_bsfg.landing.tables import paths
from tests.sim import IS_LONG, first_seed
from tests.spark.jobs import oracle
from tests.spark.jobs.test_jobs import rolled
from tests.spark.making import QUICK_JVM
from tests.spark.streaming.rows import landed_rows, landed_until
from tests.support.command import process
from tests.system.silence import fall_silent
from tests.waiting import wait_until

pytestmark = [
    pytest.mark.spark,
    pytest.mark.system,
    pytest.mark.timeout(3600),
    pytest.mark.skipif(not IS_LONG, reason="minutes of killed JVMs: make spark-stream-test"),
]

CONSUMER, COUNTERS = "local.lake", "count_"
PLANT_S_MIN = 300.0
START_S_MAX = 900.0  # of a driver on a busy machine, until it has done something
CUT_FACTS = 5000  # half a minute of the plant
ENVIRONMENT = {
    "PYTHONPATH": os.pathsep.join(["", *sys.path]),
    "SPARK_LOCAL_IP": "127.0.0.1",
    "JAVA_TOOL_OPTIONS": QUICK_JVM,
}
FACT = "zone, life, sequence, subject, predicate, unit, value, value_text, value_type, quality, source_time_ns"
JOBS = """
[source]
path = "{store}"
consumer = "{consumer}"
startingOffsets = "cursor"
maxOffsetsPerTrigger = 5000

[land]
table = "{lake}/facts"
checkpoint = "{lake}/checkpoint"
format = "{kind}"
every_s = 1
compact_files = 3

[clean]
table = "{lake}/clean"

[rollup]
table = "{lake}/rollup"

[[rollup.counter]]
tag = "tag:*{counters}*"

[gaps]
table = "{lake}/gaps"
expected_s = 15
"""


def bsfg(folder: Path, *arguments: object) -> str:
    """The output of a command that ends well."""
    done = process(folder, *map(str, arguments))
    assert done.returncode == 0, done.stderr
    return done.stdout


class Site:
    """The three zones, the jobs on the enterprise's store, and what can be done to them."""

    def __init__(self, stage: RunningZones, folder: Path, kind: str) -> None:
        self.stage, self.store, self.lake = stage, stage.store(ENTERPRISE), folder / "lake"
        self._folder = folder
        # The enterprise releases at once what the jobs have confirmed: a fact confirmed too early is lost for good.
        config = stage.configs[ENTERPRISE]
        bsfg(folder, "consumer", "add", CONSUMER, "--stream", TELEMETRY, "--config", config)
        self.node.stop()
        config.write_text(f'{config.read_text()}\n[[stream]]\nname = "{TELEMETRY}"\nkeep_hours = 0\n')
        self.start_node()
        self.lake.mkdir()
        text = JOBS.format(store=self.store, lake=self.lake, kind=kind, consumer=CONSUMER, counters=COUNTERS)
        (folder / "jobs.toml").write_text(text)

    @property
    def node(self) -> Child:
        """Of the enterprise."""
        return self.stage.nodes[ENTERPRISE]

    def start_node(self) -> None:
        """Start it, and wait until it answers."""
        self.node.start()
        self.node.wait_ready(lambda: self.stage.status(ENTERPRISE) is not None)

    def driver(self, step: str = "", nth: int = 1) -> Child:
        """The jobs, following until they die at a step; without one, the program as it is, which ends by itself."""
        program = ["tests.spark.streaming.dying", step, str(nth)] if step else ["pyspark_bsfg"]
        arguments = [sys.executable, "-m", *program, self._folder / "jobs.toml", *(["--follow"] if step else [])]
        return Child("jobs", arguments, self._folder / "jobs.log", ENVIRONMENT)

    def released_and_confirmed(self) -> tuple[int, int]:
        """Up to which offsets, by the store's own file."""
        with closing(StoreReader(self.store)) as reader:
            [confirmed] = [consumer.frontier for consumer in reader.consumers() if consumer.name == CONSUMER]
            [held] = [stream for stream in reader.streams() if stream.name == TELEMETRY]
            return held.first_offset - 1, confirmed

    def landed(self) -> int:
        """The offset up to which the table has everything."""
        while True:  # files are merged meanwhile
            with suppress(FileNotFoundError):
                return landed_until(self.lake / "facts")


@contextmanager
def watched(site: Site) -> Iterator[list[str]]:
    """Compares what is released, confirmed and landed all the time; the list has what was wrong."""
    wrong: list[str] = []
    over = threading.Event()

    def watch() -> None:
        while not over.wait(0.5):
            released, confirmed = site.released_and_confirmed()  # first: the table may only get more until it is read
            if confirmed and (landed := site.landed()) < max(released, confirmed):
                wrong.append(f"released up to {released}, confirmed up to {confirmed}, landed up to {landed}")

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        yield wrong
    finally:
        over.set()
        watcher.join()


def killed_at(site: Site, step: str, nth: int = 1, meanwhile: Callable[[], None] = lambda: None) -> None:
    """A driver that follows until it dies at a step; `meanwhile` is done once it has landed something."""
    before = site.landed()
    with site.driver(step, nth) as driver:
        driver.start()
        wait_until(lambda: site.landed() > before or not driver.running, f"facts before {step}", START_S_MAX)
        meanwhile()
        wait_until(lambda: not driver.running, f"{step} {nth}", START_S_MAX)
        assert driver.stop() == -signal.SIGKILL, driver.log_text()


def cut(site: Site) -> None:
    """The network is away while the plant records on, and so is a device of the plant, which declares its loss."""
    recorded = partial(site.stage.facts, layout.PLANT, TELEMETRY)
    until = recorded() + CUT_FACTS
    site.stage.plant[1].stop()
    site.stage.broker.freeze()
    wait_until(lambda: recorded() > until, "the plant records alone", START_S_MAX)
    site.stage.broker.thaw()
    site.stage.plant[1].start()


def kill_node(site: Site) -> None:
    """kill -9 of the enterprise's node, and a new start."""
    site.node.kill()
    site.start_node()


@pytest.mark.usefixtures("java")
@pytest.mark.parametrize("kind", ["delta", "parquet"])
def test_each_fact_is_once_in_every_table_whatever_is_killed(tmp_path: Path, kind: str) -> None:
    """Five minutes of a plant and more. The network is cut once, the enterprise's node killed twice, the jobs killed
    eight times: before and after a batch is in the table, before it is confirmed, when small files are merged, between
    a derived table and its record, before the report of gaps, and at some moment. Then the table has each fact of the
    plant once as the plant recorded it, the rollups are those of plain Python over the plant's store, each declared
    loss is an incident; and at no time was a fact confirmed or released that was not landed."""
    rng, began = random.Random(first_seed()), time.monotonic()
    with run_zones(tmp_path, keep=False) as stage:
        wait_until(lambda: stage.facts(ENTERPRISE, TELEMETRY) > 0, "a fact at the top", 60)
        site = Site(stage, tmp_path, kind)
        with watched(site) as wrong:
            killed_at(site, "before_sink", 2)
            killed_at(site, "after_sink", 2, lambda: kill_node(site))
            killed_at(site, "before_confirm", 3, lambda: cut(site))
            for nth in (1, 3):  # of clean, of a rollup
                killed_at(site, "after_publish", nth)
            killed_at(site, "before_report")
            killed_at(site, "in_compact")
            with site.driver("none") as driver:
                driver.start()
                target = site.landed() + rng.randrange(1, 5000)
                wait_until(lambda: site.landed() > target, f"{target} landed", START_S_MAX)
                kill_node(site)
                driver.kill()
            wait_until(lambda: time.monotonic() - began > PLANT_S_MIN, "five minutes of the plant", PLANT_S_MIN)
            facts = fall_silent(stage)
            site.start_node()
            with site.driver() as driver:
                driver.start()
                wait_until(lambda: not driver.running, "the last run", START_S_MAX)
                assert driver.stop() == 0, driver.log_text()
                done = json.loads(driver.log_text().splitlines()[-1])["jobs"]
        assert not wrong
        assert site.released_and_confirmed()[1] == done["land"]["end_offset"] == facts
        assert site.released_and_confirmed()[0] > 0, "nothing was released: nothing was proven"
    recorded = told(stage, f"select {FACT} from facts where stream = '{TELEMETRY}' order by sequence")
    assert len(recorded) == facts
    compare(site.lake, recorded)
    losses = told(stage, "select predicate, object_json from facts where predicate = 'samples_lost' order by sequence")
    assert losses, "the device was away"
    found = landed_rows(paths(site.lake / "facts_declared_incidents"), ("zone", "what", "detail", "offset"))
    expected = [(layout.PLANT, row["predicate"], row["object_json"]) for row in losses]
    assert [row[:-1] for row in found if row[0] == layout.PLANT] == expected
    gaps = pq.read_table(site.lake / "gaps" / "part.parquet").to_pylist()
    assert any(gap["declared_by"] == "samples_lost source_lost" for gap in gaps), gaps
    print(f"{facts} facts of {time.monotonic() - began:.0f} s, {site.released_and_confirmed()[0]} released")


def told(stage: RunningZones, query: str) -> list[dict[str, Any]]:
    """What the plant's own store says."""
    lines = bsfg(stage.folder, "sql", "--json", "--file", stage.store(layout.PLANT), query).splitlines()
    return [json.loads(line) for line in lines]


def compare(lake: Path, recorded: list[dict[str, Any]]) -> None:
    """Assert that the tables are what the plant has recorded, in its order."""
    columns = "zone life sequence tag predicate unit value value_text value_type quality source_time_ns offset".split()
    landed = landed_rows(paths(lake / "facts"), columns)
    assert [row[:-1] for row in landed] == [row_of(row) for row in recorded]
    assert [row[-1] for row in landed] == list(range(1, len(recorded) + 1))
    facts = [oracle.of_sql(row, n) for n, row in enumerate(recorded, 1)]
    counters = dict.fromkeys((row["subject"] for row in recorded if COUNTERS in row["subject"]), None)
    for name, window_s in rollup.WINDOWS_S.items():
        assert rolled(lake / "rollup" / name) == oracle.rollup(facts, window_s, 300, counters, {}), name


def row_of(row: dict[str, Any]) -> tuple[Any, ...]:
    """What a fact must be in the table, by what `bsfg sql` says of it."""
    kind, value = row["value_type"] or "message", row["value"]
    is_number = kind in {"double", "int", "bool"}
    what = (row["subject"], row["predicate"], row["unit"] or None)
    said = (float(value) if is_number else None, None if is_number else value, kind)
    return (row["zone"], row["life"], row["sequence"], *what, *said, row["quality"], row["source_time_ns"])
