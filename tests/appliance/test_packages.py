"""The core of the packages, in seconds and without a network: which packages a gateway needs, the bill of materials,
the environment that is unpacked, and the scripts around it."""

import fnmatch
import grp
import importlib.metadata
import json
import os
import re
import shutil
import stat
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from agent.replication.pki.renewal import IdentityFiles
from appliance import installer
from appliance.build import LINK, ROOT, copy_documents
from appliance.installer import OMITTED, UNIT_FOLDERS, Refused, back, unpack
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
from tests.appliance.page import commands

LOCK = read_lock((ROOT / "requirements.lock").read_text())
SCRIPTS = sorted((ROOT / "appliance" / "debian").iterdir())


def requires(name: str) -> list[str]:
    """The requirements that an installed package declares."""
    return importlib.metadata.requires(name) or []


@pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.name)
def test_a_gateway_gets_what_the_agent_needs_and_no_more(target: Target) -> None:
    """Every dependency of pyproject.toml is there, with what it needs; Spark, test and build tools and pip are not; and
    each has its hashes in requirements.lock."""
    asked = needed(target, requires)
    assert {"asyncua", "cryptography", "pymodbus", "pyserial", "cffi", "apsw"} <= asked.keys()
    assert not {"pyspark", "pyarrow", "pip", "pytest", "hatchling", "ruff", "mypy"} & asked.keys()
    assert {other for others in asked.values() for other in others} <= asked.keys()
    lines = requirements_text([name for name in asked if name != OWN], LOCK)
    assert lines.count("==") == len(asked) - 1
    assert all(LOCK[name].digests for name in asked if name != OWN)


def test_markers_of_the_gateway_decide_and_not_of_this_machine() -> None:
    """A requirement for another Python or machine is left out, one of a chosen extra is taken."""
    declared = {
        OWN: [
            "one; python_version >= '3.12'",
            "two; platform_machine == 'aarch64'",
            "three[more]",
            "four; extra == 'x'",
        ],
        "three": ["five; extra == 'more'", "six; extra == 'other'"],
    }
    by_name = {
        target.name: set(needed(target, lambda name: declared.get(name, []))) - {OWN, "three", "five"}
        for target in TARGETS
    }
    assert by_name == {
        "debian12-amd64": set(),
        "debian12-arm64": {"two"},
        "debian13-amd64": {"one"},
        "debian13-arm64": {"one", "two"},
    }


def test_a_package_without_a_pin_ends_the_build() -> None:
    """What requirements.lock does not pin is never downloaded."""
    with pytest.raises(KeyError):
        requirements_text(["no-such-package"], LOCK)


def test_the_bill_of_materials_names_each_package_with_its_hash() -> None:
    """Components, purls, hashes, licences and who needs whom, in CycloneDX's words; equal contents give equal bytes."""
    own = Package(OWN, "1.0", "the agent", "Apache-2.0", True, ("click",), "a" * 64)
    other = read_metadata("Name: Click\nVersion: 8.1\nSummary: s\nLicense: BSD\n\n", "b" * 64)
    packages, asked = {OWN: own, "click": other}, {OWN: ("click",), "click": ()}
    text = bill_of_materials(TARGETS[0], packages, asked)
    assert text == bill_of_materials(TARGETS[0], dict(reversed(packages.items())), asked)
    bill = json.loads(text)
    assert (bill["bomFormat"], bill["specVersion"]) == ("CycloneDX", "1.6")
    assert bill["metadata"]["component"]["licenses"] == [{"expression": "Apache-2.0"}]
    (component,) = bill["components"]
    assert component["purl"] == component["bom-ref"] == "pkg:pypi/click@8.1"
    assert component["hashes"] == [{"alg": "SHA-256", "content": "b" * 64}]
    assert component["licenses"] == [{"license": {"name": "BSD"}}]
    assert bill["dependencies"][0] == {"ref": f"pkg:pypi/{OWN}@1.0", "dependsOn": ["pkg:pypi/click@8.1"]}
    changed = bill_of_materials(TARGETS[1], packages, asked)
    assert json.loads(changed)["serialNumber"] != bill["serialNumber"]


def make_wheel(folder: Path, name: str, files: dict[str, str]) -> Path:
    """A wheel with these files."""
    wheel = folder / f"{name}-1-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        for path, text in files.items():
            archive.writestr(path, text)
    return wheel


def test_the_documents_are_those_of_an_operator(tmp_path: Path) -> None:
    """The package has no page for developers, and a link to one is only its text; all other links lead somewhere."""
    copy_documents(tmp_path)
    pages = {page.relative_to(tmp_path).as_posix() for page in tmp_path.rglob("*.md")}
    assert {"README.md", "docs/operate/install.md", "docs/reference/log.md"} <= pages
    assert not [page for page in pages if page.startswith(("docs/developers", "docs/decisions", "agent", "tests"))]
    for page in pages:
        text = (tmp_path / page).read_text("utf-8")
        for _, target in LINK.findall(text):
            assert ((tmp_path / page).parent / target).exists(), (page, target)
    assert "([how](" not in (tmp_path / "docs/operate/install.md").read_text()
    assert "(how)" in (tmp_path / "docs/operate/install.md").read_text()


