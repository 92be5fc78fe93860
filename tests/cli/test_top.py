"""`bsfg top` on a terminal: what the store tells of the zones below, live, no wider and no longer than the window."""

import contextlib
import fcntl
import os
import pty
import re
import struct
import subprocess
import sys
import termios
from pathlib import Path

import pytest

from agent.fact_store import FactStore
from tests.health.conftest import NOW_MS
from tests.page.zones import Zones, gateway, with_trouble
from tests.waiting import wait_until

pytestmark = pytest.mark.system

ROWS, COLUMNS = 16, 60
TOP = (sys.executable, "-m", "agent.cli", "top", "--config", "node.toml")


def test_it_is_live_and_fits_the_window(tmp_path: Path) -> None:
    """Zones that come later are shown later; Ctrl-C ends it well and gives the former screen back."""
    (tmp_path / "node.toml").write_text('[node]\nzone = "idmz"\n')
    (tmp_path / "state").mkdir()
    terminal, inside = pty.openpty()
    fcntl.ioctl(inside, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
    os.set_blocking(terminal, False)
    shown = bytearray()

    def says(part: str) -> bool:
        with contextlib.suppress(BlockingIOError):
            shown.extend(os.read(terminal, 65_536))
        return part.encode() in shown

    with FactStore.open(tmp_path / "state" / "facts.db", "idmz") as store:
        zones = Zones(store)
        zones.send(gateway("plant-a", NOW_MS))
        environment = {name: text for name, text in os.environ.items() if name not in {"COLUMNS", "LINES"}}
        command = ["setsid", "--ctty", *TOP]
        process = subprocess.Popen(command, cwd=tmp_path, stdin=inside, stdout=inside, stderr=inside, env=environment)
        try:
            wait_until(lambda: says("plant-a: silent"), "the zone to be shown")
            wait_until(lambda: says("systemctl"), "what to do about the node that is not there")
            zones.send(*(with_trouble(gateway(f"plant-{n}", NOW_MS), "lost") for n in range(20)))
            wait_until(lambda: says("of 21 zones"), "the others to be shown")
            os.write(terminal, b"\x03")
            wait_until(lambda: says("\x1b[?1049l"), "the former screen")
            assert process.wait(60) == 0
        finally:
            process.kill()
            process.wait()
            os.close(inside)
            os.close(terminal)
    for screen in shown.decode().split("\x1b[H\x1b[2J")[1:-1]:
        lines = screen.rstrip().split("\r\n")
        assert len(lines) < ROWS
        assert max(len(re.sub(r"\x1b\[\?1049.", "", line)) for line in lines) <= COLUMNS


def test_it_needs_a_terminal(tmp_path: Path) -> None:
    """In a pipe it would never end: wrong usage, and what prints once."""
    (tmp_path / "node.toml").write_text('[node]\nzone = "idmz"\n')
    done = subprocess.run(TOP, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "bsfg status" in done.stderr
