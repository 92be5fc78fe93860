"""`bsfg opcua` against the plant's server: test, trust, browse, read, certificate, and the page that shows them."""

import csv
import json
import os
import re
import shlex
import socket
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from agent.cli import node_choice
from agent.cli.prepare import unit
from agent.demo.plant.tags import opcua_tags_csv
from agent.ingest import load_tag_map
from agent.ingest.errors import SourceRefused
from agent.ingest.opcua.security.certificate import read_file
from agent.ingest.opcua.security.certificate_facts import facts_of
from agent.settings.sources import OpcuaSourceSettings
from tests.cli.conftest import Bsfg
from tests.cli.test_sources_page import node
from tests.ingest.fakes import Program, running
from tests.ingest.opcua.security.certificates import certificate, der, key, revocation_list
from tests.support.page import console_commands
from tests.waiting import wait_until

PAGE = "docs/operate/opcua.md"
URI = "urn:freeopcua:python:server"  # what asyncua's server calls itself


@pytest.fixture(name="plc", scope="module")
def secure_plc(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Program]:
    """The plant's server, encrypted only, with a certificate of the plant's authority for its address."""
    folder = tmp_path_factory.mktemp("plc")
    (folder / "server.pem").write_bytes(SERVER.public_bytes(Encoding.PEM))
    form = Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()
    (folder / "server.key").write_bytes(key("plc", 2048).private_bytes(*form))
    options = ("--certificate", str(folder / "server.pem"), "--private-key", str(folder / "server.key"))
    with running("opcua_server", *options) as program:
        yield program


SERVER = certificate("plc", issuer="authority", uri=URI, now=datetime.now(UTC))


def url(plc: Program) -> str:
    """Where the plant's server is."""
    return f"opc.tcp://127.0.0.1:{plc.port}/plant"


@pytest.mark.system
def test_the_commands_of_the_page(plc: Program, bsfg: Bsfg, tmp_path: Path) -> None:
    """Every command of the page works, in its order, in an empty folder; the first only finds that the server is not
    trusted. The section that is printed goes into node.toml, which `bsfg check` accepts."""
    commands = console_commands(PAGE)
    assert len(commands) >= 9
    assert bsfg("init", "--zone", "plant-a").returncode == 0
    output: list[str] = []
    for number, line in enumerate(commands):
        words = shlex.split(line.replace("opc.tcp://plc.example:4840", url(plc)))
        assert words[0] == "bsfg", line
        done = bsfg(*words[1:])
        assert done.returncode == (number == 0), (line, done.stdout, done.stderr)
        output.append(done.stdout)
        if "--trust" in words:
            section = (
                done.stdout.partition("[[opcua]]")[2]
                .partition("\n\n")[0]
                .replace("tags.d/127.0.0.1.csv", "tags.d/plc.csv")
            )
            with (tmp_path / "node.toml").open("a") as file:
                file.write(f"[[opcua]]{section}\n")
    assert "is not trusted" in output[0]
    assert f"thumbprint {facts_of(der(SERVER)).sha1}" in output[0]
    assert "trusted now" in output[1]
    assert (tmp_path / "pki" / "opcua" / "own.key").stat().st_mode & 0o777 == 0o600
    tags = load_tag_map(OpcuaSourceSettings("plc", "opc.tcp://plc", tmp_path / "tags.d" / "plc.csv")).tags
    assert {tag.definition.subject.partition(".")[0] for tag in tags} >= {"tag:Plant/temperature_01"}
    assert f"1 source with {len(tags)} tags" in output[5]
    assert (tmp_path / "pki" / "opcua" / "own.previous.der").exists()


@pytest.mark.system
def test_the_next_command_works_as_it_is_printed(plc: Program, bsfg: Bsfg, tmp_path: Path) -> None:
    """With the server's certificate as a file and a folder of our own, which the browse needs as well."""
    (tmp_path / "server.der").write_bytes(der(SERVER))
    done = bsfg("opcua", "test", url(plc), "--server-certificate", "server.der", "--pki", "mine")
    assert done.returncode == 0, done.stdout
    words = shlex.split(done.stdout.partition("next: ")[2])
    assert {"--server-certificate", "--pki"} < set(words)
    (tmp_path / "tags.d").mkdir()
    done = bsfg(*words[1:])
    assert done.returncode == 0, done.stderr
    assert not (tmp_path / "pki").exists()


