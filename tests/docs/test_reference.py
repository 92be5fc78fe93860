"""The reference of log lines, the help of commands and the limits of settings are complete."""

import dataclasses
import re
import typing
from pathlib import Path

import click
import pytest

from agent.cli import bsfg
from agent.health.problems import Problem
from agent.settings.node import NodeSettings
from tools.draw_reference import PAGE, log, walk
from tools.log_events import events, events_of, incidents
from tools.syntax import syntax_tree

BENCHMARKS = PAGE.parents[1] / "developers" / "benchmarks.md"


def test_the_page_is_up_to_date() -> None:
    """A problem, log line or incident that changed is changed in the reference, too."""
    assert PAGE.read_text("utf-8") == log(), "run python -m tools.draw_reference"


def test_every_number_has_a_limit() -> None:
    """A number without a rule would accept a negative value."""
    for name, hint in typing.get_type_hints(NodeSettings).items():
        record = (typing.get_args(hint) or [hint])[0]
        hints = typing.get_type_hints(record)
        required = [field for field in dataclasses.fields(record) if field.default is dataclasses.MISSING]
        given = {field.name: {int: 0, Path: Path("a")}.get(hints[field.name], "a") for field in required}
        for field in dataclasses.fields(record):
            if hints[field.name] in (int, float):
                settings = record(**{**given, field.name: hints[field.name](-(10**15))})
                assert field.name in dict(settings.problems()), (name, field.name)


def test_every_log_line_and_incident_has_a_meaning() -> None:
    """Each row of log.md says what the line means and what to do; a line of level info is normal, and has none.
    Commands that it names exist. Each problem of a status is there."""
    status, _, text = PAGE.read_text("utf-8").partition("## Events of the log")
    named = re.findall(r"^\| `(\w+)`, \w+ \| .+ \|$", status, re.MULTILINE)
    assert named == [problem.name.lower() for problem in Problem]
    rows = re.findall(r"^\| `(\w+)` \| (.*) \| ?(.*?) ?\|$", text, re.MULTILINE)
    assert len(rows) == sum(level != "info" for level in events().values()) + len(incidents()) > 95
    for name, meaning, todo in rows:
        assert len(meaning.split()) >= 3, name
        assert todo, name
    paths = {path for path, _ in walk(bsfg, "bsfg")}
    for command in re.findall(r"(?:`|^|[:;,|] )(bsfg [a-z -]+)", f"{status}{text}", re.MULTILINE):
        words = command.split()
        assert any(" ".join(words[:count]) in paths - {"bsfg"} for count in (2, 3)), command


def test_an_unreadable_log_call_is_refused() -> None:
    """A log call whose event is neither a constant nor listed is an error: no event is missed by accident."""
    code = "def f(self):\n    log.warning(%s, extra=%s)\n"
    found = list(events_of("x.py", syntax_tree(code % ("'a_b'", "{}"))))
    assert found == [("a_b", "warning")]
    assert list(events_of("x.py", syntax_tree(code % ("'in words'", "{'action': 'c_d'}")))) == [("c_d", "warning")]
    for message in ("'in words'", "name"):
        with pytest.raises(KeyError):
            list(events_of("x.py", syntax_tree(code % (message, "{}"))))


def test_every_command_and_option_is_described() -> None:
    """Each command and each of its options has a help text; those of `bench` are on the page of the benchmarks."""
    for path, command in walk(bsfg, "bsfg"):
        if path.startswith("bsfg bench "):
            assert f"`{path.split()[2]}`" in BENCHMARKS.read_text("utf-8")
            continue
        assert command.help, path
        for option in command.params:
            if isinstance(option, click.Option):
                assert option.help, (path, option.name)
