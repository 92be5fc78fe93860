"""The packet filter rules of systemd/examples, loaded by the real nft in a network namespace of its own, with a real
broker behind them. The last test is the control: the same attacks without the rules."""

import functools
import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.system

REPOSITORY = Path(__file__).parents[2]
LIMIT_S = 180
PER_ADDRESS, BURST = 8, 30
"""As the rules have them."""


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


def test_one_address_takes_neither_all_connections_nor_all_tries(tmp_path: Path) -> None:
    """Of 64 sockets without a certificate from one address, no more than its share are open, and a zone connects from
    another address. An address that is not among the zones' networks opens none, and one that tries endlessly is
    blocked."""
    found = _attacked(tmp_path)
    assert found["outside"] == 0
    assert 0 < found["one address"] <= PER_ADDRESS
    assert found["honest beside one address"]
    assert found["tries of one address"] <= BURST + 5
    assert found["honest at the end"]


def test_without_the_rules_the_attacks_succeed(tmp_path: Path) -> None:
    """The control: all sockets of one address stay open, every address is admitted, and tries are not counted."""
    found = _attacked(tmp_path, "no-rules")
    assert found["outside"] == 3
    assert found["one address"] == 64
    assert found["tries of one address"] == 100
