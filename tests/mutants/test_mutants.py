"""The catalogue of mutants fits the tree, and a few of it, others each day, are really caught."""

import datetime as dt
import os
import random

import pytest

from tests.mutants.catalogue import Mutant, catalogue
from tests.mutants.run import Verdict, run
from tests.test_tidy import CORES

MUTANTS = catalogue()
HANDFUL = 2


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_the_mutant_applies(mutant: Mutant) -> None:
    """The old text stands once in its file, the new text is Python, and the tests that must fail are there."""
    assert mutant.problem() is None


def test_names_are_unique() -> None:
    """No two mutants share a group and an id, nor make the same change."""
    assert len({mutant.name for mutant in MUTANTS}) == len(MUTANTS)
    assert len({(mutant.file, mutant.old, mutant.new) for mutant in MUTANTS}) == len(MUTANTS)


def test_half_of_the_mutants_are_in_shells() -> None:
    """At least a hundred bugs, half of them in modules that are no cores: there a test has to be written with more
    effort."""
    assert len(MUTANTS) >= 100
    assert sum(mutant.file not in CORES for mutant in MUTANTS) * 2 >= len(MUTANTS)


def test_a_sample_of_mutants_is_caught() -> None:
    """Of the mutants whose tests are quick, two are caught: others each day. MUTANTS=seed draws those of another
    day."""
    seed = os.environ.get("MUTANTS") or dt.datetime.now(dt.UTC).date().isoformat()
    chosen = random.Random(seed).sample([mutant for mutant in MUTANTS if not mutant.is_slow], HANDFUL)
    print(f"MUTANTS={seed}:", ", ".join(mutant.name for mutant in chosen))
    results = list(run(chosen, jobs=1))
    assert [(one.mutant.name, one.detail) for one in results if one.verdict is not Verdict.CAUGHT] == []
