"""Writes the rows of docs/reference/log.md from the code: problems, log lines and incidents. Prints nothing when they
are up to date.

The texts about log lines and incidents are written in log.md itself; a new one gets an empty row there, which a test
refuses. Run it after changing a problem or a log line.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import click

from agent.health.problems import Problem
from tools.log_events import events, incidents

PAGE = Path(__file__).resolve().parents[1] / "docs" / "reference" / "log.md"


def log() -> str:
    """The page of the problems, log lines and incidents: problems of the code, rows and levels of events and incidents
    with the texts that the page has. Events of level info are normal, and have no row."""
    text = PAGE.read_text("utf-8")
    head = "| problem | meaning |\n|---|---|\n"
    text = re.sub(rf"{re.escape(head)}(\|.*\n)*", lambda _: head + "".join(map(_problem, Problem)), text)
    tables = (
        ("event", [name for name, level in events().items() if level != "info"]),
        ("kind", sorted(incidents())),
    )
    for head, rows in tables:
        (table,) = re.findall(rf"^\| {head} \|.*\n\|[-|]+\n((?:\|.*\n)+)", text, re.MULTILINE)
        written = dict(re.findall(r"^\| `(\w+)` \|(.*)$", table, re.MULTILINE))
        drawn = "".join(f"| `{name}` |{written.get(name, ' | |')}\n" for name in rows)
        text = text.replace(table, drawn)
    return text


def _problem(problem: Problem) -> str:
    """The row of a problem. The status itself says what to do."""
    meaning = problem.value[1].replace("|", "\\|")
    return f"| `{problem.name.lower()}`, {problem.level.value} | {meaning} |\n"


def walk(command: click.Command, path: str) -> Iterator[tuple[str, click.Command]]:
    """Every command and group below one, with the words that call it."""
    yield path, command
    if isinstance(command, click.Group):
        context = click.Context(command, info_name=path)
        for name in command.list_commands(context):
            below = command.get_command(context, name)
            assert below is not None, name
            yield from walk(below, f"{path} {name}")


if __name__ == "__main__":
    if PAGE.read_text(encoding="utf-8") != (drawn := log()):
        PAGE.write_text(drawn, encoding="utf-8")
        print(f"updated {PAGE}")
