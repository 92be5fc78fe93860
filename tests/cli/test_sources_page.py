"""The page from the device to the first value: its commands and files, in its order, against the plant's device."""

import contextlib
import json
import re
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.ingest.fakes import running
from tests.support import command
from tests.support.mosquitto import free_port
from tests.waiting import wait_until

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "operate" / "sources.md"
BLOCK = re.compile(r"^```(\w+) ?(\S*)\n(.*?)^```", re.MULTILINE | re.DOTALL)


@contextlib.contextmanager
def node(folder: Path) -> Iterator[None]:
    """`bsfg run` in a process of its own, ended as by Ctrl-C."""
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen([sys.executable, "-m", "agent.cli", "run"], cwd=folder, stderr=log)
        try:
            yield
        finally:
            process.send_signal(signal.SIGINT)
            assert process.wait(20) == 0, (folder / "log").read_text()


@pytest.mark.system
def test_the_page_leads_to_the_first_value(tmp_path: Path) -> None:
    """Every command works and says what the page says, every file is used as it stands, and the values are those of the
    device."""
    shutil.copy(ROOT / "tests" / "vectors" / "tag_lists" / "kepware.csv", tmp_path)
    (tmp_path / "tags.d").mkdir()
    said: dict[str, str] = {}
    with running("modbus_server") as device, contextlib.ExitStack() as stack:
        for kind, name, text in BLOCK.findall(PAGE.read_text(encoding="utf-8")):
            if kind == "toml":
                section = text.replace("meter.example", "127.0.0.1") + f"port = {device.port}\npoll_interval_ms = 100\n"
                config = (tmp_path / name).read_text().replace("# listen_port = 9180", f"listen_port = {free_port()}")
                (tmp_path / name).write_text(f"{config}\n{section}")
            elif kind == "csv":
                (tmp_path / name).write_text(text)
            for line in text.splitlines() if kind == "console" else ():
                words = shlex.split(line.removeprefix("$ "))
                assert words[0] == "bsfg", line
                if words[1] == "run":
                    stack.enter_context(node(tmp_path))
                    wait_until(lambda: _good_values(tmp_path) == 2, "both values")
                    continue
                done = command.bsfg(tmp_path, *words[1:])
                assert done.returncode == ("import" in words), (line, done.stdout, done.stderr)
                said[" ".join(words[1:])] = done.stdout
    assert said["tags check tags.d/meters.csv --protocol modbus --base 0"] == "tags.d/meters.csv: good; 4 tags\n"
    assert "1 sources with 2 tags" in said["check"]
    assert "meter" in said["status"]
    values = {line.split()[1]: line.split()[2:4] for line in said["latest meter/*"].splitlines()[2:]}
    assert {name: unit for name, (_, unit) in values.items()} == {"meter/voltage": "V", "meter/current": "A"}
    assert 200 < float(values["meter/voltage"][0]) < 260
    assert said["tags diff new.csv"].splitlines()[-1] == "meter: 1 added, 1 removed, 0 changed, 1 kept"


def _good_values(folder: Path) -> int:
    """How many tags have a good value."""
    rows = command.bsfg(folder, "latest", "meter/*", "--json").stdout.splitlines()
    return sum(json.loads(row)["quality"] == 0 for row in rows)
