"""`bsfg backup` and `bsfg restore`: what is taken, where it goes, and that nothing is left half done."""

import errno
import fcntl
import json
import os
import pwd
import shutil
import stat
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from agent.backup.contents import SCRYPT
from agent.cli.prepare import unit
from agent.cli.prepare.check import runs
from agent.config import load, load_sections
from agent.settings.node import NodeSettings
from tests.cli.conftest import Bsfg

NODE = """[node]
zone = "plant-a"
[[broker]]
name = "idmz"
host = "127.0.0.1"
ca_file = "pki/ca.pem"
cert_file = "pki/zones/plant-a.pem"
key_file = "pki/zones/plant-a.key"
watch_file = "{elsewhere}"
[signing]
key_file = "pki/signers/plant-a.key"
certificate_file = "pki/signers/plant-a.pem"
facts_ca_file = "{elsewhere}"
[[modbus]]
name = "meter"
host = "127.0.0.1"
device = "pac"
tags_file = "tags.d/meter.csv"
[[modbus]]
name = "pump"
host = "127.0.0.2"
address_base = 0
tags_file = "tags.d/pump.csv"
[[opcua]]
name = "press"
url = "opc.tcp://127.0.0.1:1"
tags_file = "tags.d/press.csv"
trust_folder = "state/opcua"
user_name = "op"
password_file = "press.password"
"""
FILES = {
    "pki/ca.pem": "ca",
    "pki/zones/plant-a.pem": "certificate",
    "pki/zones/plant-a.key": "key",
    "pki/signers/plant-a.key": "signing key",
    "pki/signers/plant-a.pem": "signer",
    "devices.d/pac.toml": 'description = "PAC"\naddress_base = 0\n',
    "tags.d/meter.csv": "tag,unit_id,address,type\nf/a,1,0,int16\n",
    "tags.d/pump.csv": "tag,table,register,type\nf/c,holding,1,int16\n",
    "tags.d/press.csv": "tag,address\nf/b,i=2258\n",
    "press.password": "secret",
    "state/opcua/own.der": "own",
    "state/opcua/own.key": "own key",
    "state/opcua/trusted/press.der": "the press",
}
NOT_TAKEN = ("state/facts.db", "state/opcua/rejected/stranger.der", "other-zone.toml", "pki/zones/other.key")


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """The derivation of the key takes no half second."""
    monkeypatch.setitem(SCRYPT, "n", 2)


@pytest.fixture
def node(tmp_path: Path) -> Path:
    """A node with a file for each kind of setting that names a file; node.toml as an editor of Windows saves it."""
    folder = tmp_path / "old"
    for name in (*FILES, *NOT_TAKEN):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(FILES.get(name, "x"))
    (tmp_path / "elsewhere.pem").write_text("authority")
    (folder / "plant-a.toml").write_text(NODE.format(elsewhere=tmp_path / "elsewhere.pem"), "utf-8-sig")
    (tmp_path / "pw").write_text("correct horse battery\n")
    (tmp_path / "pw").chmod(0o600)
    return folder


@pytest.fixture
def run(bsfg: Bsfg) -> Callable[..., tuple[int, str]]:
    """Exit status and output of a command that is given the passphrase."""

    def typed(*words: str) -> tuple[int, str]:
        done = bsfg(*words, "--passphrase-file", "pw")
        return done.returncode, done.stdout + done.stderr

    return typed


Run = Callable[..., tuple[int, str]]


def tree(folder: Path) -> dict[str, str]:
    """Every file below a folder, temporary ones included."""
    return {file.relative_to(folder).as_posix(): file.read_text() for file in folder.rglob("*") if file.is_file()}


