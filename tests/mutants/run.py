"""Runs mutants: in a copy of the tree, with one bug at a time, the tests named for it, at least one of which must fail.

    python -m tests.mutants.run [--group GROUP] [--id ID] [--jobs N] [--no-baseline] [--verbose]

First the named tests must pass without any bug. Exits with status 1 unless every chosen mutant is caught. The tree
itself is never changed: each worker has a copy in a temporary folder, which stands before the installed package on the
import path.
"""

import argparse
import contextlib
import importlib.util
import os
import queue
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from enum import Enum
from pathlib import Path
from typing import NamedTuple

from tests.foreign.process import INSTALLED
from tests.mutants.catalogue import ROOT, Mutant, catalogue

RUN_S_MAX = 180  # of one run of pytest over the tests of one mutant; a mutant may keep it from ending
TEST_S_MAX = 60  # of one test: most mutants that wait for ever are caught here
BASELINE_S_MAX = 3600
SKIPPED = shutil.ignore_patterns(".*", "build", "dist", "__pycache__", "*.egg-info", "spark-warehouse")
FOREIGN = INSTALLED.relative_to(ROOT)  # read by tests, too large to be copied
_FAILED = re.compile(r"^(?:FAILED|ERROR) (\S+)", re.MULTILINE)
_SKIPPED = re.compile(r"^SKIPPED (.+)", re.MULTILINE)
_PASSED = re.compile(r"^(?:.*, )?\d+ passed\b.* in [\d.]+s", re.MULTILINE)
_TESTS_FAILED = 1  # pytest's exit status; 2 and above: it could not run them


class Verdict(Enum):
    """What became of a mutant."""

    CAUGHT = "caught"
    SURVIVED = "SURVIVED"
    UNTESTED = "its tests are skipped"
    MISFIT = "does not apply"
    NO_BASELINE = "its tests fail without it"
    BROKEN = "its tests cannot be run"


class Result(NamedTuple):
    """A verdict with what led to it."""

    mutant: Mutant
    verdict: Verdict
    detail: str


class Run(NamedTuple):
    """A run of pytest."""

    status: int | None  # None: stopped after its time
    output: str

    def failed(self) -> list[str]:
        """The node ids of tests that failed."""
        return _FAILED.findall(self.output)

    def skipped(self) -> list[str]:
        """Where and why tests were skipped."""
        return _SKIPPED.findall(self.output)


@contextlib.contextmanager
def copies(count: int) -> Iterator["queue.Queue[Path]"]:
    """So many copies of the tree, each for one worker at a time."""
    with tempfile.TemporaryDirectory(prefix="bsfg-mutants-") as folder:
        found = queue.Queue[Path](count)
        for number in range(count):
            tree = Path(shutil.copytree(ROOT, Path(folder, str(number)), ignore=SKIPPED))
            (tree / FOREIGN).parent.mkdir()
            (tree / FOREIGN).symlink_to(ROOT / FOREIGN)
            found.put(tree)
        yield found


def run(mutants: Sequence[Mutant], jobs: int, *, has_baseline: bool = True) -> Iterator[Result]:
    """The verdict on each mutant, as it becomes known."""
    fitting = list[Mutant]()
    for mutant in mutants:
        if (why := mutant.problem()) is not None:
            yield Result(mutant, Verdict.MISFIT, why)
        else:
            fitting.append(mutant)
    if not fitting:
        return
    with copies(jobs) as trees, ThreadPoolExecutor(jobs) as pool:
        failing = _baseline(trees, pool, fitting, jobs) if has_baseline else []
        sound = list[Mutant]()
        for mutant in fitting:
            if bad := [failure for failure in failing if any(_covers(test, failure) for test in mutant.tests)]:
                yield Result(mutant, Verdict.NO_BASELINE, ", ".join(bad))
            else:
                sound.append(mutant)
        yield from pool.map(lambda mutant: _judge(trees, mutant), sound)


def _baseline(trees: "queue.Queue[Path]", pool: ThreadPoolExecutor, mutants: Sequence[Mutant], jobs: int) -> list[str]:
    """The named tests that fail without any mutant. Tests of one file stay together."""
    tests = sorted({test for mutant in mutants for test in mutant.tests})
    files = sorted({test.partition("::")[0] for test in tests})
    shares = [[test for test in tests if test.partition("::")[0] in files[number::jobs]] for number in range(jobs)]

    def examine(share: list[str]) -> list[str]:
        tree = trees.get()
        try:
            found = run_tests(tree, share, "-rfE", seconds_max=BASELINE_S_MAX)
        finally:
            trees.put(tree)
        if found.status == 0:
            return []
        return found.failed() or sys.exit(f"the tests of the mutants cannot be run:\n{found.output}")

    return [failure for failed in pool.map(examine, filter(None, shares)) for failure in failed]


