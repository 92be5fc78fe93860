"""`bsfg setup`: the answers of the page lead to a node that reads a real device, step by step as an operator would."""

import fcntl
import os
import pty
import re
import select
import signal
import subprocess
import termios
import tomllib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from agent.cli.prepare import setup as command_module
from agent.cli.prepare.steps import SetupFailed, Steps
from agent.config import ConfigError
from tests.cli.test_sources_page import node
from tests.ingest.fakes import Program, running
from tests.ingest.opcua.security.certificates import in_files
from tests.support import command
from tests.support.mosquitto import free_port
from tests.waiting import wait_until

pytestmark = pytest.mark.system
URI = "urn:freeopcua:python:server"  # what asyncua's server calls itself
PAGE = Path(__file__).resolve().parents[2] / "docs" / "how-to" / "first-gateway.md"


def answers(port: int) -> str:
    """The answers of the page, at the address of the test's device."""
    found = re.search(r"```toml answers.toml\n(.*?)```", PAGE.read_text("utf-8"), re.DOTALL)
    assert found is not None
    return found[1].replace('host = "192.0.2.20"', f'host = "127.0.0.1"\nport = {port}')


def set_up(folder: Path, text: str) -> "subprocess.CompletedProcess[str]":
    """Run setup in a process of its own, for its steps are processes too."""
    (folder / "answers.toml").write_text(text)
    return command.process(folder, "setup", "--config", "node.toml", "--answers", "answers.toml")