def test_what_comes_back(node: Path, tmp_path: Path, run: Run) -> None:
    """Everything that node.toml names, the OPC UA identity and what was learned; nothing of another zone, no store, no
    stranger's certificate. What is outside the folder is named at each step, but not what a program writes anew. The
    files are their owner's only."""
    code, said = run("backup", "a.bak", "--config", "old/plant-a.toml")
    assert code == 0, said
    assert f"signing: facts_ca_file: {tmp_path / 'elsewhere.pem'} is not in {node}" in said
    assert "watch_file" not in said
    assert stat.S_IMODE((tmp_path / "a.bak").stat().st_mode) == 0o600
    for word in (b"plant-a", b"key", b"press"):
        assert word not in (tmp_path / "a.bak").read_bytes()
    listed = json.loads(run("backup", "--list", "--json", "a.bak")[1])
    assert {f"{file['place']}/{file['name']}" for file in listed["files"]} == {
        "config/plant-a.toml",
        *(name if name.startswith("state/") else f"config/{name}" for name in FILES),
    }
    _, said = run("restore", "a.bak", "--config", "new/plant-a.toml")
    assert tree(tmp_path / "new") == FILES | {"plant-a.toml": (node / "plant-a.toml").read_text()}
    assert "not in the backup: signing: facts_ca_file" in said
    for path in (tmp_path / "new").rglob("*"):
        assert stat.S_IMODE(path.stat().st_mode) == (0o700 if path.is_dir() else 0o600), path


def test_absolute_paths_follow_the_node(node: Path, tmp_path: Path, run: Run) -> None:
    """Paths below the folder of node.toml, quoted either way, name the new folder, also where the old one is still
    there; others stay."""
    file = node / "plant-a.toml"
    named = f"""password_file = "{node}/press.password"\ncertificate_file = '{node}/state/opcua/own.der'\n"""
    named += f"private_key_file = '{node}/state/opcua/own.key'\n"
    file.write_text(file.read_text().replace('password_file = "press.password"\n', named))
    run("backup", "a.bak", "--config", "old/plant-a.toml")
    _, said = run("restore", "a.bak", "--config", "new/plant-a.toml")
    assert "3 paths in node.toml named the folder where it was" in said
    (source,) = load_sections(tmp_path / "new" / "plant-a.toml").opcua
    assert source.password_file == tmp_path / "new/press.password"
    assert source.certificate_file == tmp_path / "new/state/opcua/own.der"
    assert str(tmp_path / "elsewhere.pem") in (tmp_path / "new/plant-a.toml").read_text()


def test_the_result_is_checked(node: Path, run: Run) -> None:
    """The restored node is checked as `bsfg check` does: here, certificates that are none."""
    run("backup", "a.bak", "--config", "old/plant-a.toml")
    code, said = run("restore", "a.bak", "--config", "new/plant-a.toml")
    assert code == 1
    assert "new/pki/zones/plant-a.pem is not a certificate in PEM form" in said
    assert node.exists()


def test_every_setting_that_names_a_file_is_taken(node: Path) -> None:
    """The example has each section with files, so that a new kind of section cannot be forgotten."""
    settings = load(node / "plant-a.toml")
    with_files = {"broker", "signing", "modbus", "opcua"}
    for section in fields(NodeSettings):
        value = getattr(settings, section.name)
        records = value if isinstance(value, tuple) else (value,)
        has_path = any(isinstance(getattr(record, field.name), Path) for record in records for field in fields(record))
        assert has_path == (section.name in {*with_files, "node"}), section.name


@pytest.mark.usefixtures("node")
def test_an_authority(tmp_path: Path, bsfg: Bsfg, run: Run) -> None:
    """An authority is saved alone or beside a node, and signs again after it was restored."""
    assert run("pki", "ca", "--pki", "auth")[0] == 0
    assert run("pki", "issue", "plant-a", "--pki", "auth")[0] == 0
    assert run("backup", "a.bak", "--authority", "auth")[0] == 0
    assert run("restore", "a.bak")[0] == 1
    assert run("restore", "a.bak", "--authority", "again")[0] == 0
    assert {path.relative_to(tmp_path / "again") for path in (tmp_path / "again").rglob("*.pem")} >= {Path("ca.pem")}
    assert run("pki", "issue", "plant-b", "--pki", "again")[0] == 0
    code, said = run("backup", "b.bak", "--authority", "new")
    assert code == 1
    assert "is not an authority" in said
    assert run("backup", "both.bak", "--config", "old/plant-a.toml", "--authority", "auth")[0] == 0
    said = run("backup", "--list", "both.bak")[1]
    assert "zone plant-a and an authority" in said
    assert {"config/plant-a.toml", "authority/ca.key"} <= set(said.split())
    assert bsfg("backup", "--list", "none", "--passphrase-file", "pw").returncode == 1


