"""From an empty folder to the first rows, word by word: docs/operate/spark.md over MQTT, and for users of Kafka's
source to a landed table."""

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.mosquitto import free_port

ROOT = Path(__file__).resolve().parents[2]
LIMIT_S = 900  # three Spark programs on a busy machine


@pytest.mark.spark
@pytest.mark.system
@pytest.mark.usefixtures("java")
@pytest.mark.parametrize(
    "page, prints",
    [
        ("docs/operate/spark.md", [r'batch:B-1042 *\| *step_completed *\| *\{"result":"ok","step":"mash"\}']),
        (
            "docs/how-to/spark-for-kafka-users.md",
            [
                r'\|2 *\|batch:B-2 *\|step_completed *\|\{"ok":true\}',
                r"^2 facts$",
                r'"facts_landed": 2, "facts_missing": 0',
            ],
        ),
    ],
)
def test_the_commands_of_a_page_work_as_written(tmp_path: Path, page: str, prints: list[str]) -> None:
    """Every command succeeds in an empty folder, but for the ports, and each table has what the page says."""
    found = re.search(r"<!-- test: (?:first-read|kafka) -->\n(.*?)<!-- end -->", (ROOT / page).read_text(), re.DOTALL)
    assert found
    steps = "\n".join(line[4:] for line in found[1].splitlines() if line.startswith("    ") or not line)
    for port in ("8883", "9180"):
        steps = steps.replace(port, str(free_port()))
    tools = f"{Path(sys.executable).parent}:/usr/sbin"
    environment = os.environ | {"PATH": f"{tools}:{os.environ['PATH']}"}
    with (tmp_path / "out").open("w") as out:
        process = subprocess.Popen(
            ["bash", "-euxc", steps], cwd=tmp_path, env=environment, start_new_session=True, stdout=out, stderr=out
        )
    try:
        status = process.wait(LIMIT_S)
    finally:
        os.killpg(process.pid, signal.SIGKILL)  # broker and node stand in the same group
        process.wait()
    said = (tmp_path / "out").read_text("utf-8")
    assert status == 0, said
    for expected in prints:
        assert re.search(expected, said, re.MULTILINE), said
