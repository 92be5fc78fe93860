"""How long the seeded tests run, and from which seed: the one place that knows whether this is `make test` or `make
sim`.

`SIM=1` in the environment (what `make sim` sets) takes the long figure of each `scaled`; `SEED=n` starts every seeded
test from that seed instead of a new one. docs/reference/tests.md says what each figure is.
"""

import os
import random
from collections.abc import Callable

import pytest

IS_LONG = os.environ.get("SIM", "") not in {"", "0"}


def patient(test: Callable[..., None]) -> Callable[..., None]:
    """Marks a test that `make sim` runs, and that takes its time also on a machine that does much else."""
    return pytest.mark.sim(pytest.mark.timeout(scaled(900, 100_000))(test))


def scaled(short: int, long: int) -> int:
    """So many rounds, states or steps: `short` in `make test`, `long` in `make sim`."""
    return long if IS_LONG else short


def first_seed(default: int | None = None) -> int:
    """The seed a test begins with, printed so that a failure shows it; without `default` a new one each time."""
    seed = int(os.environ.get("SEED") or (random.SystemRandom().randrange(2**32) if default is None else default))
    print(f"SEED={seed}")
    return seed