def test_an_environment_is_unpacked_without_what_a_gateway_never_uses(tmp_path: Path) -> None:
    """Packages, launcher and the link to Debian's Python; tests, Spark and second backends are left out."""
    kept = {"zstandard/backend_c.so": "x", "one.data/purelib/one.py": "x", "zstandard-1.dist-info/METADATA": "x"}
    dropped = {"zstandard/_cffi.so": "x", "pyspark_bsfg/source.py": "x", "apsw/tests/__main__.py": "x", "a/b.pyi": "x"}
    home = tmp_path / "home"
    unpack([make_wheel(tmp_path, "one", kept | dropped)], home, "/opt/bsfg", "python3.11")
    packages = home / "lib/python3.11/site-packages"
    found = {file.relative_to(packages).as_posix() for file in packages.rglob("*") if file.is_file()}
    assert found == {"zstandard/backend_c.so", "one.py", "zstandard-1.dist-info/METADATA"}
    assert (home / "bin/python3").readlink() == Path("/usr/bin/python3.11")
    launcher = (home / "bin/bsfg").read_text()
    assert "exec /opt/bsfg/bin/python3" in launcher
    assert subprocess.run(["sh", "-n", home / "bin/bsfg"], check=False).returncode == 0


def run_installer(
    folder: Path, root: Path, module: str, *words: str, umask: int = 0o022
) -> subprocess.CompletedProcess[str]:
    """Install the folder of a .deb that holds this module, as postinst does."""
    packages = folder / "program" / "lib" / "site-packages"
    packages.mkdir(parents=True, exist_ok=True)
    (packages / "x.py").unlink(missing_ok=True)  # dpkg writes another file in its place
    (packages / "x.py").write_text(module)
    (folder / "bundle.json").write_text(json.dumps({"version": "1.0", "python": "python3.11"}))
    return subprocess.run(
        [sys.executable, "-I", shutil.copy(ROOT / "appliance" / "installer.py", folder), "--root", root, *words],
        capture_output=True,
        text=True,
        check=False,
        umask=umask,
    )


def test_nodes_can_read_the_program_whatever_umask_root_has(tmp_path: Path) -> None:
    """On a hardened image root's files are its own; the nodes have another user."""
    done = run_installer(tmp_path / "bsfg.package", tmp_path, "x = 1", umask=0o077)
    assert done.returncode == 0, done.stderr
    made = list((tmp_path / "opt" / "bsfg-1.0").rglob("*"))
    assert len(made) > 4
    assert [path for path in made if path.stat().st_mode & 0o004 == 0] == []


def test_the_version_in_use_is_never_written_to(tmp_path: Path) -> None:
    """The files of dpkg are linked into a folder beside the version in use, which is whole until the link has changed;
    one that cannot be compiled changes nothing and leaves nothing in part; removal leaves what is dpkg's."""
    folder, root = tmp_path / "bsfg.package", tmp_path / "root"
    current, opt = root / "opt" / "bsfg", root / "opt"
    opt.mkdir(parents=True)
    done = run_installer(folder, root, "x = 1")
    assert done.stdout == "installed bsfg 1.0 in /opt/bsfg-1.0\nnext: bsfg setup\n", done.stderr
    module = current / "lib" / "site-packages" / "x.py"
    assert module.samefile(folder / "program" / "lib" / "site-packages" / "x.py")
    assert list(module.parent.glob("__pycache__/x.*.pyc"))
    done = run_installer(folder, root, "x = ")
    assert done.returncode == 1
    assert "a module could not be compiled" in done.stderr
    assert (module.read_text(), len(list(opt.iterdir()))) == ("x = 1", 2)
    etc = root / "etc" / "bsfg"
    etc.mkdir(parents=True)
    (etc / "plant-a.toml").write_text('[node]\nzone = "plant-a"\n')
    (etc / "tags.toml").write_text("[[tag]]\n")
    done = run_installer(folder, root, "x = 2")
    assert done.stdout.splitlines()[1:] == [
        "the node of plant-a does not run; to start it: systemctl enable --now bsfg@plant-a"
    ]
    assert (module.read_text(), current.readlink(), len(list(opt.iterdir()))) == ("x = 2", Path("bsfg-1.0.1"), 2)
    assert run_installer(folder, root, "x = 2", "--remove").returncode == 0
    assert list(opt.iterdir()) == []
    assert (folder / "program").is_dir()


def test_what_an_operator_keeps_in_opt_stays(tmp_path: Path) -> None:
    """Files and folders in /opt whose names begin like those of versions, such as a bundle and its archive, survive
    installation and removal."""
    kept = {tmp_path / "opt/bsfg-1.0-debian12-amd64.tar", tmp_path / "opt/bsfg-backup/node.bsfg"}
    for file in kept:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.touch()
    for words in ((), ("--remove",)):
        done = run_installer(tmp_path / "bsfg.package", tmp_path, "x = 1", *words)
        assert (done.returncode, done.stderr) == (0, "")
        assert all(file.exists() for file in kept)


