"""Which node a command is about, in every command that has --config."""

from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from agent.cli import LazyGroup, bsfg, config_option, node_choice
from tests.support import command


@pytest.fixture(name="etc")
def settings_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder in place of /etc/bsfg, with one node; the test runs beside it."""
    folder = tmp_path / "etc"
    folder.mkdir()
    (folder / "plant-a.toml").write_text('[node]\nzone = "plant-a"\nstate_dir = "gone"\n')
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.setattr(node_choice, "CONFIG_FOLDER", folder)
    return folder


def chosen(*words: str) -> tuple[str, str]:
    """The file that a command reads, and its error."""

    @click.command()
    @config_option
    def look(config_file: Path) -> None:
        click.echo(config_file)

    done = CliRunner().invoke(node_choice.with_node_argument(look), words)
    return done.stdout.strip(), done.stderr


def test_a_name_is_enough(etc: Path) -> None:
    """As an argument and as the option's value; the only node needs none, and a node.toml here comes first. A path
    stays one."""
    only = str(etc / "plant-a.toml")
    for words in ((), ("plant-a",), ("--config", "plant-a"), ("--config", only)):
        assert chosen(*words)[0] == only, words
    Path("node.toml").touch()
    assert chosen()[0] == "node.toml"
    assert chosen("plant-a")[0] == only
    assert chosen("--config", "other.toml")[0] == "other.toml"


def test_what_cannot_be_chosen_is_answered_with_the_names(etc: Path, tmp_path: Path) -> None:
    """Several nodes are listed; a wrong name, too; two names are refused."""
    assert f"there is no node 'plant-b': {etc} has plant-a" in chosen("plant-b")[1]
    assert "not both" in chosen("plant-a", "--config", "plant-a")[1]
    (etc / "plant-b.toml").touch()
    assert f"name a node, as --config plant-a: {etc} has plant-a, plant-b\n" in command.bsfg(tmp_path, "status").stderr


def test_a_folder_that_may_not_be_read_is_said(etc: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not that no node exists: the operator is told of the group."""
    monkeypatch.setattr(node_choice.os, "access", lambda *_: False)
    assert "member of group bsfg (usermod -aG bsfg USER" in command.bsfg(tmp_path, "status").stderr
    assert chosen("plant-b")[0] == str(etc / "plant-b.toml")


def test_commands_take_a_node(etc: Path, tmp_path: Path) -> None:
    """A command without other arguments takes the node as its argument, with others as an option; those whose node is
    optional do not fail because there are several."""
    nouns = [bsfg.get_command(click.Context(bsfg), name) for name in ("status", "tail", "source")]
    assert isinstance(nouns[2], LazyGroup)
    nouns[2] = nouns[2].get_command(click.Context(nouns[2]), "list")
    assert [
        [param.name for param in found.params if isinstance(param, click.Argument)] for found in nouns if found
    ] == [["node"]] * 3
    assert "no node runs on" in command.bsfg(tmp_path, "status", "plant-a").stderr
    (etc / "plant-b.toml").touch()
    assert "no source of" not in command.bsfg(tmp_path, "status", "plant-a").stderr
    done = command.bsfg(tmp_path, "tags", "check", "none.csv", "--protocol", "modbus", "--base", "0")
    assert "none.csv: does not exist" in done.stdout
