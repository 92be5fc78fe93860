"""docs/developers/invariants.md and tests.md name tests; each of these tests must exist."""

import ast
import re
from pathlib import Path

import pytest

from tools.syntax import syntax_tree

ROOT = Path(__file__).resolve().parents[1]
PAGES = ("invariants.md", "tests.md")
TEST = re.compile(r"`(tests/[\w/]+\.py)(?:::(\w+))?`")


def text(page: str) -> str:
    """A page of the reference."""
    return (ROOT / "docs" / "developers" / page).read_text(encoding="utf-8")


@pytest.mark.parametrize("page", PAGES)
def test_every_test_named_is_there(page: str) -> None:
    """Every test that the page names exists."""
    named = TEST.findall(text(page))
    assert named
    for path, name in named:
        tree = syntax_tree((ROOT / path).read_text(encoding="utf-8"))
        assert not name or name in {
            node.name for node in tree.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        }, f"{path}::{name}"


def test_all_twenty_invariants_have_a_test_or_a_reason() -> None:
    """The specification has twenty invariants; one without a test must say why."""
    rows = re.findall(r"^\| (\d+) \| .* \| (.*) \|$", text("invariants.md"), re.MULTILINE)
    assert [int(number) for number, _ in rows] == list(range(1, 21))
    assert all(TEST.search(held) or held.startswith("none: ") for _, held in rows)


def test_every_invariant_in_a_name_is_listed() -> None:
    """Every test that is named after an invariant is on the page."""
    named = {name for _, name in TEST.findall(text("invariants.md"))}
    for path in (ROOT / "tests").rglob("test_*.py"):
        for found in re.findall(r"^def (test_invariant_\d+\w*)", path.read_text(encoding="utf-8"), re.MULTILINE):
            assert found in named, f"{path.name}: {found}"
