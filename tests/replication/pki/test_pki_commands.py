"""The commands bsfg pki, and those of docs/operate/certificates.md."""

import json
import os
import re
import shlex
import shutil
import subprocess
from datetime import timedelta
from pathlib import Path

import click
import pytest
from click.testing import CliRunner, Result

from agent.cli import bsfg
from agent.cli.groups import pki as pki_group
from agent.cli.pki.options import AUTHORITY
from agent.demo.processes import Child, accepts, free_port
from agent.errors import BsfgError
from agent.replication import pki
from tests.replication.pki.site import NOW

REPOSITORY = Path(__file__).resolve().parents[3]


def _run(*arguments: object) -> Result:
    return CliRunner().invoke(bsfg, [str(argument) for argument in arguments])


def test_cli_show_reports_unusable_certificates(folder: Path) -> None:
    """An expired certificate and a key that does not match give status 1, each reported beside its certificate."""
    pki.issue_zone(folder, "plant-a", NOW - timedelta(days=10), days=5, force=True)
    shutil.copy(folder / "zones/plant-a.key", folder / "zones/idmz.key")
    result = _run("pki", "show", "--pki", folder)
    assert result.exit_code == 1
    assert re.search(r"idmz.pem\n(  .*\n)+  PROBLEM the key does not match", result.output)
    assert re.search(r"plant-a.pem\n(  .*\n)+  PROBLEM the certificate expired at", result.output)
    assert _run("pki", "show", folder / "zones/idmz.pem").exit_code == 0
    assert _run("pki", "show", folder / "zones/plant-a.pem", folder / "zones/idmz.pem").exit_code == 1
    both = folder / "both.pem"
    both.write_bytes((folder / "zones/idmz.pem").read_bytes() + (folder / "zones/plant-a.pem").read_bytes())
    rows = map(json.loads, _run("pki", "show", "--json", both).output.splitlines())
    assert [bool(row["problems"]) for row in rows] == [False, True]


@pytest.mark.parametrize("place", [0, 1])
def test_each_of_two_authorities_is_shown(folder: Path, tmp_path: Path, place: int) -> None:
    """A folder may have the roots and lists of two authorities: the one whose list ends soon is named, wherever it
    stands."""
    pki.create_authority(tmp_path / "other", NOW)
    pki.reissue_crl(tmp_path / "other", NOW, days=20)
    for name in ("ca.pem", "ca.crl"):
        parts = [(of / name).read_bytes() for of in (folder, tmp_path / "other")]
        (folder / name).write_bytes(b"".join(parts if place else parts[::-1]))
    (folder / "ca.key").unlink()
    result = _run("pki", "show", "--pki", folder)
    assert (result.output.count("ca.pem\n"), result.output.count("ca.crl\n"), result.output.count("SOON")) == (2, 2, 1)
    rows = [json.loads(line) for line in _run("pki", "show", "--json", "--pki", folder).output.splitlines()]
    assert min(row["days_left"] for row in rows if "crl_number" in row) in {19, 20}


# --- what the page shows ----------------------------------------------------------------------------------------------


