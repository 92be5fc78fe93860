"""Forged pages into a real puller and forged requests into a real server: neither ends, honest work goes on between
them, memory stays bounded, and the store verifies afterwards. `make fuzz NAME=paths` runs 200,000 cases."""

import asyncio
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest

from tests.fuzz.endless import compare_without_end, define_without_end, seed_without_end
from tests.fuzz.forged_pages import pull_forged
from tests.fuzz.forged_requests import serve_forged
from tests.fuzz.paths import bounded_memory
from tests.sim import first_seed, patient, scaled

CASES = scaled(900, 100_000)


@patient
def test_forged_answers_end_no_puller(memory: Path) -> None:
    """Every answer of a peer may be forged: the puller lives, and the next honest page is stored."""
    with bounded_memory():
        print(dict(asyncio.run(pull_forged(memory, CASES, first_seed()))))


@patient
def test_forged_requests_end_no_server(memory: Path) -> None:
    """Every request of a peer may be forged: the server lives, the epoch stays, and another zone is served."""
    with bounded_memory():
        print(dict(asyncio.run(serve_forged(memory, CASES, first_seed()))))


@pytest.mark.parametrize("run", [compare_without_end, define_without_end, seed_without_end])
def test_an_answer_that_never_ends_is_refused(memory: Path, run: Callable[[Path], Coroutine[Any, Any, int]]) -> None:
    """A peer that says `more` for ever, with names that follow each other as they should: refused after a bounded
    number of answers, before memory fills."""
    with bounded_memory():
        assert asyncio.run(run(memory)) < 1_000
