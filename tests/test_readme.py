"""What the README shows, run."""

import os
import re
import subprocess
import sys
from pathlib import Path

README = Path(__file__).resolve().parents[1] / "README.md"


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
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "applied: offset 1 of facts.operational" in done.stdout
    assert done.stdout.count('"subject": "batch:B-1042"') == 2
    assert "cursor advanced to 1" in done.stdout
    assert "batch:B-1042  ok" in done.stdout
    assert "plant-a: 1 facts in" in done.stdout


def test_every_link_leads_somewhere() -> None:
    """No relative link of the README or the map points at a file that does not exist."""
    for page in (README, README.with_name("ARCHITECTURE.md")):
        for target in re.findall(r"\]\(([^)#]+)\)", page.read_text(encoding="utf-8")):
            assert (README.parent / target).exists(), f"{page.name} links to {target}"
