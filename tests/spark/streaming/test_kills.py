"""Exactly once through kills: of the driver with its JVM, at the worst moments and at any, and of the node.

`make spark-stream-test` runs these; `test_landing.py` has the same promises in one process for `make test`.
"""

import json
import os
import random
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from agent.demo.processes import Child
from agent.fact_store import StoreReader
from agent.local_socket import SOCKET
from pyspark_bsfg.landing.tables import paths
from tests.sim import IS_LONG, first_seed
from tests.spark.streaming.dying import land_toml
from tests.spark.streaming.feeding import CONSUMER, GAP_EVERY
from tests.spark.streaming.rows import landed_rows, landed_until
from tests.waiting import wait_until

pytestmark = [
    pytest.mark.spark,
    pytest.mark.system,
    pytest.mark.timeout(1800),
    pytest.mark.skipif(not IS_LONG, reason="minutes of killed JVMs: make spark-stream-test"),
]

FACTS, PACE = 40_000, 20
START_S_MAX = 300.0
ENVIRONMENT = {"PYTHONPATH": os.pathsep.join(["", *sys.path]), "SPARK_LOCAL_IP": "127.0.0.1"}


class Plant:
    """The node, its driver and what is known of them."""

    def __init__(self, folder: Path, kind: str) -> None:
        self.store = folder / "state" / "facts.db"
        self.store.parent.mkdir()
        self.table, self.checkpoint = folder / "facts", folder / "checkpoint"
        arguments = [sys.executable, "-m", "tests.spark.streaming.feeding", self.store.parent, str(FACTS), str(PACE)]
        self.node = Child("node", arguments, folder / "node.log", ENVIRONMENT)
        self._folder = folder
        self._kind = kind

    def driver(self, step: str, nth: int, *more: str) -> Child:
        """The land job that dies at a step."""
        settings = self._folder / "jobs.toml"
        source = f"consumer = '{CONSUMER}'\nmaxOffsetsPerTrigger = 4000\nstartingOffsets = 'cursor'"
        land_toml(settings, self.store, self.table, self.checkpoint, self._kind, source)
        arguments = [sys.executable, "-m", "tests.spark.streaming.dying", step, str(nth), settings, *more]
        return Child("land", arguments, self._folder / "land.log", ENVIRONMENT)

    def start_node(self) -> None:
        """Start it, and wait until it answers."""
        (self.store.parent / SOCKET).unlink(missing_ok=True)
        self.node.start()
        self.node.wait_ready((self.store.parent / SOCKET).exists)

    def cursor(self) -> int:
        """What the consumer has confirmed, by the store's own file."""
        with closing(StoreReader(self.store)) as reader:
            return next((one.frontier for one in reader.consumers() if one.name == CONSUMER), 0)


@contextmanager
def watched(plant: Plant) -> Iterator[list[str]]:
    """Compares cursor and table all the time; the list has what was wrong."""
    wrong: list[str] = []
    over = threading.Event()

    def watch() -> None:
        while not over.wait(0.5):
            cursor = plant.cursor()  # first: the table may only get more until it is looked at
            if cursor and (landed := landed_until(plant.table)) < cursor:
                wrong.append(f"confirmed up to {cursor}, landed up to {landed}")

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        yield wrong
    finally:
        over.set()
        watcher.join()


@pytest.mark.usefixtures("java")
@pytest.mark.parametrize("kind", ["delta", "parquet"])
def test_each_fact_lands_once_whatever_is_killed(tmp_path: Path, kind: str) -> None:
    """The driver is killed five times, twice of them between sink and confirmation, and the node twice, while it
    records. The table then has each fact once with its value, the incidents each declared gap once, and at no time was
    the cursor beyond the table, although the node releases what is confirmed at once."""
    rng = random.Random(first_seed())
    plant = Plant(tmp_path, kind)
    with plant.node:
        plant.start_node()
        with watched(plant) as wrong:
            for step, nth in (("before_sink", 2), ("after_sink", 2), ("before_confirm", 2), ("after_sink", 1)):
                with plant.driver(step, nth, "--follow") as driver:
                    driver.start()
                    wait_until(lambda: not driver.running, step, START_S_MAX)
                    assert driver.stop() == -signal.SIGKILL, driver.log_text()
                if step == "after_sink":
                    plant.node.kill()
                    plant.start_node()
            before = landed_until(plant.table)
            with plant.driver("none", 0, "--follow") as driver:
                driver.start()
                target = before + rng.randrange(1, 10_000)
                wait_until(lambda: landed_until(plant.table) > target, f"{target} landed", START_S_MAX)
                driver.kill()
            wait_until(lambda: StoreReader(plant.store).end_offset("facts.telemetry") == FACTS, "all facts", 300)
            with plant.driver("none", 0) as driver:
                driver.start()
                wait_until(lambda: not driver.running, "the last run", START_S_MAX)
                done = json.loads(driver.log_text().splitlines()[-1])["jobs"]["land"]
        assert not wrong
        assert done["end_offset"] == FACTS
        assert done["facts_missing"] == 0
        assert plant.cursor() == FACTS
        with closing(StoreReader(plant.store)) as reader:
            epoch = reader.origin.epoch.hex()
    rows = landed_rows(paths(plant.table), ("zone", "stream", "epoch", "sequence", "offset", "value"))
    expected = [
        ("enterprise", "facts.telemetry", epoch, n, n, float(n) if n % GAP_EVERY else None) for n in range(1, FACTS + 1)
    ]
    assert rows == expected
    incidents = landed_rows(paths(plant.table.with_name("facts_incidents")), ("what", "offset"))
    assert incidents == [("samples_lost", n) for n in range(GAP_EVERY, FACTS + 1, GAP_EVERY)]
