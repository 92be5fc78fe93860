"""The decision pages: complete, in one form, and a row for each package that runs on a gateway."""

import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PAGES = sorted((ROOT / "docs" / "decisions").glob("[0-9]*.md"))
DEPENDENCIES = (ROOT / "docs/decisions/0008-dependencies.md").read_text(encoding="utf-8")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
MODULES = {"paho-mqtt": "paho"}  # where the import is called otherwise


def package(requirement: str) -> str:
    """The name in front of a requirement's range."""
    return re.match(r"[A-Za-z0-9_-]+", requirement)[0]  # type: ignore[index]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem[:4])
def test_a_decision_has_its_sections_in_order(page: Path) -> None:
    """A page has a title, a date, context, decision and price, in this order."""
    text = page.read_text()
    assert re.match(r"# .+\n\nDate: \d{4}-\d\d-\d\d\.", text)
    headings = [heading.partition(":")[0] for heading in re.findall(r"^## (.+)$", text, re.MULTILINE)]
    assert headings[:3] == ["Context", "Decision", "Price"]


def test_the_readme_names_each_decision_once() -> None:
    """README.md names each page once, under the page's own title, in the order of their numbers."""
    listed = re.findall(
        r"^- \[(\d{4})\]\((.+?)\): (.+)$", (ROOT / "docs/decisions/README.md").read_text(), re.MULTILINE
    )
    assert listed == [(page.name[:4], page.name, page.read_text().splitlines()[0].removeprefix("# ")) for page in PAGES]
    assert len({number for number, _, _ in listed}) == len(PAGES)


@pytest.mark.parametrize("name", [package(requirement) for requirement in PROJECT["dependencies"]])
def test_a_runtime_dependency_has_its_row_and_its_use(name: str) -> None:
    """What ships to a gateway has a row with five cells, and is imported by the agent."""
    (row,) = re.findall(rf"^\| `{name}` .*$", DEPENDENCIES, re.MULTILINE)
    assert all(cell.strip() for cell in row.split("|")[1:-1])
    assert row.count("|") == 6
    module = MODULES.get(name, name.replace("-", "_"))
    uses = re.compile(rf"^\s*(import|from) {module}\b", re.MULTILINE)
    assert any(uses.search(file.read_text()) for file in (ROOT / "agent").rglob("*.py")), f"{name} is imported nowhere"


def test_extras_for_users_are_explained() -> None:
    """Each package of an extra that users install is in the table."""
    for extra in ("spark", "spark-delta", "spark-iceberg", "sql"):
        for requirement in PROJECT["optional-dependencies"][extra]:
            assert re.search(rf"^\| .*`{package(requirement)}`.*\(`{extra}`\)", DEPENDENCIES, re.MULTILINE)


def test_the_lock_keeps_to_the_ranges() -> None:
    """Every requirement of pyproject.toml, extras included, is pinned: in requirements.lock, or (what one command
    installs for itself) where it stands."""
    pinned = re.findall(r"^([A-Za-z0-9_.-]+)==", (ROOT / "requirements.lock").read_text(), re.MULTILINE)
    locked = {name.lower().replace("_", "-") for name in pinned}
    extras = dict(PROJECT["optional-dependencies"])
    assert all(
        "==" in requirement for extra in ("fuzz", "mutants", "spark-connect") for requirement in extras.pop(extra)
    )
    asked = [*PROJECT["dependencies"], *(requirement for extra in extras.values() for requirement in extra)]
    assert {package(requirement) for requirement in asked} <= locked


def test_every_pin_has_the_hashes_of_its_files() -> None:
    """Set-up installs only files whose hash is in requirements.lock, and every version there has one. A package with
    compiled code has one for each machine and version of Python."""
    blocks = re.split(r"\n(?=\S)", (ROOT / "requirements.lock").read_text().strip())[1:]
    hashes = {}
    for block in blocks:
        name, *lines = block.split(" \\\n    ")
        assert re.fullmatch(r"[A-Za-z0-9_.-]+==[A-Za-z0-9.]+", name), name
        assert lines, f"{name} has no hash"
        assert [line for line in lines if not re.fullmatch(r"--hash=sha256:[0-9a-f]{64}", line)] == [], name
        hashes[name.partition("==")[0]] = len(lines)
    assert (hashes["cryptography"], hashes["msgspec"], hashes["click"]) == (2, 6, 1)
    assert "--require-hashes -r requirements.lock" in (ROOT / "tools/setup").read_text()
