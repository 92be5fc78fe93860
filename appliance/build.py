"""`make bundle`: builds the offline bundle and the .deb for each Debian release and architecture, into dist/.

Needs a package index (wheels are checked against the hashes in requirements.lock) and dpkg-deb. Two builds of one
commit are equal byte by byte. Nothing is compiled: a package without a wheel for the gateway ends the build with its
name.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib.metadata
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from appliance.installer import UNIT_FOLDERS, unpack
from appliance.packages import (
    OWN,
    TARGETS,
    Package,
    Target,
    needed,
    read_lock,
    read_metadata,
    requirements_text,
)
from appliance.sbom import bill_of_materials

ROOT = Path(__file__).resolve().parents[1]
HERE = Path(__file__).resolve().parent
EPOCH_DEFAULT = "1767225600"  # 2026-01-01, for a tree without git
MEBIBYTE = 1 << 20
BLOCK_BYTES = 4096  # a file takes whole blocks of a disk
DOCUMENTS = (
    "README.md",
    "CHANGELOG.md",
    "docs/how-to",
    "docs/operate",
    "docs/reference",
    "hardware",
    "systemd/examples",
)
"""What an operator reads; the pages for developers stay in the checkout."""
LINK = re.compile(r"\[([^\]]+)\]\((?!https?:|#)([^)#\s]+)[^)\s]*\)")


@dataclass(frozen=True, slots=True)
class Build:
    """What both packages of a target are made from."""

    target: Target
    version: str
    wheels: tuple[Path, ...]
    packages: dict[str, Package]
    share: Path  # systemd/, doc/: what an installation holds besides Python


def epoch() -> int:
    """The time that every file carries: of the commit, unless SOURCE_DATE_EPOCH says another."""
    done = subprocess.run(
        ["git", "-C", str(ROOT), "log", "-1", "--format=%ct"], capture_output=True, text=True, check=False
    )
    return int(os.environ.get("SOURCE_DATE_EPOCH") or done.stdout.strip() or EPOCH_DEFAULT)


def pip(*words: str | Path) -> None:
    """Run pip; what it prints of a failure is shown."""
    done = subprocess.run(
        [sys.executable, "-m", "pip", "--disable-pip-version-check", "--no-input", *map(str, words)],
        capture_output=True,
        text=True,
        env=os.environ | {"SOURCE_DATE_EPOCH": str(epoch())},
        check=False,
    )
    if done.returncode:
        sys.exit(f"bundle: pip {words[0]} failed:\n{done.stdout[-2000:]}{done.stderr[-4000:]}")


def collect_wheels(target: Target, folder: Path) -> tuple[tuple[Path, ...], dict[str, tuple[str, ...]]]:
    """The wheels of everything that the target needs, downloaded where they are not in `folder` yet, and which package
    needs which."""
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.glob(f"{OWN.replace('-', '_')}-*.whl"):
        old.unlink()
    pip("wheel", "--quiet", "--no-deps", "--no-build-isolation", "--wheel-dir", folder, ROOT)
    asked = needed(target, lambda name: importlib.metadata.requires(name) or [])
    lock = requirements_text([name for name in asked if name != OWN], read_lock(_read(ROOT / "requirements.lock")))
    listed = folder / "requirements.txt"
    if not listed.exists() or _read(listed) != lock:
        for old in folder.glob("*.whl"):
            if not old.name.startswith(OWN.replace("-", "_")):
                old.unlink()
        wanted = folder / "requirements.new"
        wanted.write_text(lock, encoding="utf-8")
        platforms = [word for name in target.platforms for word in ("--platform", name)]
        only = ["--no-deps", "--only-binary", ":all:", "--python-version", target.python, "--require-hashes"]
        pip("download", "--quiet", *only, *platforms, "--dest", folder, "-r", wanted)
        wanted.rename(listed)
    return tuple(sorted(folder.glob("*.whl"))), asked


def describe(wheels: Iterable[Path]) -> dict[str, Package]:
    """The packages in the wheels, by canonical name."""
    found = {}
    for wheel in wheels:
        with zipfile.ZipFile(wheel) as archive:
            (metadata,) = [name for name in archive.namelist() if name.endswith(".dist-info/METADATA")]
            digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
            package = read_metadata(archive.read(metadata).decode(), digest)
        found[package.name] = package
    return found


def prepare(target: Target, work: Path) -> Build:
    """Wheels, documents and units of a target, in `work`."""
    wheels, asked = collect_wheels(target, work / "wheels")
    packages = describe(wheels)
    missing = asked.keys() ^ packages.keys()
    if missing:
        sys.exit(f"bundle: {target.name}: wheels and requirements differ in {', '.join(sorted(missing))}")
    share = work / "share"
    shutil.rmtree(share, ignore_errors=True)
    _copy_units(share / "systemd")
    doc = share / "doc"
    copy_documents(doc)
    (doc / "sbom.cdx.json").write_text(bill_of_materials(target, packages, asked), encoding="utf-8")
    _copy_licences(wheels, doc / "licences")
    return Build(target, packages[OWN].version, wheels, packages, share)


def copy_documents(doc: Path) -> None:
    """The pages for operators, in the folders of the checkout. Of a link to another page only the text is left."""
    for name in DOCUMENTS:
        place = doc / name
        place.parent.mkdir(parents=True, exist_ok=True)
        (shutil.copytree if (ROOT / name).is_dir() else shutil.copy)(ROOT / name, place)
    for page in doc.rglob("*.md"):

        def cut(link: re.Match[str], page: Path = page) -> str:
            return link[0] if (page.parent / link[2]).exists() else link[1]

        page.write_text(LINK.sub(cut, page.read_text("utf-8")), encoding="utf-8")


def _copy_units(folder: Path) -> None:
    """Units, users and folders, sorted by the place where systemd looks for them."""
    for kind in UNIT_FOLDERS:
        (folder / kind).mkdir(parents=True)
    for file in sorted((ROOT / "systemd").iterdir()):
        if file.is_file() and file.suffix != ".md":
            shutil.copy(file, folder / "system" / file.name)
    for kind in ("sysusers.d", "tmpfiles.d"):
        for file in (ROOT / "systemd" / kind).iterdir():
            shutil.copy(file, folder / kind / file.name)


def _copy_licences(wheels: Iterable[Path], folder: Path) -> None:
    """The licence texts of every package; one whose wheel has none has it in appliance/licences."""
    for wheel in wheels:
        name = wheel.name.partition("-")[0].lower()
        own = HERE / "licences" / f"{name}.txt"
        with zipfile.ZipFile(wheel) as archive:
            texts = [name for name in archive.namelist() if _is_licence(name)]
            if not texts and not own.exists():
                sys.exit(f"bundle: {wheel.name} holds no licence text; put it into {own.relative_to(ROOT)}")
            (folder / name).mkdir(parents=True)
            if own.exists():
                shutil.copy(own, folder / name / "LICENSE.txt")
            for licence in texts:
                # Several may share their last name (LICENSE of the package and of what it bundles).
                inside = licence.partition(".dist-info/")[2].removeprefix("licenses/").replace("/", "-")
                (folder / name / inside).write_bytes(archive.read(licence))


def _is_licence(name: str) -> bool:
    inside = name.partition(".dist-info/")[2]
    words = ("licen", "copying", "notice", "edl-", "epl-")
    return bool(inside) and any(word in inside.rpartition("/")[2].lower() for word in words)


def build_bundle(build: Build, out: Path) -> Path:
    """The bundle: wheels, installer, what goes beside them, and the checksums of all. Returns the file."""
    name = f"bsfg-{build.version}-{build.target.name}"
    folder = out / name
    shutil.rmtree(folder, ignore_errors=True)
    (folder / "wheels").mkdir(parents=True)
    for wheel in build.wheels:
        shutil.copy(wheel, folder / "wheels" / wheel.name)
    shutil.copytree(build.share, folder / "share")
    _copy_installer(build, folder)
    (folder / "SHA256SUMS").write_text(_sums(folder), encoding="utf-8")
    file = out / f"{name}.tar"
    with tarfile.open(file, "w", format=tarfile.GNU_FORMAT) as archive:  # wheels are compressed already
        for path in sorted(folder.rglob("*")):
            archive.add(path, path.relative_to(out).as_posix(), recursive=False, filter=_same_everywhere)
    shutil.rmtree(folder)
    return file


def _copy_installer(build: Build, folder: Path) -> None:
    """The installer, and what it must know of its folder."""
    shutil.copy(HERE / "installer.py", folder / "install")
    (folder / "install").chmod(0o755)
    about = {
        "version": build.version,
        "debian": str(build.target.debian),
        "architecture": build.target.architecture,
        "python": f"python{build.target.python}",
    }
    (folder / "bundle.json").write_text(json.dumps(about, indent=1) + "\n", encoding="utf-8")


def _same_everywhere(member: tarfile.TarInfo) -> tarfile.TarInfo:
    member.mtime, member.uid, member.gid, member.uname, member.gname = epoch(), 0, 0, "root", "root"
    member.mode = 0o755 if member.isdir() or member.mode & 0o100 else 0o644
    return member


def _sums(folder: Path) -> str:
    """Lines as `sha256sum -c` reads them."""
    files = sorted(path for path in folder.rglob("*") if path.is_file() and path.name != "SHA256SUMS")
    digests = ((hashlib.sha256(file.read_bytes()).hexdigest(), file.relative_to(folder).as_posix()) for file in files)
    return "".join(f"{digest}  {name}\n" for digest, name in digests)


def build_deb(build: Build, work: Path, out: Path) -> Path:
    """The .deb: environment, units, documents and the scripts around them. Returns the file."""
    tree = work / "deb"
    shutil.rmtree(tree, ignore_errors=True)
    # dpkg replaces this folder file by file, so the nodes run from another: the installer links the files to it.
    home = tree / "opt" / "bsfg.package"
    home.mkdir(parents=True)
    unpack(build.wheels, home / "program", "/opt/bsfg", f"python{build.target.python}")
    _copy_installer(build, home)
    for kind, place in UNIT_FOLDERS.items():
        shutil.copytree(build.share / "systemd" / kind, tree / "usr/lib" / place)
    doc = tree / "usr/share/doc/bsfg"
    shutil.copytree(build.share / "doc", doc)
    (doc / "copyright").write_text(_copyright(build), encoding="utf-8")
    (tree / "usr/bin").mkdir()
    (tree / "usr/bin/bsfg").symlink_to("/opt/bsfg/bin/bsfg")
    version = f"{build.version}+deb{build.target.debian}"
    control = tree / "DEBIAN"
    shutil.copytree(HERE / "debian", control)
    (control / "control").write_text(_control(build, version, _installed_bytes(tree)), encoding="utf-8")
    for path in sorted(tree.rglob("*"), reverse=True):
        if not path.is_symlink():
            path.chmod(0o755 if path.is_dir() or path.stat().st_mode & 0o100 else 0o644)
        os.utime(path, (epoch(), epoch()), follow_symlinks=False)
    file = out / f"bsfg_{version}_{build.target.architecture}.deb"
    subprocess.run(
        ["dpkg-deb", "--root-owner-group", "-Zxz", "--build", str(tree), str(file)],
        check=True,
        stdout=subprocess.DEVNULL,
        env=os.environ | {"SOURCE_DATE_EPOCH": str(epoch())},
    )
    shutil.rmtree(tree)
    return file


def _installed_bytes(tree: Path) -> int:
    """What the package takes on a disk. The installer compiles each module; the result is about as large."""
    sizes = (
        (path.suffix, path.lstat().st_size) for path in tree.rglob("*") if path.is_file() and "DEBIAN" not in path.parts
    )
    return sum((1 + (suffix == ".py")) * -(-size // BLOCK_BYTES) * BLOCK_BYTES for suffix, size in sizes)


def _control(build: Build, version: str, installed: int) -> str:
    return f"""Package: bsfg
