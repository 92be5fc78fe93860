"""The commands of docs/operate/install.md and docs/how-to/first-gateway.md, as they stand there."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

DOCS = Path(__file__).resolve().parents[2] / "docs"
PAGE = DOCS / "operate" / "install.md"
FIRST_GATEWAY = DOCS / "how-to" / "first-gateway.md"


def commands(name: str) -> list[str]:
    """The commands of the block `<!-- test: name -->`; one that continues below its line (`<<'END'`) is whole."""
    found = re.search(rf"<!-- test: {name} -->\n```console\n(.*?)```\n<!-- end -->", PAGE.read_text("utf-8"), re.DOTALL)
    assert found, name
    return [command.removeprefix("$ ").rstrip() for command in re.split(r"\n(?=\$ )", found[1])]


class Typed(NamedTuple):
    """A command of the tutorial, the machine on which it is typed, and its questions with their answers."""

    machine: str
    command: str
    dialog: tuple[tuple[str, str], ...]


def tutorial() -> Iterator[Typed]:
    """The commands of the first gateway, in order."""
    blocks = re.findall(r"^```console ([\w-]+)\n(.*?)^```", FIRST_GATEWAY.read_text("utf-8"), re.MULTILINE | re.DOTALL)
    for machine, text in blocks:
        for part in re.split(r"^\$ ", text, flags=re.MULTILINE)[1:]:
            command, *lines = part.splitlines()
            yield Typed(machine, command, tuple(_question(line) for line in lines))


def _question(line: str) -> tuple[str, str]:
    """A question up to its colon, and the answer, which may be empty. The last colon before a space ends a question."""
    question, colon, answer = (
        line.removesuffix(":").rpartition(": ") if not line.endswith(":") else (line[:-1], ":", "")
    )
    assert colon, line
    return f"{question}:", answer
