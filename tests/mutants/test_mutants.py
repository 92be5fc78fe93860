"""The runners of mutants tell what is caught from what is not tested.

Whether an entry fits the tree is left to `make mutants`, so that a change of a line need not mend the catalogue at
once.
"""

import ast
import tomllib
from pathlib import Path

import pytest

from tests.mutants import cores
from tests.mutants import run as runner
from tests.mutants.catalogue import ROOT, catalogue
from tests.mutants.run import FOREIGN, Verdict, copies, judged, run, run_tests
from tests.test_tidy import CORES
from tools.syntax import syntax_tree

MUTANTS = catalogue()


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
    mutant = next(mutant for mutant in MUTANTS if mutant.name == "store/frontier-jumps-a-hole")
    (result,) = run([mutant], jobs=1, has_baseline=False)
    assert result.verdict is Verdict.BROKEN


def test_survivors_are_counted_by_function_and_compared_with_what_is_accepted() -> None:
    """By methods and functions, from the exit statuses that mutmut records: a time-out is noticed, a change that no
    test reaches is not. More than accepted is wrong, fewer are not."""
    changes = {"a.b.x_close__mutmut_1": 1, "a.b.x_close__mutmut_2": 0, "a.b.xǁRangeǁjoin__mutmut_1": 0}
    more = {"a.b.xǁRangeǁjoin__mutmut_2": 33, "a.b.xǁRangeǁjoin__mutmut_3": -24, "a.b.xǁ_Wideǁ__init____mutmut_1": 0}
    found = cores.survivors({**changes, **more})
    assert isinstance(found, cores.Survivors)
    assert found == (6, {"close": 1, "Range.join": 2, "_Wide.__init__": 1})
    accepted = {"close": 2, "Range.join": 1, "_Wide.__init__": 1}
    assert cores.complaints("a/b.py", found, accepted) == ["a/b.py: Range.join: 2 changes survive, 1 are accepted"]


def test_accepted_survivors_are_of_functions_that_exist() -> None:
    """The list has no entry of a function that is gone."""
    for core, functions in tomllib.loads(cores.ACCEPTED.read_text("utf-8")).items():
        assert core in CORES
        names = {name for node in ast.walk(syntax_tree((ROOT / core).read_text("utf-8"))) if (name := _name(node))}
        assert {name.rpartition(".")[2] for name in functions} <= names


def _name(node: ast.AST) -> str:
    return node.name if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) else ""
