"""docs/operate/spark.md: from an empty folder to the first rows over MQTT, word by word."""

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.mosquitto import free_port

PAGE = (Path(__file__).resolve().parents[2] / "docs/operate/spark.md").read_text("utf-8")
LIMIT_S = 300


@pytest.mark.spark
@pytest.mark.system
@pytest.mark.usefixtures("java")
def test_the_first_read_works_as_written(tmp_path: Path) -> None:
    """Every command of the page succeeds in an empty folder, but for the ports, and the last one prints the fact."""
    found = re.search(r"<!-- test: first-read -->\n(.*?)<!-- end -->", PAGE, re.DOTALL)
    assert found
    steps = "\n".join(line[4:] for line in found[1].splitlines())
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
    assert re.search(r'batch:B-1042 *\| *step_completed *\| *\{"result":"ok","step":"mash"\}', said), said
