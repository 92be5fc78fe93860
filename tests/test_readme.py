"""Runs the commands that the README shows, and checks the links between pages."""

import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
README = ROOT / "README.md"
FOLDERS = ("*.md", *(f"{name}/**/*.md" for name in ("agent", "bench", "docs", "hardware", "spark", "tests")))
LINK = re.compile(r"(?<!!)\]\((?!https?:)([^)#\s]+)")


def block(name: str) -> str:
    """The indented lines between `<!-- test: name -->` and `<!-- end -->`."""
    found = re.search(rf"<!-- test: {name} -->\n(.*?)<!-- end -->", README.read_text(encoding="utf-8"), re.DOTALL)
    assert found, name
    return "\n".join(line[4:] for line in found[1].splitlines() if line.startswith("    "))


def test_the_first_steps_work_as_written(tmp_path: Path) -> None:
    """Every command of "Start a node" succeeds in an empty folder, and says what a reader would expect."""
    tools = Path(sys.executable).parent
    steps = block("first-steps").replace(". .venv/bin/activate\n", "")
    environment = os.environ | {"PATH": f"{tools}:{os.environ['PATH']}"}
    done = subprocess.run(
        ["bash", "-euxc", steps],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "applied: offset 1 of facts.operational" in done.stdout
    assert done.stdout.count('"subject": "batch:B-1042"') == 2
    assert "cursor advanced to 1" in done.stdout
    assert "batch:B-1042  ok" in done.stdout
    assert "plant-a: 1 facts in" in done.stdout


def pages_and_links() -> dict[Path, set[Path]]:
    """Every page of the repository, and the files that its links name."""
    pages = [page for folder in FOLDERS for page in ROOT.glob(folder)]
    return {page: {(page.parent / link).resolve() for link in LINK.findall(page.read_text("utf-8"))} for page in pages}


def test_every_link_leads_somewhere() -> None:
    """No relative link of any page points at a file that does not exist."""
    assert [(page, link) for page, links in pages_and_links().items() for link in links if not link.exists()] == []


def test_every_page_is_reached_from_the_readme() -> None:
    """By following links from README.md, every page is found."""
    pages = pages_and_links()
    found: set[Path] = set()
    left = {README}
    while left:
        found |= left
        left = {link for page in left for link in pages[page] if link in pages} - found
    assert pages.keys() - found == set()