def test_from_answers_to_two_zones(meter: Program, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on the page, without questions: the first run leaves a node that reads the device, and its request on the
    stick; the other zone's run makes the authority, signs and configures the broker; the second run here has the
    certificate, and adds broker and peer, but not the source again; the node that runs by then reloads them, and the
    end is how its tags are, as the page shows it. Each says what is left to do."""
    stick, idmz = tmp_path / "usb", tmp_path / "idmz"
    stick.mkdir()
    idmz.mkdir()
    (tmp_path / "passphrase").write_text("correct horse\n")
    (tmp_path / "passphrase").chmod(0o600)
    monkeypatch.setenv("BSFG_PKI_PASSPHRASEFILE", str(tmp_path / "passphrase"))
    mine = answers(meter.port).replace("/media/usb", str(stick))
    done = set_up(tmp_path, mine)
    assert (done.returncode, done.stderr) == (0, "")
    for step in ("init --zone plant-a", "pki request plant-a", "source test boiler", "check --config"):
        assert f"$ bsfg {step}" in done.stdout
    _, _, left = done.stdout.partition("left to do:")
    assert "take the stick to the authority" in left
    assert "start the node: bsfg run" in left
    found = tomllib.loads((tmp_path / "node.toml").read_text())
    assert (found["modbus"][0]["name"], "broker" in found) == ("boiler", False)

    theirs = f'zone = "idmz"\nstick = "{stick}"\nauthority = "{tmp_path / "authority"}"\n'
    theirs += '[broker]\nhere = true\nhost = "broker.idmz.example"\n[peer]\nzone = "plant-a"\n'
    done = set_up(idmz, f'{theirs}pulls = ["facts.telemetry"]\n')
    assert (done.returncode, done.stderr) == (0, "")
    (fingerprint,) = re.findall(r"plant-a.csr: (\S+)", done.stdout)
    assert f"fingerprint of the key: {fingerprint}" in done.stdout.partition("$ bsfg pki sign plant-a")[2]
    assert "move the authority" in done.stdout.partition("left to do:")[2]
    assert (idmz / "brokers" / "idmz" / "mosquitto.conf").exists()
    assert sorted(path.name for path in stick.iterdir()) == ["ca.pem", "plant-a.pem"]
    found = tomllib.loads((idmz / "node.toml").read_text())
    assert (found["broker"][0]["host"], found["peer"][0]["zone"]) == ("127.0.0.1", "plant-a")

    with node(tmp_path):
        wait_until(lambda: command.bsfg(tmp_path, "status").stdout, "the node")
        done = set_up(tmp_path, mine)
    assert (done.returncode, done.stderr) == (0, "")
    assert "$ bsfg pki import plant-a" in done.stdout
    assert "start the node" not in done.stdout
    shown = re.search(r"```text\n(.*?)```", PAGE.read_text("utf-8"), re.DOTALL)
    assert shown is not None
    assert shown[1].replace("4", "1").replace("/etc/bsfg/plant-a", str(tmp_path / "node")) in done.stdout
    assert "bsfg source test" not in done.stdout
    found = tomllib.loads((tmp_path / "node.toml").read_text())
    assert (len(found["modbus"]), found["broker"][0]["host"]) == (1, "broker.idmz.example")
    assert found["peer"][0] == {
        "broker": "broker",
        "zone": "idmz",
        "exports": ["facts.telemetry", "facts.operational"],
    }


@pytest.mark.parametrize("asks", [False, True])
def test_answers_that_differ_from_what_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *, asks: bool
) -> None:
    """The files stay as they are, with their comments; the last lines name each line that differs with its answer, also
    rows of a tag file, and setup fails, although all other steps have run; with and without a person at a terminal, who
    is asked nothing for it. Not with the answers of the file."""
    file, tags_file = tmp_path / "node.toml", tmp_path / "tags.d" / "boiler.csv"
    given = tomllib.loads(re.sub("stick.*?(?=\\[\\[modbus)", "", answers(502), flags=re.DOTALL))
    (source,) = given["modbus"]
    text = (
        '[node]\nzone = "plant-a"\n[[modbus]]\nname = "boiler"\ntags_file = "tags.d/boiler.csv"\naddress_base = 0\n'
        'host = "127.0.0.1"  # moved in May\nport = 502\n'
    )
    file.write_text(text)
    tags_file.parent.mkdir()
    tags_file.write_text(source["tags"])
    ran: list[str] = []
    monkeypatch.setattr(Steps, "run", lambda _, command, shown=(): ran.append(" ".join(shown or command)) or "")
    command_module.Setup(given, file, asks=asks).run()
    assert "the answer is" not in capsys.readouterr().out
    given["modbus"] = [{**source, "host": "10.9.9.9", "tags": source["tags"].replace("0.1,V", "0.1,mV")}]
    with pytest.raises(SetupFailed, match="3 answers differ"):
        command_module.Setup(given, file, asks=asks).run()
    assert ran == [f"bsfg check --config {file}"] * 2
    *_, before, first, second, third = capsys.readouterr().out.splitlines()
    assert before.endswith("correct these lines or the answers, and run setup again:")
    assert first.strip() == f'{file}: [[modbus]] boiler: host is "127.0.0.1"; the answer is "10.9.9.9"'
    row = "boiler/voltage,1,input,0,uint16,0.1"
    assert second.strip() == f"{tags_file}: {row},V is not in the answer"
    assert third.strip() == f"{tags_file}: the answer has {row},mV"
    assert (file.read_text(), tags_file.read_text()) == (text, source["tags"])


def test_settings_of_another_zone_are_refused(tmp_path: Path) -> None:
    """Before anything is made for the zone of the answers."""
    (tmp_path / "node.toml").write_text('[node]\nzone = "plant-a"\n')
    with pytest.raises(SetupFailed, match="is for zone plant-a, not plant-b"):
        command_module.Setup({"zone": "plant-b"}, tmp_path / "node.toml").run()


def test_a_connection_that_differs_stays(tmp_path: Path) -> None:
    """Broker and peer are compared as sources are, before certificates and broker files are made for the new answer."""
    (tmp_path / "node.toml").write_text(
        '[node]\nzone = "plant-a"\n[[broker]]\nname = "broker"\nhost = "10.0.0.1"\nca_file = "ca"\ncert_file = "c"\n'
        'key_file = "k"\n[[peer]]\nzone = "idmz"\nbroker = "broker"\nexports = ["facts.telemetry"]\n'
    )
    given = {
        "broker": {"host": "10.0.0.2"},
        "peer": {"zone": "idmz", "exports": ["facts.telemetry", "facts.operational"]},
    }
    run = command_module.Setup({"zone": "plant-a", **given}, tmp_path / "node.toml")
    run._connect(given["broker"], given["peer"])
    head, streams = f"{tmp_path / 'node.toml'}: ", '["facts.telemetry"]'
    assert run.differing == [
        f'{head}[[broker]] broker: host is "10.0.0.1"; the answer is "10.0.0.2"',
        f'{head}[[peer]] idmz: exports is {streams}; the answer is {streams[:-1]}, "facts.operational"]',
    ]
    assert [path.name for path in tmp_path.iterdir()] == ["node.toml"]


def test_a_certificate_of_a_former_key_is_not_imported(tmp_path: Path) -> None:
    """One that lay on the stick before the key was made is left there, and the request comes to it."""
    (tmp_path / "usb").mkdir()
    (tmp_path / "usb" / "plant-a.pem").write_text("of the gateway that burnt")
    text = re.sub(r"\[\[modbus\]\].*", "", answers(free_port()), flags=re.DOTALL)
    done = set_up(tmp_path, text.replace("/media/usb", str(tmp_path / "usb")))
    assert (done.returncode, done.stderr) == (0, "")
    assert "pki import" not in done.stdout
    assert (tmp_path / "usb" / "plant-a.csr").exists()


@pytest.mark.parametrize(
    "text, why",
    [
        ('zone = "plant-a"\nspeed = 1\n', "speed is not an answer"),
        ('zone = "plant-a"\n[[modbus]]\nname = "m"\nhost = "h"\naddress_base = 7\n', "modbus[0].address_base"),
        ('zone = "plant-a"\n[[modbus]]\nname = "m"\nhost = { a = 1 }\n', "host = {'a': 1}: an answer is a text"),
        ('zone = "Plant A"\n', "a zone is 1 to 32"),
        ('zone = "plant-a"\n[broker]\nport = 8883\n', "[broker] needs host"),
        ('zone = "plant-a"\n[peer]\nzone = 7\n', "[peer] needs zone"),
        ('zone = "plant-a"\n[opcua]\nname = "m"\n', "double brackets: [[opcua]]"),
        ('zone = "plant-a"\nstick = "gone"\n[broker]\nhost = "h"\n', "is the stick mounted?"),
        ("zone = \n", "answers.toml: "),
        ('zone = "plant-a"\n[peer]\nzone = "plant-a"\n', "the zone of the peer is that of this node"),
        ('zone = "plant-a"\n[[opcua]]\nname = "m"\nurl = "10.0.0.5:4840"\n', "an address begins with opc.tcp://"),
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
    old text, here with the byte order mark of an editor of Windows."""
    file = tmp_path / "node.toml"
    file.write_text('[node]\nzone = "plant-a"\n', "utf-8-sig")
    file.chmod(0o640)
    os.chown(file, -1, 1 if os.geteuid() == 0 else -1)
    before = file.stat()
    run = command_module.Setup({"zone": "plant-a"}, file)
    with monkeypatch.context() as cut:
        cut.setattr(Path, "replace", lambda *_: (_ for _ in ()).throw(OSError("power")))
        with pytest.raises(OSError, match="power"):
            run.node_file.add_section("stream", {"name": "facts.telemetry"})
    assert file.read_text("utf-8-sig") == '[node]\nzone = "plant-a"\n'
    with pytest.raises(ConfigError, match="no \\[\\[broker\\]\\] is named"):
        run.node_file.add_section("peer", {"zone": "idmz", "broker": "b", "asks": True})
    run.node_file.add_section("stream", {"name": "facts.telemetry", "keep_hours": 2.0})
    after = file.stat()
    assert after.st_ino != before.st_ino
    assert (after.st_mode, after.st_uid, after.st_gid) == (before.st_mode, before.st_uid, before.st_gid)
    assert tomllib.loads(file.read_text())["stream"][0]["keep_hours"] == 2.0
    assert [path.name for path in tmp_path.iterdir()] == ["node.toml"]


def test_questions_give_the_same_answers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Typed answers are those of a file, are kept as one, and empty ones leave their part out, or
    as it was. What cannot be right is asked for again at once: each line of `wrong` is followed by the right one."""
    given: list[dict[str, Any]] = []
    monkeypatch.setattr(command_module.Setup, "run", lambda self: given.append(dict(self.given)))
    wrong = ["Plant A", "reads", "plant-a", "no/host", "/gone", "Press 1", "10.0.0.5:4840", "press"]
    wrong += ["a,holding,x,int16", "10.0.0.5:none"]
    typed = [wrong[0], "plant-a", "elsewhere", wrong[3], "broker.example:8883", "[fd00::1]"]
    typed += ["broker.example", "", wrong[2], "idmz"]
    typed += ["fetches", "reads", wrong[4], str(tmp_path), "opcua", wrong[5], "press", wrong[6], "opc.tcp://plc:4840"]
    typed += ["", "modbus", wrong[7], "boiler", wrong[9], "[fd00::5]:5020", "40001", wrong[8]]
    typed += ["line1/t,holding,40001,float32", "", "none"]
    here = ["idmz", "here", "broker.example", "8890", "plant-a", "is", str(tmp_path), "-", "none"]
    again = ["", "change", *[""] * 7, "none"]
    for name, answered in (("a", typed), ("b", ["plant-b", "none", "none"]), ("c", here), ("c", again)):
        words = ["--config", str(tmp_path / f"{name}.toml")]
        done = CliRunner().invoke(command_module.setup, words, input="\n".join([*answered, ""]))
        assert done.exit_code == 0, done.output
        assert tomllib.loads((tmp_path / f"{name}.answers").read_text()) == given[-1]
    streams = ["facts.telemetry", "facts.operational"]
    assert given[0] == {
        "zone": "plant-a",
        "broker": {"host": "broker.example", "port": 8883},
        "peer": {"zone": "idmz", "exports": streams},
        "stick": str(tmp_path),
        "opcua": [{"name": "press", "url": "opc.tcp://plc:4840", "glob": "*"}],
        "modbus": [
            {
                "name": "boiler",
                "host": "fd00::5",
                "port": 5020,
                "address_base": 40001,
                "tags": "tag,table,register,type\nline1/t,holding,40001,float32\n",
            }
        ],
    }
    assert given[1] == {"zone": "plant-b"}
    connected = {
        "zone": "idmz",
        "broker": {"host": "broker.example", "port": 8890, "here": True},
        "peer": {"zone": "plant-a", "pulls": streams},
        "stick": str(tmp_path),
    }
    assert given[2:] == [connected, connected]


def test_the_answers_of_an_earlier_run_are_offered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The Enter key takes each, and those about the connection at once; a wrong one is typed anew, a row is left out
    with -, and settings that no question has stay."""
    given: list[dict[str, Any]] = []
    monkeypatch.setattr(command_module.Setup, "run", lambda self: given.append(dict(self.given)))
    before = f"""zone = "plant-a"
stick = "{tmp_path}"
[broker]
host = "broker.example"
port = 8884
[peer]
zone = "idmz"
exports = ["facts.telemetry"]
[[opcua]]
name = "press"
url = "opc.tcp://plc:4840"
glob = "Line1/*"
trust = true
[[modbus]]
name = "boiler"
host = "10.0.0.5"
address_base = 0
port = 1502
tags = "tag,table,register,type\\na/x,holding,1,int16\\na/y,holding,2,int16\\n"
"""
    (tmp_path / "n.answers").write_text(before)
    typed = ["", "", *[""] * 6, "10.0.0.6", "", "-", "", "a/z,holding,3,int16", "", "", ""]
    done = CliRunner().invoke(command_module.setup, ["--config", str(tmp_path / "n.toml")], input="\n".join(typed))
    assert done.exit_code == 0, done.output
    wanted = tomllib.loads(before)
    wanted["modbus"][0] |= {
        "host": "10.0.0.6",
        "tags": "tag,table,register,type\na/y,holding,2,int16\na/z,holding,3,int16\n",
    }
    assert given == [wanted]


def test_only_what_is_new_is_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The zone is offered. What the settings have, also with a host that was corrected there, is neither asked for nor
    compared, and stays in the saved answers; the stick and the passphrase of the authority are not needed again."""
    file = tmp_path / "node.toml"
    (tmp_path / "tags.d").mkdir()
    (tmp_path / "tags.d" / "boiler.csv").write_text("tag,table,register,type\na/x,holding,1,int16\n")
    (tmp_path / "pki" / "zones").mkdir(parents=True)
    (tmp_path / "pki" / "zones" / "plant-a.pem").touch()
    file.write_text(
        '[node]\nzone = "plant-a"\n[[broker]]\nname = "broker"\nhost = "10.0.0.9"\nport = 8883\nca_file = "ca"\n'
        'cert_file = "c"\nkey_file = "k"\n[[peer]]\nzone = "idmz"\nbroker = "broker"\nexports = ["facts.telemetry"]\n'
        '[[modbus]]\nname = "boiler"\nhost = "10.0.0.5"\ntags_file = "tags.d/boiler.csv"\naddress_base = 0\n'
    )
    kept = (
        'zone = "plant-a"\nstick = "/gone"\nauthority = "/moved"\n[broker]\nhost = "10.0.0.1"\nport = 8883\n[peer]\n'
        'zone = "idmz"\nexports = ["facts.telemetry"]\n[[modbus]]\nname = "boiler"\nhost = "10.0.0.4"\n'
        'address_base = 0\ntags = "tag,table,register,type\\na/x,holding,1,int16\\n"\n'
    )
    (tmp_path / "node.answers").write_text(kept)
    ran: list[str] = []
    monkeypatch.setattr(Steps, "run", lambda _, words, shown=(): ran.append(" ".join(shown or words)) or "")
    typed = ["", "", "modbus", "boiler", "press", "10.0.0.6", "0", "a/y,holding,1,int16", "", ""]
    done = CliRunner().invoke(command_module.setup, ["--config", str(file)], input="\n".join([*typed, ""]))
    assert done.exit_code == 0, done.output
    assert "Broker 10.0.0.1:8883, peer idmz reads from here (keep, another peer) [keep]" in done.output
    assert "# sources in the settings: boiler" in done.output
    assert "boiler is the name of another source" in done.output
    assert ran == [f"bsfg source test press --all --partial --config {file}", f"bsfg check --config {file}"]
    assert [source["name"] for source in tomllib.loads(file.read_text())["modbus"]] == ["boiler", "press"]
    saved = tomllib.loads((tmp_path / "node.answers").read_text())
    assert (saved["broker"]["host"], [source["name"] for source in saved["modbus"]]) == (
        "10.0.0.9",
        ["boiler", "press"],
    )


def only_source(kind: str, *sections: str) -> str:
    """Answers with only sources."""
    return 'zone = "plant-a"\n' + "".join(f"[[{kind}]]\n{section}\n" for section in sections)


def boiler(port: int, name: str, *rows: str) -> str:
    """The section of the test's Modbus device with these tags."""
    tags = "".join(f"{row}\\n" for row in ("tag,table,register,type", *rows))
    return f'name = "{name}"\nhost = "127.0.0.1"\nport = {port}\naddress_base = 0\ntags = "{tags}"'


def test_a_broken_sensor_keeps_no_other_out(meter: Program, tmp_path: Path) -> None:
    """A source is kept if one of its tags has a value: the others are listed with the answer of the device, and with
    the file in which they can be deleted, which exists. One without any is removed, and the source after it is added.
    """
    right, wrong = "a/voltage,input,0,uint16", "a/broken,holding,60000,uint16"
    text = only_source(
        "modbus", boiler(meter.port, "dead", "b/broken,holding,60000,uint16"), boiler(meter.port, "good", right, wrong)
    )
    done = set_up(tmp_path, text)
    assert done.returncode == 1
    assert "this step failed: bsfg source test dead" in done.stderr
    assert "all 2 tags read, 1 without a value" in done.stdout
    assert re.search(r"a/broken \(.*IllegalDataAddress|a/broken \(.*illegal", done.stdout, re.IGNORECASE)
    _, _, left = done.stdout.partition("left to do:")
    assert f"delete their rows in {tmp_path}/tags.d/good.csv" in left
    assert "add dead, which was not added" in left
    assert [source["name"] for source in tomllib.loads((tmp_path / "node.toml").read_text())["modbus"]] == ["good"]
    assert [path.name for path in (tmp_path / "tags.d").iterdir()] == ["good.csv"]
    assert f"removed again: {tmp_path}/tags.d/dead.csv" in done.stdout
    assert command.bsfg(tmp_path, "check").returncode == 0


def test_equal_machines_get_names_of_their_own(meter: Program, tmp_path: Path) -> None:
    """Their tags have the same names: those of the second get its name as a prefix, from a server and from a file, in
    one line for all; what is excluded is not in the file. A restart takes these settings."""
    rows = ("a/voltage,input,0,uint16", "a/current,input,1,uint16")
    with running("opcua_server") as server:
        url = f'url = "opc.tcp://127.0.0.1:{server.port}/plant"\ninsecure = true\nglob = "Plant/temperature_0*"'
        text = only_source("modbus", *(boiler(meter.port, name, *rows) for name in ("boiler-1", "boiler-2")))
        text += only_source("opcua", *(f'name = "{name}"\n{url}' for name in ("press-1", "press-2"))).partition("\n")[2]
        (tmp_path / "answers.toml").write_text(text)
        words = ("setup", "--config", "node.toml", "--answers", "answers.toml", "--exclude", "Plant/*_02")
        done = command.process(tmp_path, *words)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.count("a tag comes from one source") == 2
    files = {path.stem: path.read_text("utf-8-sig") for path in (tmp_path / "tags.d").iterdir()}
    assert [row.partition(",")[0] for row in files["boiler-2"].splitlines()[1:]] == [
        "boiler-2/a/voltage",
        "boiler-2/a/current",
    ]
    assert files["boiler-1"].splitlines()[1].startswith("a/voltage,")
    assert "\nPlant/temperature_01" in files["press-1"]
    assert "\npress-2/Plant.temperature_01" in files["press-2"]
    assert "temperature_02" not in files["press-1"] + files["press-2"]
    assert command.bsfg(tmp_path, "check").returncode == 0


@contextmanager
def typing(folder: Path, status: int = 1) -> Iterator[Callable[[str, str], str]]:
    """Setup at a terminal: a function waits for a text, shown as the last one, types an answer or a control character,
    and returns what was shown. At the end of the block, setup has ended with this status."""
    terminal, inside = pty.openpty()
    process = subprocess.Popen(
        command.words("setup", "--config", "node.toml", "--answers", "answers.toml"),
        cwd=folder,
        **dict.fromkeys(("stdin", "stdout", "stderr"), inside),
        start_new_session=True,
        preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),  # noqa: PLW1509 for Ctrl-C, which a terminal sends
    )
    os.close(inside)

    def answer(text: str, typed: str) -> str:
        shown = b""  # a read may end within a character
        while text.encode() not in shown:
            assert select.select([terminal], [], [], command.LIMIT_S)[0], f"{text!r} was not shown:\n{shown.decode()}"
            shown += os.read(terminal, 1 << 16)
        os.write(terminal, typed.encode())
        return shown.decode()

    try:
        yield answer
        assert process.wait(command.LIMIT_S) == status
    finally:
        process.kill()
        process.wait()
        os.close(terminal)


