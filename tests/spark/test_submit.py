"""Jobs as people start them: with spark-submit and a zip, on this host's cores (a cluster: test_cluster.py)."""

import json
import os
import subprocess
import sys
from pathlib import Path

import msgspec
import pyarrow as pa
import pyspark
import pytest
import rfc8785
import zstandard

from agent.message import Sample
from pyspark_bsfg import __main__ as program
from pyspark_bsfg import pack
from tests.fact_store.making import damage
from tests.spark import making
from tests.spark.making import NOON_NS, QUICK_JVM, SECOND_NS
from tests.spark.streaming.dying import land_toml

pytestmark = [pytest.mark.spark, pytest.mark.system]

SPARK_HOME = Path(pyspark.__file__).parent
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
    damage(path, 301)
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
    libraries = {str(Path(str(package.__file__)).parents[1]) for package in (msgspec, pa, pyspark, rfc8785, zstandard)}
    python = folder / "python"
    base = sys._base_executable  # type: ignore[attr-defined]
    python.write_text(f'#!/bin/sh\nPYTHONPATH="$PYTHONPATH:{":".join(sorted(libraries))}" exec {base} -s "$@"\n')
    python.chmod(0o755)
    absent = subprocess.run([python, "-c", "import agent"], capture_output=True, text=True, check=False, cwd=folder)
    assert "No module named 'agent'" in absent.stderr
    assert pack.main([str(folder / "bsfg.zip")]) == 0
    return python
