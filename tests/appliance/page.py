"""The commands of docs/operate/install.md, as they stand there."""

import re
from pathlib import Path

PAGE = Path(__file__).resolve().parents[2] / "docs" / "operate" / "install.md"


def commands(name: str) -> list[str]:
    """The commands of the block `<!-- test: name -->`; one that continues below its line (`<<'END'`) is whole."""
    found = re.search(rf"<!-- test: {name} -->\n```console\n(.*?)```\n<!-- end -->", PAGE.read_text("utf-8"), re.DOTALL)
    assert found, name
    return [command.removeprefix("$ ").rstrip() for command in re.split(r"\n(?=\$ )", found[1])]
