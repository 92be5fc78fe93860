"""A cluster as people run it: a standalone master and two workers, an enterprise node with half a million facts behind
a broker with TLS, and a worker that is killed while both read. `make spark-cluster-test`; not part of `make test`.

The executors' Python has no library at all: pyarrow and all else come by `--archives`, certificates by `--files`.
"""

import json
import os
import random
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import pytest

from agent.batch import Origin
from agent.demo.processes import Child
from agent.fact_store import FactStore
from agent.message import Sample
from pyspark_bsfg import pack
from tests.sim import first_seed
from tests.spark import making
from tests.spark.jobs import oracle
from tests.spark.jobs.oracle import Told
from tests.spark.jobs.test_jobs import rolled
from tests.spark.making import BAD, ENTERPRISE, NOON_NS, READER, SECOND_NS, served, store_path
from tests.spark.test_submit import ENVIRONMENT, QUICK_JVM, SPARK_HOME

pytestmark = [pytest.mark.spark, pytest.mark.system, pytest.mark.timeout(900)]

FACTS, BATCH = int(os.environ.get("FACTS", "500000")), 1000
READ_S = 12  # the node answers so slowly that a read takes this long: a worker dies in the middle of it
TASKS = 8
HOLD_S = 300
START_S_MAX = 90.0
JOB = """
import json, sys, threading
from pathlib import Path
from pyspark.sql import functions as F
from pyspark_bsfg.__main__ import run
from pyspark_bsfg.jobs.settings import Settings
from pyspark_bsfg.session import facts, session

asked = json.loads(Path(sys.argv[1]).read_text())
spark = session("cluster test")
rows = facts(spark, columns="offset zone tag quality", numPartitions=TASKS, **asked["options"])
Path(asked["out"], "reading").touch()
found = rows.groupBy("zone", "tag").agg(F.count("*"), F.sum("offset"), F.count_if(F.col("quality") == 0)).collect()
settings = Settings.of(Path(asked["out"], "jobs.toml").read_text())
done = run(spark, settings, ("land", "clean", "rollup"), threading.Event())
said = {"read": sorted(map(list, found)), "jobs": done, "master": spark.sparkContext.master}
spark.stop()
Path(asked["out"], "result.json").write_text(json.dumps(said))
"""


