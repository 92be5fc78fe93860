"""`docs/operate/appending.md`: what it shows happens, and its table of outcomes is complete."""

import re
import shlex
from pathlib import Path
from typing import get_args

import pytest
from click.testing import CliRunner

from agent.cli import bsfg
from agent.fact_store.records import Outcome

PAGE = (Path(__file__).resolve().parents[2] / "docs/operate/appending.md").read_text("utf-8")


def test_what_the_page_shows_works(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each command in its order, in a new folder: the outcomes are those the page explains, and refusals have status 1."""
    monkeypatch.chdir(tmp_path)
    assert CliRunner().invoke(bsfg, ["init", "--zone", "plant-a"]).exit_code == 0
    shown = re.search(r"<!-- test: appending -->\n(.*?)<!-- end -->", PAGE, re.DOTALL)
    assert shown
    said = list[tuple[int, str]]()
    for line in shown[1].strip().splitlines():
        program, *arguments = shlex.split(line)
        assert program == "bsfg"
        done = CliRunner().invoke(bsfg, arguments)
        said.append((done.exit_code, done.output))
    expected = [
        (0, '"outcome": "applied"'), (0, '"outcome": "noop_already_applied"'), (1, '"outcome": "conflicting_duplicate"'),
        (0, "1\n"), (0, "2\n"), (1, "rejected_fenced: lease epoch 2 of mes is in force"), (0, "applied: offset 2"),
    ]  # fmt: skip
    assert [(code, text in output) for (code, text), (_, output) in zip(expected, said, strict=True)] == [
        (code, True) for code, _ in said
    ]


def test_the_page_explains_every_outcome() -> None:
    """Every outcome the store knows stands in the table, and no other."""
    assert sorted(re.findall(r"^\| `(\w+)` \|", PAGE, re.MULTILINE)) == sorted(get_args(Outcome))
