"""What several tests of commands start from."""

import subprocess
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

from tests.ingest.fakes import Program, running
from tests.support import command

Bsfg = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def bsfg(tmp_path: Path) -> Bsfg:
    """Run `bsfg` in the test's folder."""
    return partial(command.bsfg, tmp_path)


@pytest.fixture(scope="module")
def meter() -> Iterator[Program]:
    """The plant's Modbus device."""
    with running("modbus_server") as program:
        yield program