@pytest.mark.system
def test_an_authority_is_trusted_with_its_list(plc: Program, bsfg: Bsfg, tmp_path: Path) -> None:
    """With issuer and list the server is accepted and nothing lies in trusted/; the folder's content is listed."""
    now = datetime.now(UTC)
    (tmp_path / "ca.der").write_bytes(der(certificate("authority", is_authority=True, now=now)))
    (tmp_path / "ca.crl").write_bytes(der(revocation_list(now=now)))
    assert bsfg("opcua", "trust", "ca.der", "--issuer").returncode == 0
    done = bsfg("opcua", "test", url(plc))
    assert (done.returncode, "whose revocation list is missing in crl/" in done.stdout) == (1, True)
    assert bsfg("opcua", "trust", "ca.crl", "--crl").returncode == 0
    done = bsfg("opcua", "test", url(plc))
    assert (done.returncode, "accepted: issued by one in issuers/" in done.stdout) == (0, True)
    assert 'trust_folder = "pki/opcua"' in done.stdout
    listed = bsfg("opcua", "trust").stdout
    assert re.search(r"issuers +[0-9A-F]{40} +CN=authority", listed)
    assert "1 revocation list" in listed
    wrong = bsfg("opcua", "trust", "ca.crl", "--issuer")
    assert (wrong.returncode, "this is no certificate" in wrong.stderr) == (1, True)
    (thumbprint,) = re.findall("issuers +([0-9A-F]{40})", listed)
    (tmp_path / "ca.der").rename(tmp_path / thumbprint)  # the name of a file, too
    assert bsfg("opcua", "trust", thumbprint).returncode == 0
    assert "no longer trusted" in bsfg("opcua", "trust", "--remove", thumbprint).stdout
    assert not re.search("trusted +[0-9A-F]{40}", bsfg("opcua", "trust").stdout)


@pytest.mark.system
def test_the_steps_as_json(plc: Program, bsfg: Bsfg) -> None:
    """Programs get one object a step and the section at the end."""
    done = bsfg("opcua", "test", url(plc), "--trust", "--json")
    steps = [json.loads(line) for line in done.stdout.splitlines()]
    assert [step["name"] for step in steps[:-1]] == [
        *("name", "endpoints", "policy", "our certificate", "its certificate", "session", "server", "clock", "limits"),
    ]
    assert {step["outcome"] for step in steps[:-1]} == {"ok"}
    assert steps[-1]["section"].startswith("[[opcua]]\n")


@pytest.mark.system
def test_a_person_is_asked(plc: Program, bsfg: Bsfg, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """At a terminal an unknown certificate is shown with its thumbprints and trusted only on a yes."""
    monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)
    for answer, code in ((False, 1), (True, 0)):
        asked: list[str] = []

        def confirm(text: str, *, err: bool, answer: bool = answer, asked: list[str] = asked) -> bool:
            assert err
            asked.append(text)
            return answer

        monkeypatch.setattr("click.confirm", confirm)
        done = bsfg("opcua", "test", url(plc))
        assert (done.returncode, len(asked)) == (code, 1)
        assert facts_of(der(SERVER)).sha1 in done.stderr
        assert (tmp_path / "pki" / "opcua" / "trusted").exists() is answer
    assert bsfg("opcua", "browse", url(plc), "--filter", "count_01").returncode == 0


def test_each_step_says_what_is_wrong(bsfg: Bsfg) -> None:
    """A name that is unknown, a port that is closed, and what to do about it; exit status 1."""
    done = bsfg("opcua", "test", "opc.tcp://plc.invalid:4840")
    assert done.returncode == 1
    assert re.search(r"failed +name +the host name of .* is unknown here", done.stdout)
    for wrong, why in (
        ("plc:48O0", "has a port that is not 1 to 65535"),
        ("[::1:4840", "must look like opc.tcp://host"),
    ):
        done = bsfg("opcua", "test", f"opc.tcp://{wrong}")
        assert (done.returncode, done.stderr.startswith(f"bsfg: url: {why}")) == (1, True)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        done = bsfg("opcua", "test", f"opc.tcp://127.0.0.1:{free.getsockname()[1]}")
    assert done.returncode == 1
    assert re.search(r"failed +endpoints +nothing listens at .* is the server running", done.stdout)


@pytest.mark.system
def test_an_unsecured_server_needs_the_option_insecure(bsfg: Bsfg) -> None:
    """Nothing is done unsecured unless --insecure says so, and then no certificate is made."""
    with running("opcua_server") as plc:
        done = bsfg("opcua", "test", url(plc))
        assert done.returncode == 1
        assert re.search(r"failed +policy +.* it offers None\n +-> .*--insecure", done.stdout)
        done = bsfg("opcua", "test", url(plc), "--insecure")
        assert (done.returncode, "insecure = true" in done.stdout) == (0, True)
        assert "certificate" not in done.stdout
        done = bsfg("opcua", "browse", url(plc), "--insecure", "--filter", "TEMPERATURE_01", "--json")
        (row,) = [json.loads(line) for line in done.stdout.splitlines()]
        assert (row["tag"], row["data_type"]) == ("Plant/temperature_01", "Double")


