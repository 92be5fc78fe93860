"""The generated packet filter rules, loaded by the real nft in a network namespace of its own, with a real broker
behind them. The last test is the control: the same attacks without the rules."""

import functools
import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from agent.replication.broker.config import limits_for, parse_link
from agent.replication.broker.firewall import render_rules
from agent.replication.broker.limits import NEW_CONNECTIONS_BURST
from agent.replication.broker.site import Process

pytestmark = pytest.mark.system

REPOSITORY = Path(__file__).parents[2]
LIMIT_S = 180
LIMITS = limits_for([parse_link("plant-a:idmz")])


@functools.cache
def _why_not() -> str:
    """Why rules cannot be loaded here; empty if they can."""
    if shutil.which("nft", path="/usr/sbin:/usr/bin:/sbin") is None:
        return "nft is not installed: apt-get install nftables"
    tried = subprocess.run(
        ["unshare", "-rn", "nft", "add", "table", "inet", "t"],
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    return f"no packet filter in a user namespace here: {tried.stderr.strip()}" if tried.returncode else ""


def _attacked(folder: Path, *options: str) -> dict[str, int]:
    if why := _why_not():
        pytest.skip(why)
    command = ["unshare", "-rn", sys.executable, "-m", "tests.security.broker_namespace", folder, *options]
    done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, check=False, cwd=REPOSITORY)
    assert done.returncode == 0, done.stderr
    found: dict[str, int] = json.loads(done.stdout)
    return found


@pytest.mark.parametrize(
    "sources", [(), ("10.1.0.0/16",), ("fd00::/8",), ("10.1.2.3/32", "192.168.0.0/16", "fd00::1/128")]
)
def test_nft_accepts_the_rules(tmp_path: Path, sources: tuple[str, ...]) -> None:
    """nft accepts the rules of several processes, with sources of either family and of none, and twice in a row."""
    if why := _why_not():
        pytest.skip(why)
    links = (parse_link("plant-a:idmz"),)
    rules = tmp_path / "firewall.nft"
    rules.write_text(render_rules([Process(8883, links, sources, name="a"), Process(8884, links, name="b")]))
    done = subprocess.run(
        ["unshare", "-rn", "sh", "-c", f"nft -c -f {rules} && nft -f {rules} && nft -f {rules}"],
        capture_output=True, text=True, timeout=LIMIT_S, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")


def test_one_address_takes_neither_all_connections_nor_all_tries(tmp_path: Path) -> None:
    """Of 64 sockets without a certificate from one address, no more than its share are open, and a zone connects from
    another address. All addresses together open no more than the process may have, although Mosquitto 2.0.11 miscounts.
    An address that is not among the sources opens none, and one that tries endlessly is blocked."""
    found = _attacked(tmp_path)
    assert found["outside"] == 0
    assert 0 < found["one address"] <= LIMITS.connections_per_source
    assert found["honest beside one address"]
    assert 0 < found["ten addresses"] <= LIMITS.connections
    assert found["tries of one address"] <= NEW_CONNECTIONS_BURST + 5
    assert found["honest at the end"]


def test_without_the_rules_the_attacks_succeed(tmp_path: Path) -> None:
    """The control: sockets without a certificate from one address lock the zone out, every address is admitted, and
    tries are not counted."""
    found = _attacked(tmp_path, "no-rules")
    assert found["outside"] == 3
    assert found["one address"] >= LIMITS.connections
    assert not found["honest beside one address"]
    assert found["tries of one address"] == 100
