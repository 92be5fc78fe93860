"""docs/operate/threats.md: every part of a site has a section, every requirement a state, and every named test
exists."""

import ast
import re

import pytest

from tests.test_invariants import ROOT, TEST
from tools.syntax import syntax_tree

PAGE = (ROOT / "docs/operate/threats.md").read_text(encoding="utf-8")
REQUIREMENTS = {
    1: (1, 2, 3, 4, 5, 7, 8, 9, 10, 11, 12, 14),
    2: (1, 2, 4, 5, 6, 7, 8, 9, 10, 11, 12),
    3: (1, 2, 3, 4, 5, 6, 7, 8, 9),
    4: (1, 2, 3),
    5: (1,),
    6: (1, 2),
    7: (1, 2, 3, 4, 6, 7, 8),
}
"""IEC 62443-4-2:2019, the requirements of software applications, by foundational requirement."""


def rows() -> list[list[str]]:
    """The table of requirements: number, requirement, state, how, held by."""
    return [
        [cell.strip() for cell in line.strip("|").split(" | ")]
        for line in PAGE.splitlines()
        if re.match(r"\| \d\.\d", line)
    ]


def functions(path: str) -> set[str]:
    """The tests in a file."""
    tree = syntax_tree((ROOT / path).read_text(encoding="utf-8"))
    return {node.name for node in tree.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}


def test_every_test_named_is_there() -> None:
    """Every test that the page names exists."""
    named = TEST.findall(PAGE)
    assert len(named) > 40
    missing = [
        f"{path}::{name}" for path, name in named if not (ROOT / path).exists() or name not in functions(path) | {""}
    ]
    assert missing == []


def test_every_requirement_has_a_state_and_what_holds_it() -> None:
    """All requirements are listed once and in order; one that is met or partly met names a test, another one a reason,
    and one that is partly met says what is missing."""
    assert [row[0] for row in rows()] == [
        f"{group}.{promise}" for group, ones in REQUIREMENTS.items() for promise in ones
    ]
    for number, _, state, how, held in rows():
        assert state in {"met", "partly", "not", "not applicable"}, number
        assert bool(TEST.search(held)) is (state in {"met", "partly"}), number
        assert TEST.search(held) or held.startswith("none: "), number
        assert state != "partly" or re.search(r"; | and |, ", how), number


@pytest.mark.parametrize(
    "thing",
    [
        *("a PLC or a historian", "a laptop on the plant network", "the plant node", "the broker", "the IDMZ node"),
        *("the authority for TLS", "the facts authority"),
    ],
)
def test_every_part_says_what_is_prevented_detected_and_not(thing: str) -> None:
    """Each part of a site has a row in the overview, and a section with the three answers."""
    assert re.search(rf"^\| {thing} \|", PAGE, re.MULTILINE), thing
    (section,) = re.findall(rf"^## {thing[0].upper()}{thing[1:]}\n(.*?)(?=^## )", PAGE, re.MULTILINE | re.DOTALL)
    assert re.findall(r"^- \*\*(Prevented|Detected|Not prevented)", section, re.MULTILINE)[:3] == [
        *("Prevented", "Detected", "Not prevented")
    ]


def test_links_lead_somewhere() -> None:
    """Each link of the page, and of the page about certificates, leads to a file, and to a heading where it names
    one."""
    for page in ("threats.md", "certificates.md"):
        folder = ROOT / "docs/operate"
        for target in re.findall(r"\]\(([^)]+)\)", (folder / page).read_text(encoding="utf-8")):
            file, _, anchor = target.partition("#")
            path = folder / (file or page)
            assert path.exists(), target
            headings = re.findall(r"^#+ (.+)$", path.read_text(encoding="utf-8"), re.MULTILINE)
            anchors = {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}
            assert not anchor or anchor in anchors, target
