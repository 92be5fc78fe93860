"""The catalogue of mutants: one TOML file a group, one table a mutant, and what is wrong with an entry.

A mutant is a change of one or a few lines that breaks a promise of the product. `old` is text that occurs once in
`file`, so that an entry survives when lines move; `tests` are pytest node ids, of which at least one must fail once
`old` is replaced by `new`.
"""

import ast
import functools
import tomllib
from dataclasses import dataclass
from pathlib import Path

from tools.syntax import syntax_tree

ROOT = Path(__file__).resolve().parents[2]
HERE = Path(__file__).resolve().parent


@dataclass(frozen=True)
class Mutant:
    """One bug, with the promise that it breaks."""

    group: str
    id: str
    promise: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]

    @property
    def name(self) -> str:
        """The group and the id: unique in the catalogue."""
        return f"{self.group}/{self.id}"

    def mutated(self, source: str) -> str:
        """The source of `file` with the bug. Raises ValueError where the entry does not fit the source."""
        if (count := source.count(self.old)) != 1:
            raise ValueError(f"{self.file} holds the old text {count} times, not once")
        found = source.replace(self.old, self.new)
        if found == source:
            raise ValueError("old and new text are the same")
        if self.file.endswith(".py"):
            try:
                syntax_tree(found)
            except SyntaxError as error:
                raise ValueError(f"{self.file} with the new text is no Python: {error}") from error
        return found

    def problem(self, root: Path = ROOT) -> str | None:
        """Why this entry no longer fits the tree at `root`; None where it fits."""
        path = root / self.file
        if not path.is_file():
            return f"{self.file} does not exist"
        try:
            self.mutated(path.read_text("utf-8"))
        except ValueError as error:
            return str(error)
        if not self.tests:
            return "no test is named"
        return next((why for test in self.tests if (why := _missing(root, test)) is not None), None)


def catalogue(folder: Path = HERE) -> list[Mutant]:
    """Every mutant, group by group."""
    found = list[Mutant]()
    for path in sorted({*folder.glob("*.toml")} - {folder / "equivalents.toml"}):
        for entry in tomllib.loads(path.read_text("utf-8"))["mutant"]:
            texts = {name: entry.pop(name) for name in ("id", "promise", "file", "old", "new")}
            tests = tuple(entry.pop("tests"))
            assert not entry, f"{path.name}: {texts['id']} has unknown keys {sorted(entry)}"
            found.append(Mutant(path.stem, **texts, tests=tests))
    return found


def _missing(root: Path, node_id: str) -> str | None:
    """Why a pytest node id names no test, as far as the source tells: parameters in brackets are not checked."""
    file, *names = node_id.partition("[")[0].split("::")
    if not (root / file).is_file():
        return f"{file} does not exist"
    missing = [name for name in names if name not in _defined(root / file)]
    return f"{file} has no {missing[0]}" if missing else None


@functools.cache
def _defined(path: Path) -> frozenset[str]:
    """The names of the classes and functions in a test file."""
    return frozenset(
        node.name
        for node in ast.walk(syntax_tree(path.read_text("utf-8")))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
    )
