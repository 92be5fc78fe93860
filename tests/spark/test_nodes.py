"""Past one upper node: a standalone master, two workers, and three nodes that each hold a share of the plants, one of
which is killed while it is read; and a plant that has moved. `make spark-cluster-test`; not part of `make test`."""

import json
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pyarrow.dataset as ds
import pytest

from agent.batch import Origin
from agent.demo.mosquitto import Mosquitto
from agent.demo.processes import Child
from agent.fact_store import FactStore
from agent.message import Sample
from pyspark_bsfg.landing.tables import table_files
from tests.replication.nodes import write_node_toml
from tests.spark import making
from tests.spark.making import NOON_NS, READER, SECOND_NS, TELEMETRY
from tests.spark.test_cluster import bare_python, cluster, submitted

pytestmark = [pytest.mark.spark, pytest.mark.system, pytest.mark.timeout(1800)]

BATCH = 500
# Batches of each plant at each node. Plant a has moved from north to south, which has read it from its beginning.
HELD = {"north": {"plant-a": 20}, "south": {"plant-a": 30, "plant-b": 20}, "west": {"plant-c": 40}}
ALL = {"plant-a": 30, "plant-b": 20, "plant-c": 40}
JOB = """
import json, sys, threading, time
from pathlib import Path
from pyspark.sql import functions as F
from pyspark_bsfg.__main__ import run
from pyspark_bsfg.errors import JobRefused
from pyspark_bsfg.jobs.settings import Settings
from pyspark_bsfg.session import facts, session

asked = json.loads(Path(sys.argv[1]).read_text())
spark, out = session("nodes test"), Path(asked["out"])
settings = Settings.of((out / "jobs.toml").read_text())
refused = []
while True:
    try:
        run(spark, settings, ("land",), threading.Event())
        break
    except JobRefused as error:
        refused.append(str(error))
        (out / "refused").touch()
        while not (out / "again").exists():
            time.sleep(1)
rows = facts(spark, columns="zone sequence", where="zone LIKE 'plant-%'", **asked["options"])
found = rows.groupBy("zone").agg(F.count("*"), F.countDistinct("sequence")).collect()
streaming = {**asked["options"], "maxOffsetsPerTrigger": "20000"}
query = spark.readStream.format("bsfg").options(**streaming).load().where("zone LIKE 'plant-%'").select("zone", "sequence").writeStream
query = query.format("parquet").option("checkpointLocation", str(out / "streamed_checkpoint")).trigger(availableNow=True)
query.start(str(out / "streamed")).awaitTermination()
streamed = spark.read.parquet(str(out / "streamed")).groupBy("zone").agg(F.count("*"), F.countDistinct("sequence")).collect()
said = {"refused": refused, "read": sorted(map(list, found)), "streamed": sorted(map(list, streamed))}
spark.stop()
(out / "result.json").write_text(json.dumps(said))
"""


def fill(path: Path, zone: str) -> None:
    """The store of an upper node that pulled its plants."""
    path.parent.mkdir(parents=True)
    with FactStore.open(path, zone, settings=making.AT_ONCE) as opened:
        for plant, batches in HELD[zone].items():
            runs = [
                [Sample(1, NOON_NS + (at * BATCH + n) * SECOND_NS, float(at * BATCH + n)) for n in range(BATCH)]
                for at in range(batches)
            ]
            for at, sealed in enumerate(making.foreign(Origin(plant, plant.encode().ljust(16)), runs), 1):
                making.put(opened, [sealed], at * BATCH)


@contextmanager
def nodes(folder: Path) -> Iterator[tuple[Mosquitto, dict[str, Child]]]:
    """The three, at one broker; west answers slowly, so that it dies in the middle of a read."""
    with ExitStack() as running:
        broker = running.enter_context(
            Mosquitto.started(folder / "mosquitto", (*HELD, READER), [f"{zone}:{READER}" for zone in HELD])
        )
        found = {}
        for zone in HELD:
            slowly = "answer_bytes_per_second_max = 16384\n" if zone == "west" else ""
            peer = f'zone = "{READER}"\nexports = ["{TELEMETRY}"]\n{slowly}'
            file = write_node_toml(folder / zone, broker, zone, peer)
            found[zone] = running.enter_context(
                Child(zone, [sys.executable, "-m", "agent.cli", "run", "--config", str(file)], folder / f"{zone}.log")
            )
            found[zone].start()
        for node in found.values():
            node.wait_ready(lambda of=node: "node_ready" in of.log_text())
        yield broker, found


@pytest.mark.usefixtures("java")
def test_a_cluster_lands_several_nodes_while_one_dies(tmp_path: Path) -> None:
    """A run in which west dies lands the facts of the others and names it; the next one lands its own. The table has
    each fact once, also those of the plant that two nodes hold, which the DataFrame and the stream of all nodes give
    twice."""
    for zone in HELD:
        fill(tmp_path / zone / "state" / "facts.db", zone)
    python = bare_python(tmp_path)

    def landed() -> dict[str, int]:
        found = dict.fromkeys(ALL, 0)
        for path, rows in table_files(tmp_path / "facts"):
            if (zone := Path(path).parent.name.partition("=")[2]) in ALL:  # a node records facts of its own
                found[zone] += rows
        return found

    with nodes(tmp_path) as (broker, served), cluster(tmp_path, python) as (address, _):
        mine = broker.identity(READER)
        files = {"caFile": mine.ca_file, "certFile": mine.cert_file, "keyFile": mine.key_file}
        named = " ".join(f"{zone}={broker.host}:{broker.port}" for zone in HELD)
        at = {"transport": "mqtt", "nodes": named, "attempts": "5"}
        with submitted(tmp_path, address, python, JOB, at, files) as job:
            job.start()
            job.wait_ready(lambda: sum(landed().values()) > 0, 600)
            served["west"].kill()
            job.wait_ready((tmp_path / "refused").exists, 600)
            away = landed()
            served["west"].start()
            (tmp_path / "again").touch()
            job.wait_ready((tmp_path / "result.json").exists, 900)
    result = json.loads((tmp_path / "result.json").read_text())
    assert [away[plant] for plant in ("plant-a", "plant-b")] == [30 * BATCH, 20 * BATCH]
    assert away["plant-c"] < 40 * BATCH, "west had been read before it died"
    assert all(text.startswith("west: ") for text in result["refused"])
    assert landed() == {plant: batches * BATCH for plant, batches in ALL.items()}
    rows = (
        ds.dataset(tmp_path / "facts", partitioning="hive").to_table(columns=["zone", "life", "sequence"]).to_pylist()
    )
    assert len({tuple(row.values()) for row in rows}) == len(rows)
    held = [
        ["plant-a", 50 * BATCH, 30 * BATCH],
        ["plant-b", 20 * BATCH, 20 * BATCH],
        ["plant-c", 40 * BATCH, 40 * BATCH],
    ]
    assert result["read"] == result["streamed"] == held
