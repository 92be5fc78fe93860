"""The reference of settings and commands is what the code says."""

import dataclasses
import re
import typing

import click
import pytest

from agent.cli import bsfg
from agent.settings.node import NodeSettings
from agent.settings.peers import BrokerSettings
from agent.settings.sources import ModbusSourceSettings
from agent.settings.store import StreamSettings
from tools.draw_reference import PAGES, REFERENCE, accepted, commands, configuration, sections, walk


@pytest.mark.parametrize("name", PAGES)
def test_the_page_is_up_to_date(name: str) -> None:
    """A setting, default, rule, command or option that changed is changed in the reference, too."""
    assert (REFERENCE / name).read_text("utf-8") == PAGES[name](), "run python -m tools.draw_reference"


def test_every_setting_has_a_row() -> None:
    """Each field of each section of node.toml is in a table, with a default and what a change needs."""
    page = configuration()
    for name, hint in typing.get_type_hints(NodeSettings).items():
        record = (typing.get_args(hint) or [hint])[0]
        (section,) = re.findall(rf"^## \[+{name}\]+\n(.*?)(?=^## |\Z)", page, re.MULTILINE | re.DOTALL)
        rows = re.findall(r"^\| `(\w+)` \| .+ \| .+ \| .* \| (reload|restart|refused) \|$", section, re.MULTILINE)
        assert [setting for setting, _ in rows] == [field.name for field in dataclasses.fields(record)]


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


def test_every_command_and_option_is_described() -> None:
    """Each command has a heading and a sentence, and each of its options an entry that says what it is."""
    page = commands()
    for path, command in walk(bsfg, "bsfg"):
        (entry,) = re.findall(rf"^##+ {path}\n(.*?)(?=^##+ |\Z)", page, re.MULTILINE | re.DOTALL)
        assert entry.strip().splitlines()[0].strip(), path
        assert command.help, path
        for one in command.params:
            if isinstance(one, click.Option):
                assert one.help, (path, one.name)
                assert f"`{', '.join(sorted(one.opts, key=len))}" in entry, (path, one.name)