def test_what_runs_of_the_version_before_is_restarted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nodes, their pages and the watch over the brokers' sessions change to the new version; a broker, which is no part
    of it, keeps its connections."""
    units = ["bsfg@a.service", "bsfg-page@a.service", "bsfg-broker-sessions.service", "bsfg-broker@a.service"]
    restarted = list[str]()

    def systemctl(*words: str) -> str:
        if words[0] == "restart":
            restarted.extend(words[2:])
        return "\n".join(
            unit for unit in units for word in words if words[0] == "list-units" and fnmatch.fnmatch(unit, word)
        )

    monkeypatch.setattr(installer, "_systemctl", systemctl)
    assert installer._restart(is_first=False) == {*restarted} == {*units[:3]}


def test_the_version_before_comes_back_with_its_units(tmp_path: Path) -> None:
    """Program and units are of one version; the version that it replaced is not known to it, and is not guessed."""
    for name in ("bsfg-1", "bsfg-2"):
        for kind in UNIT_FOLDERS:
            folder = tmp_path / "opt" / name / "share" / "systemd" / kind
            folder.mkdir(parents=True)
            (folder / "bsfg.unit").write_text(name)
    (tmp_path / "opt" / "bsfg-2" / "before").write_text("bsfg-1")
    (tmp_path / "opt" / "bsfg").symlink_to("bsfg-2")
    assert back(tmp_path).startswith("/opt/bsfg is bsfg-1 again")
    placed = [tmp_path / "usr/local/lib" / place / "bsfg.unit" for place in UNIT_FOLDERS.values()]
    assert [unit.read_text() for unit in placed] == ["bsfg-1"] * len(placed)
    with pytest.raises(Refused, match="no previous version"):
        back(tmp_path)


def test_a_wheel_cannot_write_outside(tmp_path: Path) -> None:
    """A file name that leads out of the environment, or a kind of file that has no place there, is refused."""
    for name in ("../../../../outside.py", "one.data/headers/x.h"):
        wheel = make_wheel(tmp_path, "one", {name: "x"})
        with pytest.raises(Refused):
            unpack([wheel], tmp_path / "home", "/opt/bsfg", "python3.11")
    assert not (tmp_path / "outside.py").exists()


def test_what_is_left_out_is_really_in_the_packages() -> None:
    """Each pattern of OMITTED still matches a file of an installed package: one that does not is dead."""
    names = [str(file) for distribution in importlib.metadata.distributions() for file in distribution.files or ()]
    elsewhere = {"pyspark_bsfg/*", "*.data/scripts/*"}  # of our own wheel; a wheel, once installed, has no .data
    unused = [
        pattern
        for pattern in OMITTED
        if pattern not in elsewhere and not any(fnmatch.fnmatch(name, pattern) for name in names)
    ]
    assert unused == []


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.name)
def test_the_scripts_of_the_package_are_shell(script: Path) -> None:
    """dash reads each script, it ends at the first error, and it can be started."""
    assert subprocess.run(["sh", "-n", script], check=False).returncode == 0
    text = script.read_text()
    assert text.startswith("#!/bin/sh\n")
    assert "\nset -e\n" in text
    assert script.stat().st_mode & 0o111


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files to a group")
def test_a_key_is_readable_by_the_group_to_which_root_opened_its_folder(tmp_path: Path) -> None:
    """The package opens /etc/bsfg/pki/zones to the node's group, which reads the keys that root puts there; a key in
    any other folder is its owner's alone."""
    group = grp.getgrnam("nogroup").gr_gid
    opened, own = (IdentityFiles(tmp_path / name, "plant-a") for name in ("opened", "own"))
    for files in (opened, own):
        files.folder.mkdir(0o700)
    opened.folder.chmod(0o750)
    os.chown(opened.folder, 0, group)
    for files in (opened, own, opened):  # the second time, as in a rotation
        files.replace(b"certificate", b"key")
    found = opened.key_file.stat()
    assert (stat.S_IMODE(found.st_mode), found.st_gid) == (0o640, group)
    assert stat.S_IMODE(own.key_file.stat().st_mode) == 0o600
    assert stat.S_IMODE(opened.in_subfolder("previous").key_file.stat().st_mode) == 0o600


def test_the_page_has_every_block_that_the_tests_type() -> None:
    """docs/operate/install.md shows the commands of each step; the slow tests type these."""
    for name in ("bring", "brought", "deb", "source", "values", "upgrade", "back", "remove", "interrupted", "bundle"):
        assert commands(name)
    assert re.search(r"<<'END'\n.+\nEND$", commands("source")[0], re.DOTALL)
    assert set(UNIT_FOLDERS) == {"system", "sysusers.d", "tmpfiles.d"}
