"""Changes the cores with a generic tool, mutmut, and names the functions in which tests leave a change unnoticed.

    python -m tests.mutants.cores [--jobs N] [FILE...]      of all cores, or of these

Each core is changed in a copy of the tree, and tested by the nearest of its tests (tools/touched_tests.py). The status
is 1 if in a function more changes survive than `equivalents.toml` accepts. A core without a table there is only
reported.
"""

import argparse
import json
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections import Counter
from pathlib import Path
from typing import NamedTuple

from tests.mutants.catalogue import ROOT
from tests.mutants.run import FOREIGN, SKIPPED
from tests.test_tidy import CORES
from tools.touched_tests import tests_of

ACCEPTED = Path(__file__).with_name("equivalents.toml")
TEST_FILES_MAX = 6  # of a core: the nearest
# Changes of these lines say nothing about decisions: texts for people, and checks of our own mistakes.
NOT_CHANGED = [r"raise \w+", r"^\s*assert ", r"strict=True", r"\blog\.\w+\("]
COPIED = ["docs", "hardware", "systemd", "spark", "appliance", "bench", "tools", "README.md", "Makefile"]
# Exit statuses in mutmut's records: of pytest when a test failed, and of a process that took too long or crashed.
NOTICED = {1, 3, -24, 24, 36, 152, 255, -9, -11}
_NAME = re.compile(r"\.x(?:ǁ(?P<owner>\w+)ǁ|_)(?P<name>\w+?)__mutmut_\d+$")


class Survivors(NamedTuple):
    """What became of the changes of a core: how many there were, and how many survived in each function."""

    count: int
    by_function: Counter[str]


def examine(tree: Path, core: str, jobs: int) -> Survivors | str:
    """Change a core in this copy of the tree. Returns why, if mutmut could not."""
    tests = [test for test in tests_of(core) if "/test_" in test][:TEST_FILES_MAX]
    if not tests:
        return "no test imports it"
    shutil.rmtree(tree / "mutants", ignore_errors=True)
    settings = {
        "source_paths": ["agent", "spark", "appliance"],
        "only_mutate": [core],
        "also_copy": [name for name in COPIED if (tree / name).exists()],
        "do_not_mutate_patterns": NOT_CHANGED,
        "pytest_add_cli_args": ["-p", "no:cacheprovider", "-m", "not system and not sim"],
        "pytest_add_cli_args_test_selection": tests,
    }
    text = (ROOT / "pyproject.toml").read_text("utf-8") + "\n[tool.mutmut]\n"
    text += "".join(f"{name} = {json.dumps(value)}\n" for name, value in settings.items())
    (tree / "pyproject.toml").write_text(text, "utf-8")
    command = [sys.executable, "-m", "mutmut", "run", "--max-children", str(jobs)]
    done = subprocess.run(command, cwd=tree, capture_output=True, text=True, check=False)
    records = list((tree / "mutants").rglob(f"{Path(core).name}.meta"))
    if not records:
        return (done.stdout + done.stderr)[-2000:]
    return survivors(json.loads(records[0].read_text("utf-8"))["exit_code_by_key"])


def survivors(statuses: dict[str, int | None]) -> Survivors | str:
    """By function, from mutmut's record of a module."""
    if all(status is None for status in statuses.values()) and statuses:
        return "mutmut tested no change"
    by_function = Counter[str]()
    for key, status in statuses.items():
        if status not in NOTICED:
            found = _NAME.search(key)
            assert found is not None, key
            by_function[f"{found['owner']}.{found['name']}" if found["owner"] else found["name"]] += 1
    return Survivors(len(statuses), by_function)


def complaints(core: str, found: Survivors, accepted: dict[str, int]) -> list[str]:
    """The functions of a core in which more changes survive than are accepted."""
    return [
        f"{core}: {name}: {count} changes survive, {accepted.get(name, 0)} are accepted"
        for name, count in sorted(found.by_function.items())
        if count > accepted.get(name, 0)
    ]


def main() -> None:
    """Examine the cores that the command line names."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutants.cores")
    parser.add_argument("cores", nargs="*", metavar="FILE")
    parser.add_argument("--jobs", type=int, default=2)
    given = parser.parse_args()
    unknown = sorted({*given.cores} - {*CORES})
    if unknown:
        parser.error(f"no core: {', '.join(unknown)}")
    accepted = tomllib.loads(ACCEPTED.read_text("utf-8"))
    wrong = list[str]()
    with tempfile.TemporaryDirectory(prefix="bsfg-cores-") as folder:
        tree = Path(shutil.copytree(ROOT, Path(folder, "tree"), ignore=SKIPPED))
        (tree / FOREIGN).parent.mkdir()
        (tree / FOREIGN).symlink_to(ROOT / FOREIGN)
        for core in given.cores or CORES:
            found = examine(tree, core, given.jobs)
            if isinstance(found, str):
                wrong.append(f"{core}: {found}")
                print(f"{core:<60} not examined", flush=True)
                continue
            survived = found.by_function.total()
            print(f"{core:<60} {found.count - survived:>4} of {found.count:>4} changes noticed", flush=True)
            if core in accepted:
                wrong += complaints(core, found, accepted[core])
            elif survived:
                print("    " + ", ".join(f"{name} {count}" for name, count in sorted(found.by_function.items())))
    print("\n".join(wrong))
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
