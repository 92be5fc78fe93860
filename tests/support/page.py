"""Reads commands and messages from pages of the documentation, so that tests can run and check them."""

import re
import shlex
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def shown(page: str, name: str) -> list[list[str]]:
    """The arguments of each `bsfg` command in the block `<!-- test: name -->` of a page."""
    found = re.search(rf"<!-- test: {name} -->\n(.*?)<!-- end -->", (ROOT / page).read_text("utf-8"), re.DOTALL)
    assert found, f"{page} has no block {name}"
    words = [shlex.split(line) for line in found[1].strip().splitlines()]
    assert {program for program, *_ in words} == {"bsfg"}
    return [arguments for _, *arguments in words]


def code(page: str, name: str) -> str:
    """The code of the block `<!-- test: name -->` of a page."""
    text = (ROOT / page).read_text("utf-8")
    found = re.search(rf"<!-- test: {name} -->\n```\w+\n(.*?)```\n<!-- end -->", text, re.DOTALL)
    assert found, f"{page} has no block {name}"
    return found[1]


def console_commands(page: str) -> list[str]:
    """The lines that begin with `$` in the console blocks of a page, without it."""
    blocks = re.findall(r"```console\n(.*?)```", (ROOT / page).read_text("utf-8"), re.DOTALL)
    return [line[2:] for block in blocks for line in block.splitlines() if line.startswith("$ ")]


def lacking_messages(page: str, folder: str) -> list[str]:
    """The messages that a page explains under `## Messages` and that no module below a folder has in its text."""
    rows = re.findall(r"^\| `(.+?)` \|", (ROOT / page).read_text("utf-8").partition("## Messages")[2], re.MULTILINE)
    assert len(rows) >= 6, f"{page} explains {rows}"
    text = "".join(file.read_text("utf-8") for file in (ROOT / folder).rglob("*.py"))
    text = re.sub(r'"\s*\n\s*f?"', "", text)  # strings over several lines
    return [part.strip() for row in rows for part in row.split("...") if part.strip() not in text]