@pytest.mark.system
def test_commands_of_the_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every command of docs/operate/certificates.md works, in order, in an empty folder.

    Ports and broker folder are replaced, because those of the page may be in use.
    """
    text = (REPOSITORY / "docs/operate/certificates.md").read_text(encoding="utf-8")
    blocks = re.findall(r"```console\n(.*?)```", text, re.DOTALL)
    commands = [line[2:] for block in blocks for line in block.splitlines() if line.startswith("$ ")]
    assert len(commands) >= 6
    port, user = free_port(), subprocess.check_output(["id", "-un"], text=True).strip()
    broker: Child | None = None
    monkeypatch.chdir(tmp_path)
    try:
        for command in commands:
            here = command.replace("/etc/", f"{tmp_path}/etc/").replace("/srv/authority", "pki")
            words = shlex.split(here.replace("8883", str(port)))
            if words[0] == "mosquitto":
                program = shutil.which("mosquitto", path=f"{os.environ['PATH']}:/usr/sbin")
                broker = Child("mosquitto", [str(program), *words[1:]], tmp_path / "log")
                broker.start()
                broker.wait_ready(lambda: accepts(port))
                continue
            if words[:3] == ["bsfg", "broker", "config"]:
                words += ["--user", user]
            if words[0] == "cp":
                shutil.copy(tmp_path / words[1], words[2])
                continue
            assert words[0] == "bsfg", command
            passphrase = "correct horse battery\n" * 2  # typed where a command asks for it
            done = CliRunner().invoke(bsfg, words[1:], input=passphrase)
            said = broker.log.read_text() if broker else ""
            assert done.exit_code == 0, f"{command}\n{done.output}\n{done.exception!r}\n{said}"
            if words[:3] in (["bsfg", "broker", "deny"], ["bsfg", "broker", "restart"]):  # its service starts it again
                assert broker is not None
                broker.stop()
                broker.start()
                broker.wait_ready(lambda: accepts(port))
    finally:
        if broker is not None:
            broker.kill()
    assert broker is not None


def _run_in(folder: Path, *arguments: object) -> Result:
    result = _run("pki", *arguments, "--pki", folder)
    assert result.exception is None or isinstance(result.exception, SystemExit | BsfgError), result.exception
    return result


def test_commands_of_a_certificates_life(folder: Path, tmp_path: Path) -> None:
    """Sign again, revoke, list, show and crl print what they did and what comes next, for people and programs."""
    assert "next: copy it" in _run_in(folder, "sign", "idmz").output
    assert "bsfg pki import" in _run_in(folder, "sign", "b1", "--broker").output
    revoked = _run_in(folder, "revoke", "plant-a", "--reason", "key-compromise")
    assert "bsfg broker deny plant-a" in revoked.output
    assert "nodes do not" in _run_in(folder, "revoke", "b1", "--broker").output
    rows = [json.loads(line) for line in _run_in(folder, "list", "--json").output.splitlines()]
    assert [row["reason"] for row in rows if row["name"] == "plant-a"] == ["key-compromise"]
    assert "revoked" in _run_in(folder, "list").output
    assert json.loads(_run_in(folder, "crl", "--days", "20", "--json").output)["days_left"] in (19, 20)
    shown = _run_in(folder, "show")
    assert shown.exit_code == 1
    assert "was revoked at" in shown.output
    assert "list    4, 3 revoked" in shown.output
    assert "SOON" in shown.output
    taken = tmp_path / "taken"
    files = ["--cert", folder / "zones/idmz.pem", "--key", folder / "zones/idmz.key", "--ca", folder / "ca.pem"]
    assert "idmz:" in _run_in(taken, "import", "idmz", *files, "--crl", folder / "ca.crl").output
    assert _run_in(taken, "show").exit_code == 0


def test_one_place_for_the_authority(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every command of the authority uses the folder that `bsfg setup` offers, and a command without one there does not
    lead to a second authority. A folder that does not exist is named as such."""
    monkeypatch.delenv("BSFG_PKI")
    commands = [
        pki_group.get_command(click.Context(pki_group), name)
        for name in ("ca", "sign", "issue", "revoke", "list", "show")
    ]
    defaults = {param.default for found in commands if found for param in found.params if param.name == "pki_folder"}
    assert defaults == {AUTHORITY}
    (tmp_path / "empty").mkdir()
    done = _run_in(tmp_path / "empty", "list")
    assert isinstance(done.exception, BsfgError)
    assert "name the folder of the site's authority with --pki" in done.exception.hint
    done = _run_in(tmp_path / "nope", "show")
    assert isinstance(done.exception, BsfgError)
    assert f"{tmp_path}/nope is not a folder" in str(done.exception)
    assert "bsfg pki ca" not in done.exception.hint