def test_a_try_that_failed_or_was_interrupted_leaves_nothing(meter: Program, tmp_path: Path) -> None:
    """Ctrl-C while the source is tested: node.toml has no source that was not read, and no tag file is left."""
    (tmp_path / "answers.toml").write_text(re.sub("stick.*?(?=\\[\\[modbus)", "", answers(meter.port), flags=re.DOTALL))
    with typing(tmp_path, status=-signal.SIGINT) as answer:
        answer("$ bsfg source test boiler", "\x03")
    assert "modbus" not in tomllib.loads((tmp_path / "node.toml").read_text())
    assert not list((tmp_path / "tags.d").iterdir())


def test_a_certificate_is_confirmed_once(tmp_path: Path) -> None:
    """A server whose certificate lacks its address is pinned, not put into the folder of those that are trusted: the
    next try of the source does not ask for the thumbprint again."""
    file, key_file = in_files(tmp_path, "plc", "authority", uri=URI, address="192.0.2.1")
    options = ("--certificate", str(file), "--private-key", str(key_file))
    with running("opcua_server", *options) as server, typing_answers(tmp_path, server) as answer:
        answer("Trust it", "y\n")
        first = answer("Try again", "y\n")
        second = answer("Try again", "n\n")
    assert "pinned now" in first
    assert "Trust it" not in second
    assert "--server-sha256" in second


def typing_answers(folder: Path, server: Program) -> AbstractContextManager[Callable[[str, str], str]]:
    """Setup at a terminal with an OPC UA server none of whose variables is wanted, so that the source cannot be
    tested."""
    url = f"opc.tcp://127.0.0.1:{server.port}/plant"
    (folder / "answers.toml").write_text(
        f'zone = "plant-a"\n[[opcua]]\nname = "press"\nurl = "{url}"\nglob = "Nothing/*"\n'
    )
    return typing(folder)
