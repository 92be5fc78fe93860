"""The test files that a change touches, one a line, for `make quick` and `make mutants`.

    tools/touched_tests.py              of what differs from the last commit
    tools/touched_tests.py FILE...      of these files

A module's tests are those that mirror its path (`agent/health/verdict.py`: `tests/health/test_verdict*.py`), those that
type it as a command, then test files that import it, those of its own folder first. A changed helper of the tests
stands for the test files that use it. At most FILES_MAX are named, because the answer has to come within a minute; how
many are left out is said on standard error.
"""

import ast
import functools
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
FILES_MAX = 12
ALWAYS = "tests/test_tidy.py"
# Where the tests of a package are, if not at the same path below tests/.
TESTS_OF = {"agent": "tests", "spark/pyspark_bsfg": "tests/spark", "docs": "tests/docs", "tools": "tests/docs"}


def changed() -> list[str]:
    """Files that differ from the last commit, new ones included."""
    commands = ["git", "diff", "--name-only", "HEAD"], ["git", "ls-files", "--others", "--exclude-standard"]
    found = [
        subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout for command in commands
    ]
    return "".join(found).splitlines()


def tests_of(file: str) -> list[str]:
    """The test files of a file, nearest first."""
    if file.startswith("tests/"):
        return [file] if Path(file).name.startswith("test_") else list(_users(_module(file)))
    folder = _mirror(file)
    if folder is None:
        return []

    def here(name: str, folder: Path = folder) -> list[str]:
        return sorted(str(path.relative_to(ROOT)) for path in (ROOT / folder).glob(f"test_{name}*.py"))

    own = here(Path(file).stem) or here(Path(file).stem, folder.parent)  # the tests of all commands are in one folder
    if not file.endswith(".py"):  # SQL, pages
        return own or here("")
    if file.startswith("agent/cli/"):
        word, of_commands = f'"{Path(file).stem}"', here("", Path("tests/cli"))
        own += [test for test in of_commands if word in (ROOT / test).read_text("utf-8")]
    users = sorted(_users(_module(file)), key=lambda test: (Path(test).parent != folder, test))
    found = list(dict.fromkeys([*own, *users])) or [test for user in _using(file) for test in tests_of(user)]
    return found or here("") or here("", folder.parent)


def _using(file: str) -> Iterator[str]:
    """The modules of the product that import one which no test imports."""
    names = _names(_module(file))
    for path in sorted((ROOT / file.partition("/")[0]).rglob("*.py")):
        if names & _imported(path) and path != ROOT / file:
            yield str(path.relative_to(ROOT))


def _mirror(file: str) -> Path | None:
    """The folder below tests/ that mirrors a file's."""
    folder = Path(file).parent
    for top in (folder, *folder.parents):
        if str(top) in TESTS_OF:
            return Path(TESTS_OF[str(top)]) / folder.relative_to(top)
    return Path("tests") / folder if (ROOT / "tests" / folder).is_dir() else None


def _module(file: str) -> str:
    """The dotted name by which a file is imported."""
    parts = Path(file.removeprefix("spark/")).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


@functools.cache
def _imports() -> dict[str, set[str]]:
    """What each module of the tests imports, and each name that it takes from there."""
    return {str(path.relative_to(ROOT)): _imported(path) for path in (ROOT / "tests").rglob("*.py")}


def _imported(path: Path) -> set[str]:
    names = set[str]()
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return names


def _names(module: str) -> set[str]:
    """By which names a module is imported: its own, and what its package offers of it."""
    package, _, name = module.rpartition(".")
    names = {module}
    for top in ("", "spark/"):
        face = ROOT / top / package.replace(".", "/") / "__init__.py"
        if package and face.is_file():
            for node in ast.walk(ast.parse(face.read_text("utf-8"))):
                if isinstance(node, ast.ImportFrom) and node.module in {module, name}:
                    names |= {f"{package}.{alias.name}" for alias in node.names}
    return names


def _users(module: str) -> Iterator[str]:
    """Test files that import a module, or a helper of the tests that does."""
    waiting, seen = [module], {module}
    while waiting:
        names = _names(waiting.pop())
        for file, imported in _imports().items():
            if not names & imported:
                continue
            if Path(file).name.startswith("test_"):
                yield file
            elif file.startswith("tests/") and module.startswith("tests.") and _module(file) not in seen:
                seen.add(_module(file))
                waiting.append(_module(file))


def touched(files: Iterable[str]) -> list[str]:
    """The tests of several files: the nearest of each first."""
    columns = [tests_of(file) for file in files]
    longest = max(map(len, columns), default=0)
    turns = [tests[place] for place in range(longest) for tests in columns if place < len(tests)]
    return [test for test in dict.fromkeys(turns) if (ROOT / test).is_file()]


if __name__ == "__main__":
    found = touched(sys.argv[1:] or changed())
    if len(found) > FILES_MAX:
        print(f"{len(found) - FILES_MAX} more test files use what was changed: make test", file=sys.stderr)
    print("\n".join(dict.fromkeys([*found[:FILES_MAX], ALWAYS])))