@pytest.mark.usefixtures("node")
def test_an_older_authority_takes_the_revocations_from_a_broker(tmp_path: Path, bsfg: Bsfg, run: Run) -> None:
    """A backup from before a revocation would lift it with its next list. What restore says to do keeps it."""
    assert run("pki", "ca", "--pki", "auth")[0] == 0
    assert run("pki", "issue", "plant-a", "plant-b", "--pki", "auth")[0] == 0
    assert run("backup", "a.bak", "--authority", "auth")[0] == 0
    assert run("pki", "revoke", "plant-a", "--pki", "auth")[0] == 0
    code, said = run("restore", "a.bak", "--authority", "again")
    assert (code, f"zones.crl over {tmp_path / 'again/ca.crl'}" in said) == (0, True)
    (tmp_path / "again/ca.crl").write_bytes((tmp_path / "auth/ca.crl").read_bytes())  # as a broker has it
    assert run("pki", "revoke", "plant-b", "--pki", "again")[0] == 0
    assert bsfg("pki", "list", "--pki", "again").stdout.count("  revoked ") == 2


def test_refused_before_anything_is_written(node: Path, tmp_path: Path, run: Run) -> None:
    """A wrong passphrase, a cut file, another file, a node that runs there: the folder stays empty."""
    run("backup", "a.bak", "--config", "old/plant-a.toml")
    whole = (tmp_path / "a.bak").read_bytes()
    (tmp_path / "cut.bak").write_bytes(whole[:-100])
    (tmp_path / "changed.bak").write_bytes(whole[:-100] + b"\0" * 100)
    for name, said in [
        ("cut.bak", "truncated"),
        ("changed.bak", "was altered"),
        ("old/plant-a.toml", "is not a backup"),
    ]:
        code, text = run("restore", name, "--config", "new/plant-a.toml")
        assert code == 1
        assert said in text
    state = tmp_path / "new/state"
    state.mkdir(parents=True)
    with (state / "facts.db.lock").open("w") as lock:
        lock.write(f"{os.getpid()}\n")
        lock.flush()
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert f"a node runs in {state}; nothing" in run("restore", "a.bak", "--config", "new/plant-a.toml")[1]
    assert not runs(state / "facts.db"), "a number that the lock does not have"
    shutil.rmtree(tmp_path / "new")
    (tmp_path / "pw").write_text("another passphrase\n")
    assert "does not open" in run("restore", "a.bak", "--config", "new/plant-a.toml")[1]
    assert not (tmp_path / "new").exists()
    (tmp_path / "pw").write_text("short\n")
    assert "shorter than 12" in run("backup", "b.bak", "--config", "old/plant-a.toml")[1]
    (tmp_path / "pw").chmod(0o644)
    assert "accessible to others" in run("backup", "b.bak", "--config", "old/plant-a.toml")[1]
    assert not (tmp_path / "b.bak").exists()
    assert node.exists()


def test_nothing_is_overwritten_without_force(node: Path, tmp_path: Path, run: Run) -> None:
    """An existing backup and existing files stay as they are; with --force they are replaced."""
    run("backup", "a.bak", "--config", "old/plant-a.toml")
    before = (tmp_path / "a.bak").read_bytes()
    assert "a.bak exists" in run("backup", "a.bak", "--config", "old/plant-a.toml")[1]
    assert (tmp_path / "a.bak").read_bytes() == before
    there = tmp_path / "new/tags.d/meter.csv"
    there.parent.mkdir(parents=True)
    there.write_text("mine")
    assert f"{there} exist already; nothing was restored" in run("restore", "a.bak", "--config", "new/plant-a.toml")[1]
    assert tree(tmp_path / "new") == {"tags.d/meter.csv": "mine"}
    run("restore", "a.bak", "--config", "new/plant-a.toml", "--force")
    assert there.read_text() == FILES["tags.d/meter.csv"]
    assert run("backup", "a.bak", "--config", "new/plant-a.toml", "--force")[0] == 0
    assert node.exists()


def test_all_files_or_none(node: Path, tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """If a file cannot be written, no other one stays, and no folder."""
    run("backup", "a.bak", "--config", "old/plant-a.toml")
    written, sync = [], os.fsync

    def full(descriptor: int) -> None:
        written.append(descriptor)
        if len(written) == 5:
            raise OSError(28, os.strerror(28))
        sync(descriptor)

    monkeypatch.setattr(os, "fsync", full)
    code, said = run("restore", "a.bak", "--config", "new/plant-a.toml")
    assert code == 1
    assert "No space left on device; nothing was restored" in said
    assert not (tmp_path / "new").exists()
    written[:] = [0, 0, 0, 0]
    assert "no backup was made" in run("backup", "b.bak", "--config", "old/plant-a.toml")[1]
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".") or path.name == "b.bak"]
    assert node.exists()