def facts_of_two_plants(seed: int) -> list[tuple[str, list[Sample]]]:
    """Zone and samples of each batch, in turns: three tags over two days, late by up to an hour, some bad, some NaN."""
    chance = random.Random(seed)
    batches = []
    for at in range(0, FACTS, BATCH):
        zone = "plant-a" if (at // BATCH) % 3 else "plant-b"
        rows = []
        for n in range(at, at + BATCH):
            time_ns = NOON_NS + (n * 2 * 86_400 // FACTS - chance.randrange(3600)) * SECOND_NS
            value = float("nan") if chance.random() < 0.01 else chance.uniform(-5, 5)
            rows.append(Sample(1 + n % 3, time_ns, value, BAD if chance.random() < 0.02 else 0))
        batches.append((zone, rows))
    return batches


def fill(path: Path, batches: Sequence[tuple[str, list[Sample]]]) -> None:
    """A store that pulled these batches from two zones."""
    path.parent.mkdir(parents=True)
    origins = {zone: Origin(zone, bytes([number]) * 16) for number, zone in enumerate(("plant-a", "plant-b"))}
    sealed = {
        zone: iter(making.foreign(origin, [rows for of, rows in batches if of == zone]))
        for zone, origin in origins.items()
    }
    reached = dict.fromkeys(origins, 0)
    with FactStore.open(path, ENTERPRISE, settings=making.AT_ONCE) as opened:
        for zone, rows in batches:
            reached[zone] += len(rows)
            making.put(opened, [next(sealed[zone])], reached[zone])


@contextmanager
def cluster(folder: Path, python: Path) -> Iterator[tuple[str, list[Child]]]:
    """A master and two workers of one core, each in a process group of its own; the master's address."""
    environment = ENVIRONMENT | {
        "SPARK_DAEMON_MEMORY": "256m",
        "SPARK_DAEMON_JAVA_OPTS": QUICK_JVM,
        "PYSPARK_PYTHON": str(python),
    }

    def daemon(name: str, role: str, *arguments: str) -> Child:
        places = ("--host", "127.0.0.1", "--port", "0", "--webui-port", "0")
        command = [SPARK_HOME / "bin" / "spark-class", f"org.apache.spark.deploy.{role}", *places, *arguments]
        child = Child(name, command, folder / f"{name}.log", environment | {"SPARK_WORKER_DIR": str(folder / name)})
        return running.enter_context(child)

    with ExitStack() as running:
        master = daemon("master", "master.Master")
        master.start()
        master.wait_ready(lambda: "Starting Spark master at" in master.log_text(), START_S_MAX)
        [address] = re.findall(r"Starting Spark master at (spark://\S+)", master.log_text())
        size = ("--cores", "1", "--memory", "900m", address)
        workers = [daemon(f"worker-{number}", "worker.Worker", *size) for number in (1, 2)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.wait_ready(lambda of=worker: "Successfully registered" in of.log_text(), START_S_MAX)
        yield address, workers


def bare_python(folder: Path) -> Path:
    """A Python without any library of ours."""
    script = folder / "python"
    script.write_text(f'#!/bin/sh\nexec {sys._base_executable} -s "$@"\n')  # type: ignore[attr-defined]
    script.chmod(0o755)
    return script


def submitted(
    folder: Path, address: str, python: Path, job: str, at: Mapping[str, str], certificates: Mapping[str, Path]
) -> Child:
    """spark-submit of a job, as documented."""
    archive = folder / "bsfg.zip"
    assert pack.main(["--libraries", str(archive)]) == 0
    with ZipFile(archive) as packed:
        packed.extractall(folder / "bsfg")
    (folder / "job.py").write_text(job)
    options = dict(at) | {name: f"spark-files:{file.name}" for name, file in certificates.items()}
    source = "".join(f"{name} = '{value}'\n" for name, value in options.items() if name != "endingOffsets")
    (folder / "jobs.toml").write_text(
        f"[source]\n{source}"
        f"[land]\ntable = '{folder}/facts'\ncheckpoint = '{folder}/checkpoint'\nformat = 'parquet'\n"
        f"[clean]\ntable = '{folder}/clean'\n[rollup]\ntable = '{folder}/rollup'\nhold_s = {HOLD_S}\n"
    )
    (folder / "asked.json").write_text(json.dumps({"options": options, "out": str(folder)}))
    settings = {
        "spark.executor.memory": "600m",
        "spark.ui.enabled": "false",
        "spark.sql.shuffle.partitions": "2",
        "spark.executorEnv.PYTHONPATH": "bsfg",
        "spark.eventLog.enabled": "true",
        "spark.eventLog.dir": folder.as_uri(),
        "spark.eventLog.compress": "false",
    }
    command = [
        "env", "-C", folder, SPARK_HOME / "bin" / "spark-submit", "--master", address, "--driver-java-options", QUICK_JVM,
        "--archives", f"{archive}#bsfg", "--files", ",".join(map(str, certificates.values())),
        *(part for name, value in settings.items() for part in ("--conf", f"{name}={value}")),
        folder / "job.py", folder / "asked.json",
    ]  # fmt: skip
    environment = ENVIRONMENT | {"PYSPARK_PYTHON": str(python), "PYTHONPATH": str(folder / "bsfg")}
    return Child("job", command, folder / "job.log", environment)


@pytest.mark.usefixtures("java")
def test_a_cluster_reads_a_live_node_while_a_worker_dies(tmp_path: Path) -> None:
    """Counts and sums of the batch read, and every row of the rollup, equal plain Python, though the executor of a
    running task was killed; the tasks ran on the cluster with what the archive and --files brought."""
    seed = first_seed()
    batches = facts_of_two_plants(seed)
    fill(store_path(tmp_path), batches)
    with FactStore.open(store_path(tmp_path), ENTERPRISE) as opened:
        sealed_bytes = sum(len(batch.sealed) for batch in opened.read(making.TELEMETRY, 0, 10**7, 10**9).batches)
    python = bare_python(tmp_path)
    second = partial((tmp_path / "worker-2").glob, "app-*/*/stderr")
    slowly = f"answer_bytes_per_second_max = {max(sealed_bytes // READ_S, 16_384)}\n"
    with (
        served(tmp_path, slowly) as enterprise,
        cluster(tmp_path, python) as (address, workers),
        ExitStack() as running,
    ):
        mine = enterprise.broker.identity(READER)
        files = {"caFile": mine.ca_file, "certFile": mine.cert_file, "keyFile": mine.key_file}
        options = enterprise.options(endingOffsets=FACTS + 1)
        text = JOB.replace("TASKS", str(TASKS))
        job = running.enter_context(submitted(tmp_path, address, python, text, options, files))
        job.start()
        job.wait_ready((tmp_path / "reading").exists, 180)
        # The planner's connection, and one of each executor's first task, which reads for seconds.
        job.wait_ready(lambda: enterprise.broker.log_text().count(f"u'{READER}'") >= 3, 120)
        job.wait_ready(lambda: any("Running task" in log.read_text("utf-8") for log in second()), 120)
        workers[1].kill()
        job.wait_ready((tmp_path / "result.json").exists, 600)
    result = json.loads((tmp_path / "result.json").read_text())
    told = [(zone, row) for zone, rows in batches for row in rows]
    assert result["master"] == address
    assert result["read"] == counted(told)
    landed = result["jobs"]["land"]
    assert (landed["facts_landed"], landed["facts_missing"]) == (FACTS, 0)
    facts = [Told(zone, offset, row) for offset, (zone, row) in enumerate(told, 1)]
    assert rolled(tmp_path / "rollup" / "1m") == oracle.rollup(facts, 60, HOLD_S, {}, {})
    log = "".join(file.read_text("utf-8") for file in tmp_path.glob("eventlog*/events_*"))
    lost = re.findall(r'"Reason":"ExecutorLostFailure"', log)
    print(f"{len(lost)} tasks were lost with their executor, {sealed_bytes:,} bytes sealed")
    assert lost, "the worker died between two tasks: nothing was proven"


def counted(told: Sequence[tuple[str, Sample]]) -> list[list[Any]]:
    """Zone and tag with facts, sum of offsets and good ones, in plain Python."""
    groups: dict[tuple[str, str], list[int]] = {}
    for offset, (zone, row) in enumerate(told, 1):
        group = groups.setdefault((zone, making.DEFINITIONS[row.tag - 1].subject), [0, 0, 0])
        for place, more in enumerate((1, offset, row.quality == 0)):
            group[place] += more
    return [[*key, *group] for key, group in sorted(groups.items())]
