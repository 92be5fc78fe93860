"""The page about sources and tags: its commands and files, in its order, against the plant's device."""

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
from tests.support.page import lacking_messages
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


@pytest.mark.parametrize("page, folder", [("sources", "agent/ingest"), ("opcua", "agent/ingest/opcua")])
def test_messages_that_a_page_explains_exist_in_the_product(page: str, folder: str) -> None:
    """Each stands in the product's text, so that a search for it leads there."""
    assert lacking_messages(f"docs/operate/{page}.md", folder) == []


@pytest.mark.system
def test_the_page_leads_to_the_values(tmp_path: Path) -> None:
    """Every command works and prints what the page shows, figures apart; every file is used as it stands; the values
    are those of the device; a changed tag file is read without a restart."""
    shutil.copy(ROOT / "tests" / "vectors" / "tag_lists" / "kepware.csv", tmp_path)
    (tmp_path / "tags.d").mkdir()
    page = PAGE.read_text(encoding="utf-8")
    said: dict[str, str] = {}
    with running("modbus_server") as device, contextlib.ExitStack() as stack:
        for kind, name, text in BLOCK.findall(page):
            if kind == "toml":
                section = text.replace("meter.example", "127.0.0.1").replace("502", str(device.port))
                config = (tmp_path / name).read_text()
                (tmp_path / name).write_text(f"{config}\n{section}")
            elif kind == "csv":
                (tmp_path / name).write_text(text)
            for line in text.splitlines() if kind == "console" else ():
                words = shlex.split(line.removeprefix("$ ").replace("meter.example", f"127.0.0.1:{device.port}"))
                if words[0] == "cp":
                    shutil.copy(tmp_path / words[1], tmp_path / words[2])
                    wait_until(
                        lambda: _good_values(tmp_path) == {"meter/voltage_l1", "meter/frequency", "meter/voltage_l3"},
                        "new",
                    )
                    continue
                assert words[0] == "bsfg", line
                if words[1] == "run":
                    stack.enter_context(node(tmp_path))
                    wait_until(lambda: len(_good_values(tmp_path)) == 6, "all values")
                    continue
                done = command.bsfg(tmp_path, *words[1:])
                assert done.returncode == ("import" in words), (line, done.stdout, done.stderr)
                said[line.removeprefix("$ bsfg ")] = done.stdout
    _check_output(page, "\n".join(said.values()))
    assert said["tags check tags.d/meters.csv --protocol modbus --base 0"] == "tags.d/meters.csv: good; 4 tags\n"
    assert "1 source with 6 tags" in said["check"]
    assert "meter" in said["status"]
    values = {line.split()[0]: line.split()[1:3] for line in said["latest 'meter/*'"].splitlines()[2:]}
    assert {unit for _, unit in values.values()} == {"V", "A", "Hz", "Wh", "s"}
    assert 200 < float(values["meter/voltage_l1"][0]) < 260
    assert said["tags diff new.csv"].splitlines()[-1] == "meter: 1 added, 4 removed, 0 renamed, 0 changed, 2 kept"


def _check_output(page: str, printed: str) -> None:
    """Each line that the page shows was printed, apart from widths and values, which differ from look to look."""
    printed = re.sub(r"\s+", " ", printed)
    for shown in re.findall(r"```text\n(.*?)```", page, re.DOTALL):
        for line in shown.splitlines():
            plain = re.sub(r"\s+", " ", line.replace("meter.example", "127.0.0.1")).strip()
            if not plain.startswith(("register ", "input 16 float32")) and not set(plain) <= set("- "):
                assert plain in printed, line


def _good_values(folder: Path) -> set[str]:
    """The tags that have a good value."""
    rows = [json.loads(row) for row in command.bsfg(folder, "latest", "meter/*", "--json").stdout.splitlines()]
    return {row["subject"].removeprefix("tag:") for row in rows if row["quality"] == 0}