Version: {version}
Architecture: {build.target.architecture}
Maintainer: The bsfg authors <bsfg@localhost>
Section: net
Priority: optional
Installed-Size: {installed // 1024}
Pre-Depends: python{build.target.python}
Depends: systemd, libc6 (>= 2.{build.target.glibc_minor})
Recommends: mosquitto, nftables
Description: store-and-forward agent for the IT/OT boundary
 Reads OPC UA and Modbus devices of a plant zone into an append-only log on
 the local disk, which the zones above pull over MQTT 5 with mutual TLS.
 .
 Holds a Python environment of its own in /opt/bsfg. Nodes are started as
 bsfg@ZONE.service with /etc/bsfg/ZONE.toml; "bsfg setup" sets up the first.
"""


def _copyright(build: Build) -> str:
    lines = ["bsfg is under the Apache License 2.0 (/usr/share/common-licenses/Apache-2.0).", ""]
    lines += ["It holds these packages; their texts are in /usr/share/doc/bsfg/licences:", ""]
    lines += [
        f"  {package.name} {package.version}: {package.licence}"
        for package in build.packages.values()
        if package.name != OWN
    ]
    return "\n".join(lines) + "\n"


def _read(path: Path) -> str:
    return path.read_text(encoding="utf-8")


def main() -> None:
    """Build what the arguments name, by default everything; print each file with its size."""
    parser = argparse.ArgumentParser(description="Build bundles and Debian packages.")
    parser.add_argument("--target", choices=[target.name for target in TARGETS], action="append", help="default: all")
    parser.add_argument("--out", type=Path, default=ROOT / "dist")
    given = parser.parse_args()
    given.out.mkdir(exist_ok=True, parents=True)
    files = []
    for target in TARGETS:
        if given.target and target.name not in given.target:
            continue
        work = ROOT / "build" / "appliance" / target.name
        build = prepare(target, work)
        files += [build_bundle(build, given.out), build_deb(build, work, given.out)]
    for file in files:
        print(f"{file.stat().st_size / MEBIBYTE:6.1f} MiB  {file}")
    sums = (f"{hashlib.sha256(file.read_bytes()).hexdigest()}  {file.name}\n" for file in files)
    (given.out / "SHA256SUMS").write_text("".join(sums), encoding="utf-8")


if __name__ == "__main__":
    main()
