#!/usr/bin/env python3
"""Installs bsfg from this folder, without a network, a compiler or pip.

    ./install             into /opt/bsfg-VERSION, and /opt/bsfg becomes a link to it
    ./install --back      the version before becomes the current one again
    ./install --remove    removes the program; configuration, keys and facts stay

Run as root; the scripts of the .deb run it too. The new version is written beside the current one, the link changes in
one step, and then the running nodes restart. So the current version stays whole and its nodes run on whenever an
installation ends early, and the installation can be repeated. The folder of a bundle holds wheels, each compared with
SHA256SUMS first; the folder of a .deb holds them unpacked, and its files are linked, not copied. Only the standard
library is imported.
"""

from __future__ import annotations

import argparse
import compileall
import fnmatch
import hashlib
import json
import os
import shutil
import subprocess
import sys
import time
import zipfile
from collections.abc import Iterable
from pathlib import Path

HERE = Path(__file__).resolve().parent
# What a wheel holds and a gateway never uses; the decision "Packages for gateways" says what each weighs.
OMITTED = (
    "zstandard/_cffi.*",
    "zstandard/backend_cffi.py",
    "apsw/tests/*",
    "apsw/sqlite_extra_binaries/*",
    "pyspark_bsfg/*",
    "*.data/scripts/*",
    "*.dist-info/sboms/*",
    "*.pyi",
)
LAUNCHER = """#!/bin/sh
# bsfg in a Python environment of its own. No path or option of the caller's Python reaches it.
if [ ! -x /usr/bin/{python} ]; then
    echo "bsfg: this package needs Debian's {python}, which is not installed; install the package for this release" >&2
    exit 1
fi
unset PYTHONPATH PYTHONHOME
exec {home}/bin/python3 -sP -m agent.cli "$@"
"""
UNIT_FOLDERS = {"sysusers.d": "sysusers.d", "tmpfiles.d": "tmpfiles.d", "system": "systemd/system"}
FREE_BYTES_PER_PACKED = 8  # unpacked and compiled, a bundle takes six times its size
MACHINES = {"x86_64": "amd64", "aarch64": "arm64"}
UNITS = ("bsfg@*.service", "bsfg-page@*.service", "bsfg-broker-sessions.service")
"""Those that run for as long as the machine, with the program's own files."""
PART = "bsfg-.part"
STOP_S = 30.0  # the unit's TimeoutStopSec is 20


class Refused(Exception):
    """The installation cannot be done; the text says why and what to do."""


def unpack(wheels: Iterable[Path], folder: Path, home: str, python: str) -> None:
    """Write the environment that will be found at `home` into `folder`: packages, launcher and link to `python`
    (python3.11) of the system."""
    packages = folder / "lib" / python / "site-packages"
    for wheel in sorted(wheels):
        with zipfile.ZipFile(wheel) as archive:
            for member in archive.infolist():
                if not member.is_dir() and not any(fnmatch.fnmatch(member.filename, pattern) for pattern in OMITTED):
                    _extract(archive, member, packages)
    (folder / "bin").mkdir()
    (folder / "bin" / "python3").symlink_to(f"/usr/bin/{python}")
    launcher = folder / "bin" / "bsfg"
    launcher.write_text(LAUNCHER.format(home=home, python=python), encoding="utf-8")
    launcher.chmod(0o755)
    version = python.removeprefix("python")
    (folder / "pyvenv.cfg").write_text(
        f"home = /usr/bin\ninclude-system-site-packages = false\nversion = {version}\n", encoding="utf-8"
    )


def _extract(archive: zipfile.ZipFile, member: zipfile.ZipInfo, packages: Path) -> None:
    head, _, rest = member.filename.partition("/")
    if head.endswith(".data"):
        kind, _, rest = rest.partition("/")
        if kind not in {"purelib", "platlib"}:
            raise Refused(f"{archive.filename}: {member.filename} has no place in this environment")
        target = packages / rest
    else:
        target = packages / member.filename
    if not target.resolve().is_relative_to(packages.resolve()):
        raise Refused(f"{archive.filename}: {member.filename} leads out of its folder")
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_bytes(archive.read(member))
    target.chmod(0o755 if (member.external_attr >> 16) & 0o100 else 0o644)


