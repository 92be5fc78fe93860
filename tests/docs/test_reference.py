"""The reference of settings and commands is what the code says."""

import dataclasses
import re
import typing

import click
import pytest

from agent.cli import bsfg
from agent.health.problems import Problem
from agent.node.reload_plan import Reach, reach_of
from agent.settings.node import NodeSettings
from agent.settings.peers import BrokerSettings
from agent.settings.sources import ModbusSourceSettings
from agent.settings.store import StreamSettings
from tests.support.syntax import syntax_tree
from tools.draw_reference import PAGES, REFERENCE, accepted, commands, configuration, sections, walk
from tools.log_events import events, events_of, incidents


@pytest.mark.parametrize("name", PAGES)
def test_the_page_is_up_to_date(name: str) -> None:
    """A setting, default, rule, command or option that changed is changed in the reference, too."""
    assert (REFERENCE / name).read_text("utf-8") == PAGES[name](), "run python -m tools.draw_reference"


def test_every_setting_has_a_row() -> None:
    """Each field of each section of node.toml is in a table, with a default and whether a change needs a restart."""
    page = configuration()
    for name, hint in typing.get_type_hints(NodeSettings).items():
        record = (typing.get_args(hint) or [hint])[0]
        (section,) = re.findall(rf"^## \[+{name}\]+\n(.*?)(?=^## |\Z)", page, re.MULTILINE | re.DOTALL)
        rows = re.findall(r"^\| `(\w+)` \| .+ \| .* \| (.*) \|$", section, re.MULTILINE)
        assert [setting for setting, _ in rows] == [field.name for field in dataclasses.fields(record)]
        for setting, values in rows:
            assert ("*restart*" in values) is (reach_of(record, setting) is Reach.RESTART)


def test_every_number_has_a_limit() -> None:
    """A number without a rule would accept a negative value."""
    for section in sections():
        hints = typing.get_type_hints(section.record)
        for field in dataclasses.fields(section.record):
            if hints[field.name] in (int, float):
                assert accepted(section.record, field.name), (section.name, field.name)


def test_the_rules_are_those_of_the_code() -> None:
    """A range, a rule of two settings together, and a setting without a rule."""
    assert accepted(BrokerSettings, "port") == "a TCP port is 1 to 65535"
    assert accepted(ModbusSourceSettings, "hole_max") == "0 to 125"
    assert "longer than ttl_hours" in accepted(StreamSettings, "keep_hours")
    assert not accepted(BrokerSettings, "ca_file")


def test_every_log_line_and_incident_has_a_meaning() -> None:
    """Each row of log.md says what the line means and what to do; a line of level info is normal, and has none.
    Commands that it names exist. Each problem of a status is there."""
    status, _, text = (REFERENCE / "log.md").read_text("utf-8").partition("## Events of the log")
    named = re.findall(r"^\| `(\w+)` \| \w+ \| .+ \|$", status, re.MULTILINE)
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
    """Each command has a heading and a sentence, and each of its options a help text and its name there, in its group
    or at the top; those of `bench` are on the page of the benchmarks."""
    page = commands()
    top, group = page.partition("## bsfg\n")[0], ""
    for path, command in walk(bsfg, "bsfg"):
        if path.startswith("bsfg bench "):
            assert f"`{path.split()[2]}`" in (REFERENCE.parent / "developers/benchmarks.md").read_text("utf-8")
            continue
        (entry,) = re.findall(rf"^##+ {path}(?: [^a-z\n][^\n]*)?\n(.*?)(?=^##+ |\Z)", page, re.MULTILINE | re.DOTALL)
        assert entry.strip().splitlines()[0].strip(), path
        assert command.help, path
        group = entry if isinstance(command, click.Group) else group
        for one in command.params:
            if isinstance(one, click.Option):
                assert one.help, (path, one.name)
                assert f"`{', '.join(sorted(one.opts, key=len))}" in f"{entry}{group}{top}", (path, one.name)