def test_a_password_is_read_from_a_file_or_a_prompt(bsfg: Bsfg) -> None:
    """It comes from a file or a prompt, and in a pipe the command says so."""
    done = bsfg("opcua", "test", "opc.tcp://plc", "--user", "op")
    assert (done.returncode, "give --password-file" in done.stderr) == (2, True)
    assert "--password " not in bsfg("opcua", "test", "--help").stdout


def test_a_source_of_node_toml_is_named(bsfg: Bsfg, tmp_path: Path) -> None:
    """What is no URL is a source's name, with that source's settings, and no others; an unknown one lists the known."""
    assert bsfg("init", "--zone", "plant-a").returncode == 0
    with (tmp_path / "node.toml").open("a") as file:
        file.write('[[opcua]]\nname = "press"\nurl = "opc.tcp://press.invalid:4840"\ntags_file = "t.csv"\n')
        file.write('security_policy = "None"\nsecurity_mode = "None"\ninsecure = true\n')
    assert "press.invalid" in bsfg("opcua", "test", "press").stdout
    for words in (("--user", "op"), ("--insecure",), ("--pki", "other")):
        done = bsfg("opcua", "browse", "press", *words, "--glob", "*")
        assert (done.returncode, f"{words[0]} goes with a URL" in done.stderr) == (2, True)
    done = bsfg("opcua", "read", "pres", "i=2258")
    assert (done.returncode, "it has press" in done.stderr) == (2, True)


@pytest.mark.system
def test_read_takes_what_other_clients_show(plc: Program, bsfg: Bsfg) -> None:
    """A namespace index is answered with the lasting address and its row; a bad node has its status by name."""
    assert bsfg("opcua", "test", url(plc), "--trust").returncode == 0
    done = bsfg("opcua", "read", url(plc), "ns=2;s=temperature_01", "i=2258", "nsu=urn:none;s=x", "--json")
    assert done.returncode == 1
    first, clock, none = [json.loads(line) for line in done.stdout.splitlines()]
    assert (first["address"], first["status"], first["data_type"]) == (
        *("nsu=urn:bsfg:demo:plant;s=temperature_01", "Good", "Double"),
    )
    assert next(csv.reader([first["row"]])) == ["127.0.0.1/temperature_01", first["address"], "Double"]
    assert float(first["value"])
    assert first["source_time"].endswith("Z")
    assert clock["name"] == "CurrentTime"
    assert none["status"] == "BadNodeIdUnknown"
    done = bsfg("opcua", "read", url(plc), "ns=99;s=x")
    assert (done.returncode, "names namespace 99, and the server has" in done.stderr) == (2, True)


def test_the_certificate_is_that_of_the_sources(bsfg: Bsfg, tmp_path: Path) -> None:
    """Where a node.toml is: the pair in its state folder, which the sources use; another only if it is named."""
    tags = 'tags_file = "plc.csv"\n'
    secured = f'[[opcua]]\nname = "{{0}}"\nurl = "opc.tcp://plc:4840"\n{tags}'
    (tmp_path / "node.toml").write_text(f'[node]\nzone = "plant-a"\nstate_dir = "s"\n{secured.format("plc")}')
    for option in ((), ("--renew",)):
        done = bsfg("opcua", "certificate", "--json", *option)
        assert Path(json.loads(done.stdout)["file"]).parent == tmp_path / "s" / "opcua"
    assert bsfg("opcua", "certificate", "--activate").returncode == 0
    assert (tmp_path / "s" / "opcua" / "own.previous.der").exists()
    assert not (tmp_path / "pki").exists()
    done = bsfg("opcua", "certificate", "--json", "--pki", "other")
    assert json.loads(done.stdout)["file"] == "other/own.der"
    own = 'certificate_file = "a.der"\nprivate_key_file = "a.key"\n'
    (tmp_path / "node.toml").write_text((tmp_path / "node.toml").read_text() + secured.format("press") + own)
    done = bsfg("opcua", "certificate")
    assert (done.returncode, "use several: name one with --certificate" in done.stderr) == (2, True)


