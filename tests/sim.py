"""How long the seeded tests run, and from which seed: the one place that knows whether this is `make test` or `make
sim`.

`SIM=1` in the environment (what `make sim` sets) takes the long figure of each `scaled`, and a new seed each time.
`make test` judges a change, so it draws the same numbers each time. `SEED=n` starts every seeded test from that seed.
docs/developers/tests.md says what each figure is.
"""

import os
import random
from collections.abc import Callable

import pytest

IS_LONG = os.environ.get("SIM", "") not in {"", "0"}


def patient(test: Callable[..., None]) -> Callable[..., None]:
    """Marks a test that `make sim` runs, with a time limit for a busy machine."""
    return pytest.mark.sim(pytest.mark.timeout(scaled(900, 100_000))(test))


def scaled(short: int, long: int) -> int:
    """A number of rounds, states or steps: `short` in `make test`, `long` in `make sim`."""
    return long if IS_LONG else short


def first_seed() -> int:
    """The seed a test begins with, printed so that a failure shows it: 0 in `make test`, a new one in `make sim`."""
    seed = int(os.environ.get("SEED") or (random.SystemRandom().randrange(2**32) if IS_LONG else 0))
    print(f"SEED={seed}")
    return seed
