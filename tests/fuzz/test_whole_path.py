"""Forged pages into a real puller and forged requests into a real server: neither ends, honest work goes on between them,
memory stays bounded, and the store verifies afterwards. `make fuzz NAME=paths` runs 200,000 cases."""

import asyncio
from pathlib import Path

import pytest

from tests.fuzz.forged_pages import pull_forged
from tests.fuzz.forged_requests import serve_forged
from tests.fuzz.paths import bounded_memory, verified
from tests.sim import first_seed, patient, scaled

CASES = scaled(1_500, 100_000)


@pytest.mark.filterwarnings("ignore:.*:pytest.PytestUnraisableExceptionWarning")
@patient
def test_forged_answers_end_no_puller(memory: Path) -> None:
    """Every answer of a peer may be forged: the puller lives, and the next honest page is stored."""
    with bounded_memory():
        print(dict(asyncio.run(pull_forged(memory, CASES, first_seed()))))
    verified(memory)


@patient
def test_forged_requests_end_no_server(memory: Path) -> None:
    """Every request of a peer may be forged: the server lives, the epoch stays, and another zone is served."""
    with bounded_memory():
        print(dict(asyncio.run(serve_forged(memory, CASES, first_seed()))))
    verified(memory)