def test_our_certificate_is_renewed_in_two_steps(bsfg: Bsfg, tmp_path: Path) -> None:
    """The next certificate has the same key and names, and is not in use before it is activated; a foreign one is left
    to its authority."""
    folder = tmp_path / "pki" / "opcua"
    assert bsfg("opcua", "certificate").returncode == 0
    first = facts_of((folder / "own.der").read_bytes())
    done = bsfg("opcua", "certificate", "--activate")
    assert (done.returncode, "own.next.der does not exist; make it with --renew" in done.stderr) == (1, True)
    done = bsfg("opcua", "certificate", "--renew", "--json")
    following = json.loads(done.stdout)
    assert following["file"] == "pki/opcua/own.next.der"
    assert following["sha1"] != first.sha1
    assert facts_of((folder / "own.der").read_bytes()) == first
    done = bsfg("opcua", "certificate", "--renew", "--json")
    assert json.loads(done.stdout)["sha1"] == following["sha1"], "servers may trust it already"
    assert bsfg("opcua", "certificate", "--activate").returncode == 0
    second = facts_of((folder / "own.der").read_bytes())
    assert (second.sha1, second.uris) == (following["sha1"], first.uris)
    assert facts_of((folder / "own.previous.der").read_bytes()) == first
    assert not (folder / "own.next.der").exists()
    (tmp_path / "plc.der").write_bytes(der(SERVER))
    form = Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()
    (tmp_path / "plc.key").write_bytes(key("plc", 2048).private_bytes(*form))
    (tmp_path / "plc.key").chmod(0o600)
    done = bsfg("opcua", "certificate", "--certificate", "plc.der", "--key", "plc.key", "--renew")
    assert (done.returncode, "was issued by CN=authority; have that authority renew it" in done.stderr) == (1, True)


def test_a_node_of_the_unit_has_one_identity(bsfg: Bsfg, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Commands typed anywhere on its gateway use the folder that its sources and `bsfg setup` use, and none makes a
    second certificate that every server would have to trust, too."""
    etc, lib = tmp_path / "etc", tmp_path / "lib"
    etc.mkdir()
    for module in (node_choice, unit):
        monkeypatch.setattr(module, "CONFIG_FOLDER", etc)
    monkeypatch.setattr(unit, "STATE_FOLDER", lib)
    (etc / "plant-a.toml").write_text('[node]\nzone = "plant-a"\n')
    (tmp_path / "ca.der").write_bytes(der(certificate("authority", is_authority=True, now=datetime.now(UTC))))
    for words in (("certificate",), ("trust", "ca.der", "--issuer"), ("trust", "--config", "plant-a")):
        done = bsfg("opcua", *words)
        assert (done.returncode, done.stderr) == (0, ""), words
    assert {path.name for path in (lib / "plant-a" / "opcua").iterdir()} >= {"own.der", "own.key", "issuers"}
    assert not (tmp_path / "pki").exists()
    assert bsfg("opcua", "certificate", "--pki", "other").returncode == 0
    assert (tmp_path / "other" / "own.der").exists()


def test_a_file_that_may_not_be_read_names_the_remedy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A key that root made by hand is the usual case. A user of a container may have no name."""
    monkeypatch.setattr(Path, "read_bytes", lambda _: (_ for _ in ()).throw(PermissionError(13, "Permission denied")))
    with pytest.raises(SourceRefused, match=f"let this user read it: chown [^ ]+ {tmp_path}/own.key"):
        read_file(tmp_path / "own.key")
    monkeypatch.setattr(os, "geteuid", lambda: 54_321)
    with pytest.raises(SourceRefused, match=f"chown 54321 {tmp_path}/own.key"):
        read_file(tmp_path / "own.key")


@pytest.mark.system
def test_trust_takes_effect_at_once(plc: Program, bsfg: Bsfg, tmp_path: Path) -> None:
    """The running node connects to the source that waited for it, without another command."""
    assert bsfg("opcua", "certificate").returncode == 0
    address = next(row for row in opcua_tags_csv().splitlines() if "temperature_01" in row)
    (tmp_path / "plc.csv").write_text(f"{opcua_tags_csv().splitlines()[0]}\n{address}\n")
    (tmp_path / "node.toml").write_text(
        '[node]\nzone = "plant-a"\nstate_dir = "s"\n[[opcua]]\nname = "plc"\n'
        f'url = "{url(plc)}"\ntags_file = "plc.csv"\ntrust_folder = "pki/opcua"\n'
        'certificate_file = "pki/opcua/own.der"\nprivate_key_file = "pki/opcua/own.key"\n'
    )
    rejected = tmp_path / "pki" / "opcua" / "rejected"
    with node(tmp_path):
        wait_until(lambda: rejected.is_dir() and list(rejected.iterdir()), "the refusal")
        wait_until(lambda: "waiting" in bsfg("source", "list").stdout, "the wait")
        done = bsfg("opcua", "trust", facts_of(der(SERVER)).sha1)
        assert (done.returncode, done.stderr) == (0, "")
        assert "plc connects now; see bsfg status" in done.stdout
        wait_until(lambda: "connected" in bsfg("source", "list").stdout, "the connection")
    (tmp_path / "plc.der").write_bytes(der(SERVER))
    assert json.loads(bsfg("opcua", "trust", "plc.der", "--json").stdout)["retried"] == [], "no node runs"