def install(root: Path) -> str:
    """Install what lies beside this file below `root`; returns what to say. Raises Refused, and OSError for a full
    disk."""
    about = json.loads((HERE / "bundle.json").read_text(encoding="utf-8"))
    is_bundle = (HERE / "wheels").is_dir()
    if is_bundle:
        _check(about, root)
    link = root / "opt" / "bsfg"
    before = link.readlink().name if link.is_symlink() else ""
    home = _unused(root / "opt", f"bsfg-{about['version']}")
    part = home.with_name(PART)
    shutil.rmtree(part, ignore_errors=True)
    try:
        _write(part, about["python"], is_bundle=is_bundle)
    except (OSError, Refused):
        shutil.rmtree(part, ignore_errors=True)
        raise
    (part / "before").write_text(before, encoding="utf-8")
    part.rename(home)
    _point(link, home.name)
    if is_bundle:
        _place_units(root, home / "share" / "systemd")
    said = _settle(root, is_first=not before)
    kept = {home.name, before} if is_bundle else {home.name}
    _remove_versions(root, kept)
    return "\n".join([f"installed bsfg {about['version']} in /opt/{home.name}", *said])


def _remove_versions(root: Path, kept: set[str]) -> None:
    """Remove the versions in /opt except those `kept`; an operator's files there have no `before`. Each is renamed
    first, so that the next installation ends a removal that was interrupted."""
    part = root / "opt" / PART
    shutil.rmtree(part, ignore_errors=True)
    for folder in (root / "opt").glob("bsfg-*"):
        if folder.name not in kept and (folder / "before").is_file():
            shutil.rmtree(folder.rename(part))


def _write(part: Path, python: str, *, is_bundle: bool) -> None:
    """Write a whole version, and wait until the disk has it."""
    if is_bundle:
        unpack((HERE / "wheels").glob("*.whl"), part, "/opt/bsfg", python)
        shutil.copytree(HERE / "share", part / "share")
    else:
        # dpkg replaces and removes its own names of these files, never their contents.
        shutil.copytree(HERE / "program", part, symlinks=True, copy_function=os.link)
    if not compileall.compile_dir(part / "lib", quiet=2, stripdir=str(part), prependdir="/opt/bsfg", workers=1):
        free = shutil.disk_usage(part).free
        raise Refused(f"a module could not be compiled; /opt has {free >> 20} MiB free. Nothing was changed")
    os.sync()


def _check(about: dict[str, str], root: Path) -> None:
    for line in (HERE / "SHA256SUMS").read_text(encoding="utf-8").splitlines():
        digest, _, name = line.partition("  ")
        if hashlib.sha256((HERE / name).read_bytes()).hexdigest() != digest:
            raise Refused(f"{name} is not as it was built; copy the bundle again")
    here = f"python{sys.version_info[0]}.{sys.version_info[1]}"
    if here != about["python"]:
        raise Refused(f"this bundle is for {about['python']} (Debian {about['debian']}), and this machine has {here}")
    machine = MACHINES.get(os.uname().machine, os.uname().machine)
    if machine != about["architecture"]:
        raise Refused(f"this bundle is for {about['architecture']}, and this machine is {machine}")
    if (root / "var/lib/dpkg/info/bsfg.list").exists():
        raise Refused("bsfg is installed as a Debian package; upgrade it with the .deb, or remove it: dpkg -r bsfg")
    link = root / "opt" / "bsfg"
    if link.exists() and not link.is_symlink():
        raise Refused(f"{link} was not created by this program; move it away")
    (root / "opt").mkdir(exist_ok=True)
    wanted = FREE_BYTES_PER_PACKED * sum(file.stat().st_size for file in HERE.rglob("*") if file.is_file())
    free = shutil.disk_usage(root / "opt").free
    if free < wanted:
        raise Refused(f"/opt has {free >> 20} MiB free, and {wanted >> 20} MiB are needed; nothing was changed")


def _unused(opt: Path, name: str) -> Path:
    """A folder that does not exist, even if the same version is installed again: the current one is never written
    to."""
    names = (name, *(f"{name}.{number}" for number in range(1, 9)))
    return next(opt / free for free in names if not (opt / free).exists())


def _point(link: Path, name: str) -> None:
    """Point the link to `name`, in one step."""
    new = link.with_name("bsfg.new")
    new.unlink(missing_ok=True)
    new.symlink_to(name)
    new.replace(link)


def _place_units(root: Path, units: Path) -> None:
    """Copy units, users and folders to where systemd reads what no package brought, and the command to the PATH."""
    for kind, place in UNIT_FOLDERS.items():
        target = root / "usr/local/lib" / place
        target.mkdir(parents=True, exist_ok=True)
        for file in (units / kind).iterdir():
            shutil.copy(file, target / file.name)
    command = root / "usr/local/bin/bsfg"
    command.parent.mkdir(parents=True, exist_ok=True)
    command.unlink(missing_ok=True)
    command.symlink_to("/opt/bsfg/bin/bsfg")