def _covers(test: str, failed: str) -> bool:
    """Whether a node id as named in the catalogue stands for a failed test."""
    return failed == test or failed.startswith((f"{test}::", f"{test}["))


def _judge(trees: "queue.Queue[Path]", mutant: Mutant) -> Result:
    tree = trees.get()
    path = tree / mutant.file
    source = path.read_text("utf-8")
    try:
        try:
            _write(path, mutant.mutated(source))
            found = run_tests(tree, mutant.tests, "-x", "-rfEs", seconds_max=RUN_S_MAX)
        finally:
            _write(path, source)
        # Nothing is said by a run that is stopped where the tests take as long without the mutant.
        if found.status is None and run_tests(tree, mutant.tests, seconds_max=RUN_S_MAX).status is None:
            return Result(mutant, Verdict.BROKEN, f"they take more than {RUN_S_MAX} s without it, too")
    finally:
        trees.put(tree)
    return judged(mutant, found)


def judged(mutant: Mutant, found: Run) -> Result:
    """The verdict on a mutant whose tests have run. A test that was skipped has tested nothing."""
    if found.status == 0 and not _PASSED.search(found.output):
        return Result(mutant, Verdict.UNTESTED, "; ".join(found.skipped()))
    if found.status == 0:
        return Result(mutant, Verdict.SURVIVED, "; ".join([mutant.promise, *found.skipped()]))
    if found.status is None:
        return Result(mutant, Verdict.CAUGHT, f"stopped after {RUN_S_MAX} s")
    if found.status == _TESTS_FAILED:
        return Result(mutant, Verdict.CAUGHT, ", ".join(found.failed()))
    return Result(mutant, Verdict.BROKEN, found.output[-2000:])


def _write(path: Path, source: str) -> None:
    """Replace a source file, together with its bytecode: that is found by time and length, which may stay the same."""
    path.write_text(source, "utf-8")
    if path.suffix == ".py":
        Path(importlib.util.cache_from_source(str(path))).unlink(missing_ok=True)


def run_tests(tree: Path, tests: Sequence[str], *options: str, seconds_max: float) -> Run:
    """Run tests in a copy of the tree, with what programs they start importing from there too."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-o", f"timeout={TEST_S_MAX}"]
    environment = {
        **os.environ,
        "PYTHONPATH": f"{tree}{os.pathsep}{tree / 'spark'}",
        "SEED": os.environ.get("SEED", "1"),  # the same verdict each time
    }
    try:
        done = subprocess.run(
            [*command, *options, "--", *tests],
            cwd=tree,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=seconds_max,
            check=False,
        )
    except subprocess.TimeoutExpired as stopped:
        return Run(None, str(stopped.stdout or ""))
    return Run(done.returncode, done.stdout)


def _report(results: Sequence[Result]) -> None:
    """How many were caught, by group, and all that was not."""
    for group in sorted({result.mutant.group for result in results}):
        here = [result for result in results if result.mutant.group == group]
        caught = sum(result.verdict is Verdict.CAUGHT for result in here)
        print(f"{group:<20} {caught:>3} of {len(here):>3} caught")
    for result in results:
        if result.verdict is not Verdict.CAUGHT:
            print(f"{result.verdict.value}: {result.mutant.name}: {result.detail}")


def main() -> None:
    """Run the mutants that the command line chooses."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutants.run")
    parser.add_argument("--group", action="append", help="only this group; may be given more than once")
    parser.add_argument("--id", action="append", help="only this mutant; may be given more than once")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--no-baseline", action="store_true", help="do not run the tests without a mutant first")
    parser.add_argument("--verbose", action="store_true", help="print each mutant with the test that caught it")
    given = parser.parse_args()
    chosen = [
        mutant
        for mutant in catalogue()
        if (not given.group or mutant.group in given.group) and (not given.id or mutant.id in given.id)
    ]
    if not chosen:
        parser.error("no mutant has this group and id")
    results = list[Result]()
    for result in run(chosen, given.jobs, has_baseline=not given.no_baseline):
        results.append(result)
        if given.verbose:
            print(f"{result.verdict.value}: {result.mutant.name}: {result.detail}", flush=True)
    _report(results)
    sys.exit(any(result.verdict is not Verdict.CAUGHT for result in results))


if __name__ == "__main__":
    main()
