"""Alarms of real processes: each seen the same in the status, its exit status, /healthz, the metrics, the page in a
browser and a notice."""

import contextlib
import http.client
import json
import random
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from agent.client import Client, NodeSilent
from agent.demo.mosquitto import broker_section
from agent.demo.processes import Child, free_port
from agent.errors import BsfgError
from agent.replication import pki
from tests.foreign.modbus.device import modbus_device, tag_map
from tests.foreign.wall_clock import WallClock
from tests.page.test_notify import receiver
from tests.support.chromium import chromium
from tests.waiting import wait_until

pytestmark = pytest.mark.system

Provoke = Callable[[Path, contextlib.ExitStack], tuple[str, dict[str, str]]]
"""Prepares a folder, and what must run beside the node; the sections of node.toml, and the environment of the node."""
SOURCE = '[[modbus]]\nname = "boiler"\nhost = "127.0.0.1"\nport = {port}\ntags_file = "tags.csv"\naddress_base = 0\n'


def full_store(_: Path, __: contextlib.ExitStack) -> tuple[str, dict[str, str]]:
    """A store with room for little."""
    return "[store]\nbytes_max = 1048576\n", {}


def no_tag_file(_: Path, __: contextlib.ExitStack) -> tuple[str, dict[str, str]]:
    """A source whose tag file is missing."""
    return SOURCE.format(port=free_port()), {}


def dead_source(folder: Path, _: contextlib.ExitStack) -> tuple[str, dict[str, str]]:
    """A device that does not answer."""
    (folder / "tags.csv").write_text(tag_map([("m/a", 1, "holding", 1, "uint16")]))
    return SOURCE.format(port=free_port()), {}


def bad_tag(folder: Path, stack: contextlib.ExitStack) -> tuple[str, dict[str, str]]:
    """A device that refuses one of two registers."""
    (folder / "tags.csv").write_text(tag_map((f"m/{at}", 1, "holding", at, "uint16") for at in (1, 50)))
    device = stack.enter_context(modbus_device(folder))
    device.fault("exception", 2, table="holding", at=(50, 50))
    return SOURCE.format(port=device.port), {}


def broker_away(folder: Path, _: contextlib.ExitStack) -> tuple[str, dict[str, str]]:
    """A broker that is not there."""
    return _peer(folder, datetime.now(UTC)), {}


def certificate_ended(folder: Path, _: contextlib.ExitStack) -> tuple[str, dict[str, str]]:
    """As above, with a certificate that has ended."""
    return _peer(folder, datetime.now(UTC) - timedelta(days=30), days=20), {}


def certificate_ends(folder: Path, _: contextlib.ExitStack) -> tuple[str, dict[str, str]]:
    """As above, with a certificate that ends within the week."""
    return _peer(folder, datetime.now(UTC) - timedelta(days=30), days=35), {}


def clock_unset(folder: Path, _: contextlib.ExitStack) -> tuple[str, dict[str, str]]:
    """A clock that shows a time before this version was made."""
    clock = WallClock(folder)
    clock.set(-20 * 365 * 86_400)
    return "", clock.environment


def _peer(folder: Path, issued: datetime, days: int = 365) -> str:
    pki.create_authority(folder / "pki", issued)
    mine = pki.issue_zone(folder / "pki", "plant", issued, days=days)
    return broker_section(mine, free_port()) + '[[peer]]\nbroker = "site"\nzone = "far"\npulls = ["facts.telemetry"]\n'


CASES: list[tuple[Provoke, str, int]] = [  # with the exit status: 3 is late, 1 worse
    (full_store, "appends_refused", 1),
    (no_tag_file, "tag_file_missing", 1),
    (dead_source, "source_lost", 1),
    (bad_tag, "tags_bad", 3),
    (broker_away, "broker_lost", 0),  # nothing is late yet
    (certificate_ended, "broker_refuses", 1),
    (certificate_ends, "certificate_ends", 1),
    (clock_unset, "clock_unset", 1),
]


def status(folder: Path) -> dict[str, Any]:
    """The status of the node; empty while there is none."""
    with contextlib.suppress(NodeSilent):
        return Client(folder / "state").status()
    return {}


def fill(folder: Path) -> None:
    """Append until the store refuses."""
    wait_until(lambda: status(folder), "the node")
    text = random.Random(1).randbytes(20_000).hex()
    with contextlib.suppress(BsfgError):
        for n in range(200):
            Client(folder / "state").append("asset:press/1", "noted", text, message_id=f"m{n}")


@pytest.mark.parametrize("provoke, problem, code", CASES, ids=[problem for _, problem, _ in CASES])
def test_an_alarm_of_real_processes(tmp_path: Path, provoke: Provoke, problem: str, code: int) -> None:
    """Everybody who asks is told the same first line."""
    alert = code > 0
    with contextlib.ExitStack() as stack, receiver([200] * 9) as (url, posted):
        sections, environment = provoke(tmp_path, stack)
        (tmp_path / "node.toml").write_text(
            f'[node]\nzone = "plant"\n{sections}[page]\nlisten_port = 0\n'
            f'[[notify]]\nname = "on-call"\nafter_s = 0\nwebhook_url = "{url}"\n'
        )
        words = [sys.executable, "-m", "agent.cli"]
        where = ["--config", str(tmp_path / "node.toml")]
        node = Child("node", [*words, "run", *where], tmp_path / "node.log", environment)
        with node, Child("page", [*words, "page", *where], tmp_path / "page.log", environment) as page:
            node.start()
            if problem == "appends_refused":
                fill(tmp_path)
            wait_until(lambda: _first(status(tmp_path)) == problem, f"{problem} to come first")
            page.start()
            address = page.wait_line("page: ").removeprefix("page: http://").rstrip("/")
            done = subprocess.run([*words, "status", "--json", *where], capture_output=True, text=True, check=False)
            found = json.loads(done.stdout)
            first = found["reasons"][0]
            assert (_first(found), found["alert"], done.returncode) == (problem, alert, code)
            wait_until(lambda: _get(address, "/healthz")[0] == (503 if alert else 200), "/healthz to say so")
            metrics = _get(address, "/metrics")[1]
            assert f"bsfg_node_alert {float(alert)}" in metrics
            assert f'bsfg_node_verdict{{verdict="{found["verdict"]}"}} 1.0' in metrics
            with chromium() as browser:
                browser.open(f"http://{address}/")
                browser.wait_text(f"plant is {found['verdict']}: {first['subject']}: ", first["hint"])
            if not alert:
                return
            wait_until(lambda: posted, "the notice")
            assert posted[-1]["text"].startswith(f"plant: {found['verdict']}: {first['subject']}: ")


def _first(found: dict[str, Any]) -> str:
    return found["reasons"][0]["problem"] if found.get("reasons") else ""


def _get(address: str, path: str) -> tuple[int, str]:
    with closing(http.client.HTTPConnection(address, timeout=60)) as connection:
        connection.request("GET", path)
        answer = connection.getresponse()
        return answer.status, answer.read().decode()
