"""`docs/operate/artifacts.md`: what it shows happens."""

import json
import re
import shlex
from pathlib import Path

import pytest
from click.testing import CliRunner

from agent.cli import bsfg

PAGE = (Path(__file__).resolve().parents[2] / "docs/operate/artifacts.md").read_text("utf-8")
REPORT = b"%PDF-1.7 report of batch B7.\n"


def test_what_the_page_shows_works(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each command in its order, in a new folder: the file comes back as it went in, and a fact about another is refused."""
    monkeypatch.chdir(tmp_path)
    assert CliRunner().invoke(bsfg, ["init", "--zone", "plant-a"]).exit_code == 0
    (tmp_path / "report.pdf").write_bytes(REPORT)
    shown = re.search(r"<!-- test: artifacts -->\n(.*?)<!-- end -->", PAGE, re.DOTALL)
    assert shown
    done = [CliRunner().invoke(bsfg, shlex.split(line)[1:]) for line in shown[1].strip().splitlines()]
    put, append, listed, got, refused = done
    reference = json.loads(put.output)
    assert reference["size"] == len(REPORT)
    assert "applied: offset 1" in append.output
    assert reference["digest"] in listed.output
    assert got.exit_code == 0
    assert (tmp_path / "again.pdf").read_bytes() == REPORT
    assert "to which the fact refers, is not here" in str(refused.exception)


def test_a_file_that_is_empty_or_spoilt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An empty file is refused by name; bytes that the disk has changed are not given out as what they were."""
    monkeypatch.chdir(tmp_path)
    CliRunner().invoke(bsfg, ["init", "--zone", "plant-a"])
    (tmp_path / "empty").write_bytes(b"")
    assert "empty is empty" in str(CliRunner().invoke(bsfg, ["object", "put", "empty"]).exception)
    (tmp_path / "file").write_bytes(b"x" * 600_000)
    digest = json.loads(CliRunner().invoke(bsfg, ["object", "put", "file"]).output)["digest"]
    (stored,) = tmp_path.rglob("artifacts/??/*")
    stored.write_bytes(b"x" * 599_999 + b"y")
    assert "the bytes stored as" in str(CliRunner().invoke(bsfg, ["object", "get", digest, "copy"]).exception)
