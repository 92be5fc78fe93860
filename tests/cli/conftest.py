"""What several tests of commands start from."""

import subprocess
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from agent.cli import bsfg as command_group
from tests.ingest.fakes import Program, running
from tests.support import command

Bsfg = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def bsfg(tmp_path: Path) -> Bsfg:
    """Run `bsfg` in the test's folder."""
    return partial(command.bsfg, tmp_path)


def typed(*arguments: str) -> Result:
    """What a person types in the present folder, in this process."""
    return CliRunner().invoke(command_group, arguments)


@pytest.fixture
def plant_a(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the node.toml that `bsfg init` writes, to work in."""
    monkeypatch.chdir(tmp_path)
    assert typed("init", "--zone", "plant-a").exit_code == 0
    return tmp_path


@pytest.fixture(scope="module")
def meter() -> Iterator[Program]:
    """The plant's Modbus device."""
    with running("modbus_server") as program:
        yield program
