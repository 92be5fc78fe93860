"""One Spark for all tests that need a real one: its start costs seconds, and they only read."""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from pyspark_bsfg.transports import store_file
from tests.spark.making import QUICK_JVM

JAVA_MAJOR_MIN = 17
# A cluster, and sessions of their own: some minutes, `make spark-cluster-test`.
collect_ignore = (
    []
    if os.environ.get("SPARK_CLUSTER")
    else [f"test_{name}.py" for name in ("cluster", "connect", "first_read", "nodes")]
)


def pytest_configure(config: pytest.Config) -> None:
    """The mark that tests on a real Spark carry."""
    config.addinivalue_line("markers", "spark: runs on a real Spark, some seconds for the first")


@pytest.fixture(autouse=True)
def _small_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    """Stores are read in many pages, where they are read in this process."""
    monkeypatch.setattr(store_file, "PAGE_FACTS", 7)


@pytest.fixture(scope="session")
def java() -> str:
    """The program; fail, never skip, where Spark cannot run: what is not tested would look tested."""
    home = os.environ.get("JAVA_HOME")  # Spark asks this first
    found = shutil.which("java", path=f"{home}/bin" if home else None)
    said = subprocess.run([found, "-version"], capture_output=True, text=True, check=False).stderr if found else ""
    version = re.search(r'version "(\d+)', said)
    if version is None or int(version[1]) < JAVA_MAJOR_MIN:
        pytest.fail(f"Spark needs Java {JAVA_MAJOR_MIN} or newer; Debian: apt-get install default-jre-headless", False)
    assert found is not None, "it has just answered"
    return found


@pytest.fixture(scope="session")
def spark(java: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """A session with two tasks at once, tuned for a short life."""
    from pyspark_bsfg.session import session

    assert java, "found before Spark looks for it"
    folder = tmp_path_factory.mktemp("spark")
    settings = {
        "spark.driver.extraJavaOptions": QUICK_JVM,
        "spark.sql.catalogImplementation": "in-memory",
        "spark.sql.shuffle.partitions": "1",
        "spark.sql.adaptive.enabled": "false",
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
        "spark.local.dir": str(folder / "local"),
        "spark.pyspark.python": sys.executable,
    }
    started = session("tests", "local[2]", settings)
    yield started
    started.stop()
