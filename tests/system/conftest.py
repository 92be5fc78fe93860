"""The command `bsfg` as its users run it: a process of its own."""

import subprocess
import sys
from collections.abc import Callable

import pytest


@pytest.fixture
def bsfg() -> Callable[..., str]:
    """Run `bsfg` with these arguments. Returns its output, once it has succeeded."""

    def run(*arguments: object) -> str:
        command = [sys.executable, "-m", "agent.cli", *map(str, arguments)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout

    return run
