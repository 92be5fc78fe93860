"""Commands that prepare a node for its unit: what they write fits the unit, and `check` names what the unit refuses."""

import configparser
import json
import os
from functools import partial
from pathlib import Path

import pytest

from agent.cli.prepare import unit
from agent.config import load
from tests.cli.conftest import Bsfg
from tests.support import command

SYSTEMD = Path(__file__).resolve().parents[2] / "systemd"
OPCUA = '[[opcua]]\nname = "plc"\nurl = "opc.tcp://{0}:4840"\ntags_file = "plc.csv"\n'


@pytest.fixture
def etc(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder in place of /etc/bsfg, and one beside it in place of /var/lib/bsfg. Rights of users are left as they
    are: a process cannot take back what it has given up."""
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
def bsfg(etc: Path) -> Bsfg:
    """Run `bsfg` in the folder of the configuration."""
    return partial(command.bsfg, etc)


def problems(bsfg: Bsfg) -> list[str]:
    """What `bsfg check` finds in plant-a.toml."""
    done = bsfg("check", "--json", "--config", "plant-a.toml")
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


def test_init_for_a_unit_is_accepted(bsfg: Bsfg, etc: Path) -> None:
    """The new file of a unit has its state where the unit may write, and its folder's group may read it. Elsewhere the
    state lies beside the file, or where the command is told."""
    assert bsfg("init", "--zone", "plant-a", "--config", str(etc / "plant-a.toml")).returncode == 0
    assert load(etc / "plant-a.toml").node.state_dir == etc.parent / "lib" / "plant-a"
    if os.geteuid() == 0:
        assert (etc / "plant-a.toml").stat().st_mode & 0o7777 == 0o640
    assert problems(bsfg) == []
    other = etc.parent / "node.toml"
    assert bsfg("init", "--zone", "plant-a", "--config", str(other)).returncode == 0
    assert load(other).node.state_dir == etc.parent / "state"
    assert bsfg("init", "--zone", "a", "--force", "--config", str(other), "--state-dir", "/srv/facts").returncode == 0
    assert load(other).node.state_dir == Path("/srv/facts")


def test_a_secured_source_needs_no_certificate_lines(bsfg: Bsfg, etc: Path) -> None:
    """Our certificate is made in the state folder, where the node may write. One of the two lines alone is a
    mistake."""
    bsfg("init", "--zone", "plant-a", "--config", "plant-a.toml")
    file = etc / "plant-a.toml"
    text = file.read_text() + OPCUA.format("10.0.0.7")
    file.write_text(text)
    (source,) = load(file).opcua
    own = etc.parent / "lib" / "plant-a" / "opcua"
    assert (source.certificate_file, source.private_key_file) == (own / "own.der", own / "own.key")
    assert problems(bsfg) == []
    file.write_text(text + 'certificate_file = "own.der"\n')
    assert any("private_key_file: is needed" in problem for problem in problems(bsfg))
    file.write_text(text + 'security_policy = "None"\nsecurity_mode = "None"\ninsecure = true\n')
    assert load(file).opcua[0].certificate_file is None


def test_check_names_what_the_unit_refuses(bsfg: Bsfg, etc: Path) -> None:
    """State and a certificate to be made outside of the state folder, files below /home, a serial port and a public
    address without a drop-in: each is named with what to do, and no longer once that is done. The same settings are
    good for a file elsewhere, which no unit reads."""
    home = etc.parent / "home"
    home.mkdir()
    (home / "line.csv").write_text("tag,table,register,type\na/b,holding,1,int16\n")
    (etc / "serial").touch()
    text = '[node]\nzone = "plant-a"\n' + OPCUA.format("8.8.8.8")
    text += 'certificate_file = "own.der"\nprivate_key_file = "own.key"\n'
    text += f'[[modbus]]\nname = "line"\ntransport = "rtu"\nserial_port = "{etc / "serial"}"\naddress_base = 0\n'
    text += f'tags_file = "{home / "line.csv"}"\n'
    (etc / "plant-a.toml").write_text(text)
    found = problems(bsfg)
    for part in (
        f"state_dir: {etc / 'state'} is read-only for the node",
        f"plc: certificate_file: {etc / 'own.der'} does not exist",
        f"plc: private_key_file: {etc / 'own.key'} does not exist",
        f"line: tags_file: {home / 'line.csv'} is hidden",
        "line: serial_port: bsfg@plant-a may open no device",
        "plc: bsfg@plant-a reaches private networks only, not 8.8.8.8",
    ):
        assert [text for text in found if text.startswith(part)], (part, found)
    assert len(found) == 6

    (etc / "plant-a.d").mkdir()
    (etc / "plant-a.d" / "site.conf").write_text("[Service]\nDeviceAllow=/dev/ttyS1 rw\nIPAddressAllow=8.8.8.8\n")
    assert not [problem for problem in problems(bsfg) if "serial_port" in problem or "8.8.8.8" in problem]
    (etc / "plant-a.d" / "site.conf").write_text("[Service]\n#DeviceAllow=/dev/ttyS1 rw\n")
    assert [problem for problem in problems(bsfg) if "serial_port" in problem]

    (etc / "elsewhere").mkdir()
    (etc / "elsewhere" / "plc.csv").write_text((etc / "plc.csv").read_text())
    (etc / "elsewhere" / "node.toml").write_text(text)
    done = bsfg("check", "--json", "--config", "elsewhere/node.toml")
    assert json.loads(done.stdout)["problems"] == []


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
