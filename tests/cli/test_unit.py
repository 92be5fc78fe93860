"""Commands that prepare a node for its unit: what they write fits the unit, and `check` names what the unit refuses.
Which node a command is about."""

import ast
import configparser
import json
import os
import re
from functools import partial
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from agent.cli import LazyGroup, bsfg, config_option, node_choice
from agent.cli.prepare import unit
from agent.config import load, load_sections
from tests.cli.conftest import Bsfg
from tests.support import command

SYSTEMD = Path(__file__).resolve().parents[2] / "systemd"
OPCUA = '[[opcua]]\nname = "plc"\nurl = "opc.tcp://{0}:4840"\ntags_file = "plc.csv"\n'
UNSECURED = 'security_policy = "None"\nsecurity_mode = "None"\ninsecure = true\n'


@pytest.fixture
def unit_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder in place of /etc/bsfg, and one beside it in place of /var/lib/bsfg. Rights of
    users are left as they are: a process cannot take back what it has given up."""
    folder = tmp_path / "etc"
    folder.mkdir()
    monkeypatch.setattr(unit, "CONFIG_FOLDER", folder)
    monkeypatch.setattr(unit, "STATE_FOLDER", tmp_path / "lib")
    monkeypatch.setattr(unit, "become_node_user", lambda: False)
    monkeypatch.setattr(unit, "HIDDEN", (tmp_path / "home",))
    monkeypatch.setattr(unit, "DROP_INS", (str(folder / "all.d"), str(folder / "{}.d")))
    (folder / "plc.csv").write_text("tag,address\nline1/t,nsu=urn:x;s=t\n")
    return folder


@pytest.fixture
def bsfg_of_unit(unit_folder: Path) -> Bsfg:
    """Run `bsfg` in the folder of the configuration."""
    return partial(command.bsfg, unit_folder)


def unit_problems(bsfg_of_unit: Bsfg) -> list[str]:
    """What `bsfg check` finds in plant-a.toml."""
    done = bsfg_of_unit("check", "--json", "--config", "plant-a.toml")
    found: list[str] = json.loads(done.stdout)["problems"]
    return found


def test_the_values_are_those_of_the_unit() -> None:
    """User, configuration, state, and what the sandbox hides are written in the unit as they are here."""
    parser = configparser.ConfigParser(strict=False, interpolation=None, delimiters=("=",), comment_prefixes=("#",))
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    parser.read_string((SYSTEMD / "bsfg@.service").read_text())
    service = parser["Service"]
    assert service["User"] == unit.USER
    assert f"--config {unit.CONFIG_FOLDER}/%i.toml" in service["ExecStart"]
    assert Path("/var/lib") / service["StateDirectory"] == unit.STATE_FOLDER / "%i"
    hiding = {name: service[name] for name in ("ProtectSystem", "ProtectHome", "PrivateTmp", "PrivateDevices")}
    assert hiding == {"ProtectSystem": "strict", "ProtectHome": "yes", "PrivateTmp": "yes", "PrivateDevices": "yes"}
    assert "ReadWritePaths" not in service


def test_init_for_a_unit_is_accepted(bsfg_of_unit: Bsfg, unit_folder: Path) -> None:
    """The new file of a unit has its state where the unit may write, and its folder's group may read it. Elsewhere the
    state lies beside the file, or where the command is told."""
    assert bsfg_of_unit("init", "--zone", "plant-a", "--config", str(unit_folder / "plant-a.toml")).returncode == 0
    assert load(unit_folder / "plant-a.toml").node.state_dir == unit_folder.parent / "lib" / "plant-a"
    if os.geteuid() == 0:
        assert (unit_folder / "plant-a.toml").stat().st_mode & 0o7777 == 0o640
    assert unit_problems(bsfg_of_unit) == []
    other = unit_folder.parent / "node.toml"
    assert bsfg_of_unit("init", "--zone", "plant-a", "--config", str(other)).returncode == 0
    assert load(other).node.state_dir == unit_folder.parent / "state"
    assert (
        bsfg_of_unit("init", "--zone", "a", "--force", "--config", str(other), "--state-dir", "/srv/facts").returncode
        == 0
    )
    assert load(other).node.state_dir == Path("/srv/facts")


def test_a_secured_source_needs_no_certificate_lines(bsfg_of_unit: Bsfg, unit_folder: Path) -> None:
    """Our certificate is made in the state folder, where the node may write. One of the two lines alone is a
    mistake."""
    bsfg_of_unit("init", "--zone", "plant-a", "--config", "plant-a.toml")
    file = unit_folder / "plant-a.toml"
    text = file.read_text() + OPCUA.format("10.0.0.7")
    file.write_text(text)
    (source,) = load(file).opcua
    own = unit_folder.parent / "lib" / "plant-a" / "opcua"
    assert (source.certificate_file, source.private_key_file) == (own / "own.der", own / "own.key")
    assert unit_problems(bsfg_of_unit) == []
    file.write_text(text + 'certificate_file = "own.der"\n')
    assert any("private_key_file: is needed" in problem for problem in unit_problems(bsfg_of_unit))
    file.write_text(text + UNSECURED)
    assert load(file).opcua[0].certificate_file is None


def test_check_names_what_the_unit_refuses(bsfg_of_unit: Bsfg, unit_folder: Path) -> None:
    """State and a certificate to be made outside of the state folder, files below /home, a serial port and public
    addresses without a drop-in: each is named with what to do, and no longer once that is done. The same settings are
    good for a file elsewhere, which no unit reads."""
    home = unit_folder.parent / "home"
    home.mkdir()
    (home / "line.csv").write_text("tag,table,register,type\na/b,holding,1,int16\n")
    (unit_folder / "serial").touch()
    text = '[node]\nzone = "plant-a"\n' + OPCUA.format("10.0.0.7").replace("plc", "open") + UNSECURED
    (unit_folder / "open.csv").write_text((unit_folder / "plc.csv").read_text().replace("line1/t", "line2/t"))
    text += OPCUA.format("8.8.8.8") + 'urls = ["opc.tcp://8.8.4.4"]\n'
    text += 'certificate_file = "own.der"\nprivate_key_file = "own.key"\n'
    text += (
        f'[[modbus]]\nname = "line"\ntransport = "rtu"\nserial_port = "{unit_folder / "serial"}"\naddress_base = 0\n'
    )
    text += f'tags_file = "{home / "line.csv"}"\n'
    (unit_folder / "plant-a.toml").write_text(text)
    found = unit_problems(bsfg_of_unit)
    for part in (
        f"state_dir: {unit_folder / 'state'} is read-only for the node",
        f"plc: certificate_file: {unit_folder / 'own.der'} does not exist",
        f"plc: private_key_file: {unit_folder / 'own.key'} does not exist",
        f"line: tags_file: {home / 'line.csv'} is hidden",
        "line: serial_port: bsfg@plant-a may open no device",
        "plc: bsfg@plant-a reaches private networks only, not 8.8.8.8",
        "plc: bsfg@plant-a reaches private networks only, not 8.8.4.4",
    ):
        assert [text for text in found if text.startswith(part)], (part, found)
    assert len(found) == 7

    (unit_folder / "plant-a.d").mkdir()
    (unit_folder / "plant-a.d" / "site.conf").write_text(
        "[Service]\nDeviceAllow=/dev/ttyS1 rw\nIPAddressAllow=8.8.8.8\n"
    )
    assert not [problem for problem in unit_problems(bsfg_of_unit) if "serial_port" in problem or "8.8.8.8" in problem]
    (unit_folder / "plant-a.d" / "site.conf").write_text("[Service]\n#DeviceAllow=/dev/ttyS1 rw\n")
    assert [problem for problem in unit_problems(bsfg_of_unit) if "serial_port" in problem]

    (unit_folder / "elsewhere").mkdir()
    for file in unit_folder.glob("*.csv"):
        (unit_folder / "elsewhere" / file.name).write_text(file.read_text())
    (unit_folder / "elsewhere" / "node.toml").write_text(text)
    done = bsfg_of_unit("check", "--json", "--config", "elsewhere/node.toml")
    assert json.loads(done.stdout)["problems"] == []


def test_every_file_and_every_host_is_looked_at(unit_folder: Path) -> None:
    """Those of a broker, of a Modbus device behind TLS, and of the signers."""
    home, file = unit_folder.parent / "home", unit_folder / "plant-a.toml"
    text = f'[node]\nzone = "plant-a"\nstate_dir = "{unit_folder.parent / "lib" / "plant-a"}"\n'
    text += f'[signing]\nfacts_ca_file = "{home}/facts.pem"\n'
    text += f'[[broker]]\nname = "b"\nhost = "8.8.8.8"\nca_file = "{home}/ca.pem"\n'
    text += 'cert_file = "b.pem"\nkey_file = "b.key"\n'
    text += '[[modbus]]\nname = "m"\nhost = "8.8.4.4"\ntransport = "tls"\naddress_base = 0\n'
    text += f'tags_file = "plc.csv"\nca_file = "{home}/ca.pem"\n'
    file.write_text(text)
    found = [re.sub(r" (is|reaches) .*", "", text) for text in unit.refusals_of(load_sections(file))]
    hidden = [
        f"broker b: ca_file: {home}/ca.pem",
        f"m: ca_file: {home}/ca.pem",
        f"signing: facts_ca_file: {home}/facts.pem",
    ]
    assert found == [*hidden, "broker b: bsfg@plant-a", "m: bsfg@plant-a"]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder to another user")
def test_root_makes_no_files_that_the_node_cannot_read(tmp_path: Path) -> None:
    """A command that would open the node's store as root is refused, with the command to type instead; it leaves no
    file of root behind."""
    (tmp_path / "node.toml").write_text('[node]\nzone = "plant-a"\n')
    (tmp_path / "state").mkdir()
    os.chown(tmp_path / "state", 12345, 12345)
    done = command.bsfg(tmp_path, "append", "batch:B-1", "done", "{}")
    assert done.returncode == 1
    assert "runuser -u #12345 -- bsfg" in done.stderr
    assert list((tmp_path / "state").iterdir()) == []


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


def test_every_command_that_a_text_names_exists() -> None:
    """Messages, remedies and help name commands by words: each second word belongs to its group, and none is left to
    be filled in, where this would not see it."""
    root = click.Context(bsfg)
    found = {name: bsfg.get_command(root, name) for name in bsfg.list_commands(root)}
    groups = {name: group.list_commands(root) for name, group in found.items() if isinstance(group, click.Group)}
    named, wrong = 0, list[str]()
    for file in sorted((SYSTEMD.parent / "agent").rglob("*.py")):
        texts = [node.value for node in ast.walk(ast.parse(file.read_text("utf-8"))) if isinstance(node, ast.Constant)]
        for text in (text for text in texts if isinstance(text, str)):
            for said in re.finditer(r"\bbsfg ([a-z]+|\{)(?: ([a-z][a-z-]*|\{))?", text):
                group, name = said.groups()
                named += group in groups
                if group == "{" or (name and group in groups and name not in groups[group]):
                    wrong.append(f"{file.name}: {said[0]}")
    assert not wrong
    assert named > 50
