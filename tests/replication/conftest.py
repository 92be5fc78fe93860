"""One broker for the folder: starting it with its authority and certificates takes longer than most tests here."""

import gc
import logging
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from tests.support.mosquitto import Mosquitto


@pytest.fixture(scope="session")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mosquitto]:
    """A real Mosquitto with mutual TLS and the access list of three zones in a chain, plus a second plant."""
    with Mosquitto.started(tmp_path_factory.mktemp("broker")) as running:
        yield running


@pytest.fixture
def memory() -> Iterator[Path]:
    """A folder in memory: what a disk forgets is made by copying, so none is needed."""
    shared = Path("/dev/shm")
    with TemporaryDirectory(dir=shared if shared.is_dir() else None) as folder:
        yield Path(folder)


@pytest.fixture
def quiet() -> Iterator[None]:
    """Ten thousand lives of a node say too much; and what was there before them is nothing for the collector to look
    at."""
    logging.disable(logging.CRITICAL)
    gc.freeze()
    gc.disable()
    yield
    gc.enable()
    gc.unfreeze()
    logging.disable(logging.NOTSET)
