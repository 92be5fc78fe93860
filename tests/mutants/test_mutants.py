"""The catalogue of mutants fits the tree, and a few of it, others each day, are really caught."""

import datetime as dt
import os
import random
from pathlib import Path

import pytest

from tests.mutants import run as runner
from tests.mutants.catalogue import ROOT, Mutant, catalogue
from tests.mutants.run import FOREIGN, RUN_S_MAX, Verdict, copies, judged, run, run_tests
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


def test_what_is_skipped_catches_nothing(tmp_path: Path) -> None:
    """A mutant whose tests are all skipped is not caught, and the reasons are named; nor is one of which a test passes.
    One that fails catches it."""
    bodies = {"skipped": "pytest.skip('not here')", "passes": "pass", "fails": "raise AssertionError"}
    text = "import pytest\n" + "".join(f"def test_{name}(): {body}\n" for name, body in bodies.items())
    (tmp_path / "test_it.py").write_text(text)

    def verdict(*names: str) -> tuple[Verdict, str]:
        tests = [f"test_it.py::test_{name}" for name in names]
        result = judged(MUTANTS[0], run_tests(tmp_path, tests, "-rfEs", seconds_max=60))
        return result.verdict, result.detail

    untested, why = verdict("skipped")
    assert untested is Verdict.UNTESTED
    assert "not here" in why
    assert verdict("skipped", "passes")[0] is Verdict.SURVIVED
    assert verdict("skipped", "fails") == (Verdict.CAUGHT, "test_it.py::test_fails")


def test_a_copied_tree_has_what_is_installed() -> None:
    """Else tests of foreign parts are skipped there, and their mutants are not caught."""
    with copies(1) as trees:
        tree = trees.get()
        assert (tree / "agent").is_dir()
        assert (tree / FOREIGN).exists() == (ROOT / FOREIGN).exists()


@pytest.mark.timeout(2 * HANDFUL * RUN_S_MAX)  # a mutant may keep its tests from ending
def test_a_sample_of_mutants_is_caught() -> None:
    """Of the mutants whose tests are quick, two are caught: others each day. MUTANTS=seed draws those of another
    day."""
    seed = os.environ.get("MUTANTS") or dt.datetime.now(dt.UTC).date().isoformat()
    chosen = random.Random(seed).sample([mutant for mutant in MUTANTS if not mutant.is_slow], HANDFUL)
    print(f"MUTANTS={seed}:", ", ".join(mutant.name for mutant in chosen))
    results = list(run(chosen, jobs=1))
    assert [(one.mutant.name, one.detail) for one in results if one.verdict is not Verdict.CAUGHT] == []


def test_tests_that_are_slow_anyway_catch_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """A run that is stopped proves something only where the tests end in time without the mutant: otherwise a busy
    machine would catch every mutant."""
    monkeypatch.setattr(runner, "RUN_S_MAX", 0.01)
    mutant = next(one for one in MUTANTS if one.file == "agent/ranges.py")
    (result,) = run([mutant], jobs=1, has_baseline=False)
    assert result.verdict is Verdict.BROKEN
