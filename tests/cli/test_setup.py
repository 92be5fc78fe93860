"""`bsfg setup`: the answers of the page lead to a node that reads a real device, step by step as an operator would."""

import json
import os
import re
import subprocess
import tomllib
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from agent.cli.prepare import setup as command_module
from agent.config import ConfigError
from agent.replication import pki
from tests.ingest.fakes import Program
from tests.support import command
from tests.support.mosquitto import free_port

pytestmark = pytest.mark.system
PAGE = Path(__file__).resolve().parents[2] / "docs" / "operate" / "setup.md"


def answers(port: int, more: str = "") -> str:
    """The answers of the page, at the address of the test's device; `more` are further lines at the top."""
    found = re.search(r"```toml answers.toml\n(.*?)```", PAGE.read_text("utf-8"), re.DOTALL)
    assert found is not None
    return more + found[1].replace('host = "192.0.2.20"', f'host = "127.0.0.1"\nport = {port}')


def set_up(folder: Path, text: str) -> "subprocess.CompletedProcess[str]":
    """Run setup in a process of its own, for its steps are processes too."""
    (folder / "answers.toml").write_text(text)
    return command.process(folder, "setup", "--config", "node.toml", "--answers", "answers.toml")


def test_from_answers_to_a_node_and_its_certificate(meter: Program, tmp_path: Path) -> None:
    """The first run leaves a node that reads the device, and a request; it says what is left to do. The second has the
    certificate, which the authority has signed meanwhile: broker and peer are added, the source is not added twice."""
    done = set_up(tmp_path, answers(meter.port))
    assert (done.returncode, done.stderr) == (0, "")
    for step in ("init --zone plant-a", "pki request plant-a", "source test boiler", "check --config"):
        assert f"$ bsfg {step}" in done.stdout
    _, _, left = done.stdout.partition("left to do:")
    request = tmp_path / "pki" / "zones" / "requested" / "plant-a.csr"
    assert f"have {request} signed" in left
    assert "start the node: bsfg run" in left
    found = tomllib.loads((tmp_path / "node.toml").read_text())
    assert (found["modbus"][0]["name"], "broker" in found) == ("boiler", False)

    authority = tmp_path / "authority"
    pki.create_authority(authority, datetime.now(UTC))
    issued = pki.sign_request(authority, "plant-a", request, datetime.now(UTC))
    files = f'certificate = "{issued.cert_file}"\nauthority = "{issued.ca_file}"\n'
    done = set_up(tmp_path, answers(meter.port, files))
    assert (done.returncode, done.stderr) == (0, "")
    assert "$ bsfg pki import plant-a" in done.stdout
    assert "bsfg source test" not in done.stdout
    found = tomllib.loads((tmp_path / "node.toml").read_text())
    assert (len(found["modbus"]), found["broker"][0]["host"]) == (1, "broker.idmz.example")
    assert found["peer"][0] == {
        "broker": "broker",
        "zone": "idmz",
        "exports": ["facts.telemetry", "facts.operational"],
    }


def test_a_source_that_cannot_be_read_is_not_kept(tmp_path: Path) -> None:
    """The failed step is named with its command, and node.toml is as before, so that the next try begins there."""
    text = re.sub(r"\[broker\].*?(?=\[\[modbus)", "", answers(free_port()), flags=re.DOTALL)
    done = set_up(tmp_path, text)
    assert done.returncode == 1
    assert "this step failed: bsfg source test boiler" in done.stderr
    assert "modbus" not in tomllib.loads((tmp_path / "node.toml").read_text())


@pytest.mark.parametrize(
    "text, why",
    [
        ('zone = "plant-a"\nspeed = 1\n', "speed is no answer"),
        ('zone = "plant-a"\n[[modbus]]\nname = "m"\nhost = "h"\naddress_base = 7\n', "modbus[0].address_base"),
        ('zone = "plant-a"\n[[modbus]]\nname = "m"\nhost = { a = 1 }\n', "host = {'a': 1}: an answer is a text"),
        ('zone = "Plant A"\n', "a zone is 1 to 32"),
        ("zone = \n", "answers.toml: "),
    ],
)
def test_a_bad_answer_is_named(tmp_path: Path, text: str, why: str) -> None:
    """With what is wrong, and nothing of its section is in node.toml."""
    (tmp_path / "answers.toml").write_text(text)
    done = command.bsfg(tmp_path, "setup", "--config", "node.toml", "--answers", "answers.toml")
    assert done.returncode != 0
    assert why in done.stderr
    assert "Traceback" not in done.stderr
    file = tmp_path / "node.toml"
    assert not file.exists() or "modbus" not in tomllib.loads(file.read_text())


def test_a_section_is_added_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The new text takes the file's place in one step, with its mode and owner. Power that fails before that leaves the
    old text, and the next attempt is not hindered by what it left."""
    file = tmp_path / "node.toml"
    file.write_text('[node]\nzone = "plant-a"\n')
    file.chmod(0o640)
    os.chown(file, -1, 1 if os.geteuid() == 0 else -1)
    before = file.stat()
    run = command_module.Setup({"zone": "plant-a"}, file)
    with monkeypatch.context() as cut:
        cut.setattr(Path, "replace", lambda *_: (_ for _ in ()).throw(OSError("power")))
        cut.setattr(Path, "unlink", lambda *_, **__: None)
        with pytest.raises(OSError, match="power"):
            run._add("stream", {"name": "facts.telemetry"})
    assert file.read_text() == '[node]\nzone = "plant-a"\n'
    with pytest.raises(ConfigError, match="no \\[\\[broker\\]\\] is named"):
        run._add("peer", {"zone": "idmz", "broker": "b", "asks": True})
    run._add("stream", {"name": "facts.telemetry", "keep_hours": 2.0})
    after = file.stat()
    assert after.st_ino != before.st_ino
    assert (after.st_mode, after.st_uid, after.st_gid) == (before.st_mode, before.st_uid, before.st_gid)
    assert tomllib.loads(file.read_text())["stream"][0]["keep_hours"] == 2.0
    assert [one.name for one in tmp_path.iterdir()] == ["node.toml"]


def test_questions_give_the_same_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Typed answers are those of a file, and empty ones leave their part out."""
    given: list[dict[str, Any]] = []
    monkeypatch.setattr(command_module.Setup, "run", lambda self: given.append(dict(self.given)))
    typed = ["plant-a", "broker.example", "", "idmz", "reads from here", "modbus", "boiler", "10.0.0.5", "40001"]
    typed += ["line1/t,holding,40001,float32", ""]
    assert CliRunner().invoke(command_module.setup, input="\n".join([*typed, ""])).exit_code == 0
    assert CliRunner().invoke(command_module.setup, input="plant-b\n\nnone\n").exit_code == 0
    assert given[0] == {
        "zone": "plant-a",
        "broker": {"name": "broker", "host": "broker.example", "port": 8883},
        "peer": {"zone": "idmz", "exports": ["facts.telemetry", "facts.operational"]},
        "modbus": [
            {
                "name": "boiler",
                "host": "10.0.0.5",
                "address_base": 40001,
                "tags": "tag,table,register,type\nline1/t,holding,40001,float32\n",
            }
        ],
    }
    assert given[1] == {"zone": "plant-b"}
    assert json.dumps(given), "as in a file"