def _settle(root: Path, *, is_first: bool) -> list[str]:
    """Create user and folders, and restart what runs; at a first installation, start what an earlier one left enabled.
    Returns when nothing runs with the version before any more, with the lines that name the next step."""
    runs: set[str] = set()
    if root == Path("/"):
        for command in (
            ["systemd-sysusers"],
            ["systemd-tmpfiles", "--create", "--prefix=/etc/bsfg", "--prefix=/var/lib/bsfg"],
        ):
            if shutil.which(command[0]):
                subprocess.run(command, check=False)
        if Path("/run/systemd/system").exists():
            runs = _restart(is_first=is_first)
    zones = sorted(file.stem for file in root.glob("etc/bsfg/*.toml") if b"[node]" in file.read_bytes())
    if not zones:
        return ["next: bsfg setup"]
    idle = [zone for zone in zones if f"bsfg@{zone}.service" not in runs]
    return [f"the node of {zone} does not run; to start it: systemctl enable --now bsfg@{zone}" for zone in idle]


def _restart(*, is_first: bool) -> set[str]:
    """Let the units change to the new version, and wait until the processes of the version before have ended: Python
    imports late, so their files are needed until then. Returns the units that run."""
    listed = _systemctl("list-units", "--plain", "--no-legend", "--state=active,activating,reloading", *UNITS)
    runs = {line.split()[0] for line in listed.splitlines()}
    before = _processes()
    _systemctl("daemon-reload")
    if is_first:
        enabled = (Path("/etc/systemd/system").glob(f"*.wants/{units}") for units in UNITS)
        runs |= {file.name for files in enabled for file in files}
    if runs:
        _systemctl("restart", "--no-block", *sorted(runs))
    limit_s = time.monotonic() + STOP_S
    while time.monotonic() < limit_s and before & _processes():
        time.sleep(0.1)
    return runs


def _processes() -> set[str]:
    """The main processes of the units."""
    return set(_systemctl("show", "--property=MainPID", "--value", *UNITS).split()) - {"0"}


def _systemctl(*words: str) -> str:
    """What systemctl prints, whatever its exit status."""
    return subprocess.run(["systemctl", *words], stdout=subprocess.PIPE, text=True, check=False).stdout


def back(root: Path) -> str:
    """Make the previous version the current one again. Facts are not changed."""
    link = root / "opt" / "bsfg"
    note = link / "before"
    name = note.read_text(encoding="utf-8") if note.exists() else ""
    if not name or not link.with_name(name).is_dir():
        raise Refused("there is no previous version here; install the bundle of that version")
    _point(link, name)
    _place_units(root, link / "share" / "systemd")
    return "\n".join([f"/opt/bsfg is {name} again", *_settle(root, is_first=False)])


def remove(root: Path) -> str:
    """Remove program and units. /etc/bsfg, /var/lib/bsfg and the user stay, and what is enabled stays enabled."""
    if root == Path("/") and Path("/run/systemd/system").exists():
        _systemctl("stop", *UNITS)
    link = root / "opt" / "bsfg"
    for kind, place in UNIT_FOLDERS.items():  # dpkg removes those of a .deb, which has none here
        for file in (link / "share/systemd" / kind).glob("*"):
            (root / "usr/local/lib" / place / file.name).unlink(missing_ok=True)
    link.unlink(missing_ok=True)
    (root / "usr/local/bin/bsfg").unlink(missing_ok=True)
    _remove_versions(root, kept=set())
    return "removed bsfg; configuration and keys in /etc/bsfg and facts in /var/lib/bsfg stay"


def main() -> None:
    """The command line; exit status 1 and one line for what cannot be done."""
    parser = argparse.ArgumentParser(prog="install", description="Install bsfg from this folder.")
    parser.add_argument("--back", action="store_true", help="the version before becomes the current one again")
    parser.add_argument("--remove", action="store_true", help="remove the program; configuration and facts stay")
    parser.add_argument("--root", type=Path, default=Path("/"), help="a mounted system other than the running one")
    given = parser.parse_args()
    os.umask(0o022)  # nodes, which have a user of their own, read what is installed
    try:
        print(remove(given.root) if given.remove else back(given.root) if given.back else install(given.root))
    except (Refused, OSError) as error:
        sys.exit(f"install: {error}")


if __name__ == "__main__":
    main()
