"""The bundle on clean Debian roots without a network and without dpkg: installed, interrupted, upgraded, back,
removed."""

import filecmp
import hashlib
import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.appliance.gateway import ROOT, Gateway
from tests.appliance.page import commands

STICK = "/media"
BOTH = pytest.mark.parametrize("target", ["debian12-amd64", "debian13-amd64"], indirect=True)
ONE = pytest.mark.parametrize("target", ["debian12-amd64"], indirect=True)
CONFIG = "--config /var/lib/bsfg/node.toml"


def unpacked(gateway: Gateway, bundle: Path) -> Path:
    """The bundle on the gateway's stick, unpacked by the first command of the page; the folder as seen from outside."""
    gateway.copy_in(bundle, STICK)
    gateway.run(f"cd {STICK} && {commands('bundle')[0]}")
    (folder,) = [folder for folder in (gateway.root / "media").iterdir() if folder.is_dir()]
    return folder


def as_version(folder: Path, version: str) -> None:
    """Let an unpacked bundle be another version."""
    about = folder / "bundle.json"
    about.write_text(json.dumps(json.loads(about.read_text()) | {"version": version}))
    sums = folder / "SHA256SUMS"
    digest = hashlib.sha256(about.read_bytes()).hexdigest()
    lines = [line for line in sums.read_text().splitlines() if not line.endswith("  bundle.json")]
    sums.write_text("\n".join([*lines, f"{digest}  bundle.json"]) + "\n")


@BOTH
def test_installed_upgraded_back_and_removed(gateway: Gateway, bundle: Path) -> None:
    """The page's commands on a root without dpkg's help: a store is written, an upgrade and the way back keep it, and
    removal leaves it."""
    folder = unpacked(gateway, bundle)
    block = "\n".join(commands("bundle")[1:])
    gateway.run(f"cd {STICK}\n{block}")
    assert "bsfg, version" in gateway.run("/usr/local/bin/bsfg --version")
    assert "bsfg" in gateway.run("id bsfg")
    gateway.run(f"bsfg init --zone plant-a {CONFIG} && bsfg check {CONFIG}")
    gateway.run(f"bsfg append {CONFIG} batch:B-1042 step_completed '{{}}'")
    gateway.run("test -e /usr/local/lib/systemd/system/bsfg@.service -a -e /opt/bsfg/share/doc/sbom.cdx.json")

    current = gateway.run("readlink /opt/bsfg").strip()
    as_version(folder, "0.2.0")
    gateway.run(f"cd {STICK}\n{block}")
    assert gateway.run("readlink /opt/bsfg").strip() == "bsfg-0.2.0"
    assert "B-1042" in gateway.run(f"bsfg tail {CONFIG} --stream facts.operational --limit 1")
    gateway.run(f"{STICK}/{folder.name}/install --back")
    assert gateway.run("readlink /opt/bsfg").strip() == current
    assert "B-1042" in gateway.run(f"bsfg tail {CONFIG} --stream facts.operational --limit 1")

    gateway.run(f"{STICK}/{folder.name}/install --remove")
    assert gateway.run("ls /opt /usr/local/bin /usr/local/lib/systemd/system").count("bsfg") == 0
    gateway.run("test -e /var/lib/bsfg/node.toml")


@ONE
def test_what_does_not_fit_is_refused(gateway: Gateway, bundle: Path) -> None:
    """A damaged file, another Python, another machine and an installed .deb are each named, and change nothing."""
    folder = unpacked(gateway, bundle)
    install = f"{STICK}/{folder.name}/install"
    about = (folder / "bundle.json").read_text()
    for key, value, told in (("python", "python3.9", "is for python3.9"), ("architecture", "arm64", "is for arm64")):
        (folder / "bundle.json").write_text(json.dumps(json.loads(about) | {key: value}))
        assert "bundle.json is not as it was built" in gateway.try_(install).text
        as_version(folder, "0.2.0")
        assert told in gateway.try_(install).text
    (folder / "bundle.json").write_text(about)
    as_version(folder, "0.2.0")
    info = gateway.root / "var/lib/dpkg/info/bsfg.list"
    info.write_text("/.\n")
    assert "dpkg -r bsfg" in gateway.try_(install).text
    info.unlink()
    wheel = next((folder / "wheels").glob("click-*.whl"))
    wheel.write_bytes(wheel.read_bytes()[:-1])
    assert "click-" in gateway.try_(install).text
    assert gateway.run("ls /opt").split() == []


@ONE
def test_a_kill_and_a_full_disk_leave_the_current_version(gateway: Gateway, bundle: Path) -> None:
    """A first installation and an upgrade that are killed, and one without room: what was there still runs, nothing is
    left in part that a second try does not clear away."""
    folder = unpacked(gateway, bundle)
    install = f"{STICK}/{folder.name}/install"
    gateway.kill_when(install, "ls opt/bsfg-*.part/lib/*/site-packages/cryptography >/dev/null 2>&1")
    assert gateway.try_("test -e /opt/bsfg").status == 1
    gateway.run(install)
    current = gateway.run("readlink /opt/bsfg").strip()
    as_version(folder, "0.2.0")
    gateway.kill_when(install, "ls opt/bsfg-*.part/lib/*/site-packages/agent/__pycache__/*.pyc >/dev/null 2>&1")
    assert gateway.run("readlink /opt/bsfg").strip() == current
    assert "bsfg, version" in gateway.run("bsfg --version")

    gateway.run(install)
    opt = gateway.root / "opt"
    gateway.run("cp -a /opt /saved")
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=140m", "tmpfs", opt], check=True)
    gateway.run("cp -a /saved/bsfg /saved/bsfg-0.2.0 /opt")
    as_version(folder, "0.3.0")
    refused = gateway.try_(install)
    assert refused.status == 1
    assert "MiB are needed; nothing was changed" in refused.text
    assert "bsfg, version" in gateway.run("bsfg --version")
    subprocess.run(["mount", "-o", "remount,size=400m", opt], check=True)
    gateway.run(install)
    assert gateway.run("readlink /opt/bsfg").strip() == "bsfg-0.3.0"
    assert sorted(gateway.run("ls /opt").split()) == ["bsfg", "bsfg-0.2.0", "bsfg-0.3.0"]


def test_two_builds_are_equal(tmp_path: Path) -> None:
    """Built again, both packages of a target are equal byte by byte to those in dist/."""
    subprocess.run(
        [sys.executable, "-m", "appliance.build", "--target", "debian12-amd64", "--out", tmp_path], cwd=ROOT, check=True
    )
    files = sorted(file.name for file in tmp_path.iterdir() if file.name != "SHA256SUMS")
    assert len(files) == 2
    assert filecmp.cmpfiles(tmp_path, ROOT / "dist", files, shallow=False) == (files, [], [])


def test_the_bundle_reads_as_a_plain_archive(tmp_path: Path) -> None:
    """Every bundle in dist/ unpacks with tar, and sha256sum agrees with its list."""
    for bundle in (ROOT / "dist").glob("*.tar"):
        subprocess.run(["tar", "-xf", bundle], cwd=tmp_path, check=True)
        folder = tmp_path / bundle.stem
        subprocess.run(["sha256sum", "--check", "--quiet", "--strict", "SHA256SUMS"], cwd=folder, check=True)