def test_links_and_devices(node: Path, tmp_path: Path, run: Run) -> None:
    """In the state folder, which the node may write, a link is refused, as is a pipe anywhere. A folder that is a link
    out of its place is not restored into."""
    run("backup", "a.bak", "--config", "old/plant-a.toml")
    link = node / "state/opcua/trusted/x.der"
    link.symlink_to("/etc/shadow")
    said = run("backup", "b.bak", "--config", "old/plant-a.toml")[1]
    assert "opcua/trusted/x.der: Too many levels of symbolic links" in said
    link.unlink()
    (node / "press.password").unlink()
    os.mkfifo(node / "press.password")
    assert "press.password is not a file" in run("backup", "b.bak", "--config", "old/plant-a.toml")[1]
    assert not (tmp_path / "b.bak").exists()
    (tmp_path / "out").mkdir()
    (tmp_path / "new").mkdir()
    (tmp_path / "new/state").symlink_to(tmp_path / "out")  # the folder itself may be one: an operator's other disk
    (tmp_path / "out/opcua").symlink_to(tmp_path)
    code, said = run("restore", "a.bak", "--config", "new/plant-a.toml")
    assert code == 1
    assert "leads out of" in said
    assert not (tmp_path / "own.key").exists()


@pytest.mark.parametrize("call, name", [("scandir", "state/opcua"), ("stat", "press.password")])
def test_what_this_user_may_not_read(
    node: Path, run: Run, monkeypatch: pytest.MonkeyPatch, call: str, name: str
) -> None:
    """A folder of the node that a member of its group may not read is named, and is not missing in the backup; so is a
    file in such a folder."""
    real = getattr(os, call)
    assert (node / name).exists()

    def refused(path: Any, **options: Any) -> Any:
        if str(path).endswith(name):
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return real(path, **options)

    with monkeypatch.context() as patched:
        patched.setattr(os, call, refused)
        code, said = run("backup", "a.bak", "--config", "old/plant-a.toml")
    assert code == 1
    assert f"{name}: Permission denied; no backup was made; run this as root, or as the node's user" in said


def test_owners_in_etc(node: Path, tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """For the unit, settings and keys are root's and the node's group reads them; the state is the node's. A state
    folder that the unit may not write is refused."""
    if os.geteuid() != 0:
        pytest.skip("only root gives files away")
    user = pwd.getpwnam("daemon")
    monkeypatch.setattr(unit, "USER", "daemon")
    monkeypatch.setattr(unit, "CONFIG_FOLDER", tmp_path / "etc")
    monkeypatch.setattr(unit, "STATE_FOLDER", tmp_path / "var")
    monkeypatch.setattr(unit, "become_node_user", lambda: False)
    run("backup", "a.bak", "--config", "old/plant-a.toml")
    assert (
        f"writes to {tmp_path}/var/plant-a; nothing was restored"
        in run("restore", "a.bak", "--config", "etc/plant-a.toml")[1]
    )
    text = (node / "plant-a.toml").read_text()
    (node / "state").rename(tmp_path / "var-of-old")
    text = text.replace("state/opcua", f"{tmp_path}/var/plant-a/opcua")
    text = text.replace('zone = "plant-a"', f'zone = "plant-a"\nstate_dir = "{tmp_path}/var/plant-a"', 1)
    (node / "plant-a.toml").write_text(text)
    (tmp_path / "var").mkdir()
    (tmp_path / "var-of-old").rename(tmp_path / "var/plant-a")
    run("backup", "b.bak", "--config", "old/plant-a.toml")
    (tmp_path / "var/plant-a").rename(tmp_path / "gone")
    run("restore", "b.bak", "--config", "etc/plant-a.toml")
    for folder, owner, folder_mode, mode in (("etc", 0, 0o750, 0o640), ("var/plant-a", user.pw_uid, 0o750, 0o600)):
        paths = [tmp_path / folder, *(tmp_path / folder).rglob("*")]
        assert len(paths) > 5
        for path in paths:
            found = path.stat()
            assert (found.st_uid, found.st_gid) == (owner, user.pw_gid), path
            assert stat.S_IMODE(found.st_mode) == (folder_mode if path.is_dir() else mode), path
