"""The catalogue of mutants fits the tree, and its runner tells what is caught from what is not tested."""

from pathlib import Path

import pytest

from tests.mutants import run as runner
from tests.mutants.catalogue import ROOT, catalogue
from tests.mutants.run import FOREIGN, Verdict, copies, judged, run, run_tests
from tests.test_tidy import CORES

MUTANTS = catalogue()


def test_every_mutant_applies() -> None:
    """The old text stands once in its file, the new text is Python, and the tests that must fail are there."""
    assert {mutant.name: why for mutant in MUTANTS if (why := mutant.problem()) is not None} == {}


def test_names_are_unique() -> None:
    """No two mutants share a group and an id, nor make the same change."""
    assert len({mutant.name for mutant in MUTANTS}) == len(MUTANTS)
    assert len({(mutant.file, mutant.old, mutant.new) for mutant in MUTANTS}) == len(MUTANTS)


def test_most_mutants_are_in_shells() -> None:
    """At least a hundred bugs, three quarters of them in modules that are no cores: there a test has to be written with
    more effort, and no tool changes the code by itself."""
    assert len(MUTANTS) >= 100
    assert sum(mutant.file not in CORES for mutant in MUTANTS) >= len(MUTANTS) * 3 / 4


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


def test_tests_that_are_slow_anyway_catch_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """A run that is stopped proves something only where the tests end in time without the mutant: otherwise a busy
    machine would catch every mutant."""
    monkeypatch.setattr(runner, "RUN_S_MAX", 0.01)
    mutant = next(one for one in MUTANTS if one.name == "store/frontier-jumps-a-hole")
    (result,) = run([mutant], jobs=1, has_baseline=False)
    assert result.verdict is Verdict.BROKEN
