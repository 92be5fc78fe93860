"""Jobs as people start them: with spark-submit and a zip, on this host's cores and on a real cluster."""

import contextlib
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyspark
import pytest
import rfc8785
import zstandard

from agent.message import Sample
from pyspark_bsfg import __main__ as program
from pyspark_bsfg import pack
from tests.spark import making
from tests.spark.making import NOON_NS, QUICK_JVM, SECOND_NS
from tests.spark.streaming.dying import land_toml
from tests.waiting import wait_until

pytestmark = [pytest.mark.spark, pytest.mark.system, pytest.mark.timeout(300)]

SPARK_HOME = Path(pyspark.__file__).parent
START_S_MAX = 90.0
ENVIRONMENT = {
    name: value
    for name, value in os.environ.items()
    if not name.startswith(("PYSPARK_", "SPARK_", "PYTHONPATH"))
} | {"SPARK_HOME": str(SPARK_HOME), "SPARK_LOCAL_IP": "127.0.0.1"}  # fmt: skip


def submit(folder: Path, python: Path, *arguments: object) -> tuple[int, list[str]]:
    """Run spark-submit; its status, and its lines of both streams as a terminal shows them."""
    done = subprocess.run(
        [SPARK_HOME / "bin" / "spark-submit", "--driver-java-options", QUICK_JVM, *map(str, arguments)],
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=250, check=False, cwd=folder,
        env=ENVIRONMENT | {"PYSPARK_PYTHON": str(python)},
    )  # fmt: skip
    return done.returncode, done.stdout.splitlines()


@pytest.fixture(scope="module")
def damaged(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store of a thousand facts in ten batches, one of them damaged."""
    path = tmp_path_factory.mktemp("store") / "facts.db"
    batches = [
        [Sample(1, NOON_NS + n * SECOND_NS, float(n)) for n in range(at, at + 100)] for at in range(0, 1000, 100)
    ]
    making.store(path, batches)
    making.damage(path, 301)
    return path


def settings(folder: Path, store: Path) -> Path:
    """A TOML with the jobs that need no further package."""
    land_toml(folder / "jobs.toml", store, folder / "facts", folder / "checkpoint", "parquet")
    with (folder / "jobs.toml").open("a") as out:
        out.write(f"[clean]\ntable = '{folder}/clean'\n[rollup]\ntable = '{folder}/rollup'\n")
    return folder / "jobs.toml"


@pytest.mark.usefixtures("java")
def test_spark_submit_runs_the_jobs_by_their_path(damaged: Path, tmp_path: Path) -> None:
    """As documented for one host: by path, here one job; the summary is the last line also where facts are missing,
    good status. The driver and its workers have no code of ours but that of --py-files."""
    python = packed(tmp_path)
    zipped = ("--py-files", tmp_path / "bsfg.zip")
    arguments = ("--master", "local[1]", *zipped, Path(program.__file__), settings(tmp_path, damaged), "land")
    status, lines = submit(tmp_path, python, *arguments)
    assert status == 0, "\n".join(lines)
    made = json.loads(lines[-1])
    assert (made["jobs"]["land"]["facts_landed"], made["master"]) == (900, "local[1]")
    assert any("100 facts are missing" in line for line in lines)


def packed(folder: Path) -> Path:
    """A Python that has the libraries we use, and neither the agent nor pyspark_bsfg, which are in
    `folder`/bsfg.zip."""
    libraries = {str(Path(str(one.__file__)).parents[1]) for one in (msgspec, pa, pyspark, rfc8785, zstandard)}
    python = folder / "python"
    base = sys._base_executable  # type: ignore[attr-defined]
    python.write_text(f'#!/bin/sh\nPYTHONPATH="$PYTHONPATH:{":".join(sorted(libraries))}" exec {base} -s "$@"\n')
    python.chmod(0o755)
    absent = subprocess.run([python, "-c", "import agent"], capture_output=True, text=True, check=False, cwd=folder)
    assert "No module named 'agent'" in absent.stderr
    assert pack.main([str(folder / "bsfg.zip")]) == 0
    return python


# --- a cluster: make spark-cluster-test -------------------------------------------------------------------------------


@contextlib.contextmanager
def started(folder: Path, name: str, *arguments: str) -> Iterator[Path]:
    """A daemon of Spark in a process of its own; its log."""
    log = folder / f"{name.rpartition('.')[2]}.log"
    command = [SPARK_HOME / "bin" / "spark-class", name, "--host", "127.0.0.1"]
    daemon = {
        "SPARK_DAEMON_MEMORY": "256m",
        "SPARK_DAEMON_JAVA_OPTS": QUICK_JVM,
        "SPARK_WORKER_DIR": str(folder / "work"),
    }
    with log.open("w") as out:
        process = subprocess.Popen(
            [*command, "--port", "0", "--webui-port", "0", *arguments],
            stdout=out, stderr=out, env=ENVIRONMENT | daemon,
        )  # fmt: skip
    try:
        yield log
    finally:
        process.terminate()
        process.wait(30)


@pytest.fixture
def master(java: str, tmp_path: Path) -> Iterator[str]:
    """The address of a standalone cluster with one worker of one core, all on loopback."""
    assert java, "found before Spark looks for it"
    with started(tmp_path, "org.apache.spark.deploy.master.Master") as log:
        found: list[Any] = []

        def is_up() -> bool:
            found[:] = re.findall(r"Starting Spark master at (spark://\S+)", log.read_text("utf-8"))
            return bool(found)

        wait_until(is_up, f"a master: {log.read_text('utf-8')}", START_S_MAX)
        worker = ("--cores", "1", "--memory", "900m", found[0])
        with started(tmp_path, "org.apache.spark.deploy.worker.Worker", *worker) as of_worker:
            is_registered = lambda: "Successfully registered" in of_worker.read_text("utf-8")  # noqa: E731
            wait_until(is_registered, f"a worker: {of_worker.read_text('utf-8')}", START_S_MAX)
            yield found[0]


@pytest.mark.skipif("SPARK_CLUSTER" not in os.environ, reason="a cluster: make spark-cluster-test")
def test_a_cluster_reads_with_what_the_zip_holds(master: str, damaged: Path, tmp_path: Path) -> None:
    """`--master` is honoured: the tasks run in an executor of the cluster, whose log names the damaged facts. The
    executor, too, has no code of ours but that of --py-files."""
    python = packed(tmp_path)
    job = tmp_path / "job.py"
    job.write_text("import sys\nfrom pyspark_bsfg.__main__ import main\nsys.exit(main())\n")
    options = ("--master", master, "--conf", "spark.executor.memory=600m", "--conf", "spark.ui.enabled=false")
    options += ("--conf", "spark.sql.shuffle.partitions=1", "--py-files", str(tmp_path / "bsfg.zip"))
    status, lines = submit(tmp_path, python, *options, job, settings(tmp_path, damaged))
    assert status == 0, "\n".join(lines)
    made = json.loads(lines[-1])
    assert (made["jobs"]["land"]["facts_landed"], made["jobs"]["land"]["facts_missing"]) == (900, 100)
    assert (made["jobs"]["rollup 1d"]["facts"], made["master"]) == (900, master)
    of_executors = [path.read_text("utf-8") for path in (tmp_path / "work").glob("app-*/*/stderr")]
    assert any("facts 301 to 400 of facts.telemetry are missing: damaged" in text for text in of_executors)
