"""The units as systemd itself reads them: no complaint, an exposure near the floor, and files that agree.

The programs come with Debian's systemd package, which set-up installs; no running systemd is needed. Unit files are
checked in a folder of their own, where a stand-in takes the place of the installed program.
"""

import configparser
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from agent.node.clock import BOOT_ID_VARIABLE
from agent.replication.broker.config import BrokerPlan, parse_config, render_config
from tests.support.mosquitto import Mosquitto
from tests.waiting import LIMIT_S

SYSTEMD = Path(__file__).resolve().parents[2] / "systemd"
PROGRAM = "/opt/bsfg/bin/bsfg"


def run(*command: str | Path) -> subprocess.CompletedProcess[str]:
    """Run a checker; its exit status and its words are the caller's to judge."""
    return subprocess.run(  # noqa: PLW1510 - a status other than 0 is an answer here
        [str(word) for word in command], capture_output=True, text=True, timeout=LIMIT_S
    )


def stand_in(folder: Path) -> Path:
    """A program where the installed one would be."""
    program = folder / "bin" / "bsfg"
    program.parent.mkdir(exist_ok=True)
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    return program


@pytest.fixture
def unit(tmp_path: Path) -> Path:
    """bsfg@plant-a.service, as installed, but for the place of the program."""
    text = (SYSTEMD / "bsfg@.service").read_text()
    assert PROGRAM in text
    unit = tmp_path / "bsfg@plant-a.service"
    unit.write_text(text.replace(PROGRAM, str(stand_in(tmp_path))))
    return unit


@pytest.fixture
def broker_unit(tmp_path: Path) -> Path:
    """bsfg-broker@idmz.service, as installed, but for the place of the program."""
    text = (SYSTEMD / "bsfg-broker@.service").read_text()
    unit = tmp_path / "bsfg-broker@idmz.service"
    unit.write_text(text.replace(PROGRAM, str(stand_in(tmp_path))))
    return unit


def drop_in(unit: Path, name: str) -> None:
    """Put an example drop-in beside a unit."""
    folder = unit.with_name(unit.name + ".d")
    folder.mkdir()
    shutil.copy(SYSTEMD / "examples" / name, folder / name)


def assert_verified(unit: Path) -> None:
    """systemd reads the unit without a word about it; what it thinks of the machine's other units is not asked."""
    done = run("systemd-analyze", "verify", "--man=no", "--recursive-errors=no", unit)
    about_ours = [line for line in done.stderr.splitlines() if unit.name in line or str(unit.parent) in line]
    assert (done.returncode, about_ours) == (0, []), done.stderr


def exposure(unit: Path, threshold: int) -> tuple[int, str]:
    """Exit status against a threshold in tenths, and the line with the score."""
    done = run("systemd-analyze", "security", "--no-pager", "--offline=true", f"--threshold={threshold}", unit)
    return done.returncode, (done.stdout + done.stderr).strip().splitlines()[-1]


def settings(path: Path) -> configparser.ConfigParser:
    """A unit file's sections and keys; of a key given twice, the last."""
    parser = configparser.ConfigParser(strict=False, interpolation=None, delimiters=("=",), comment_prefixes=("#",))
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    parser.read_string(path.read_text())
    return parser


def test_the_node_unit_is_understood(unit: Path) -> None:
    """Every directive of the unit is known to systemd, and its program can be started."""
    assert_verified(unit)


def test_the_node_unit_is_tight(unit: Path) -> None:
    """Exposure is 1.2 or less."""
    status, line = exposure(unit, 12)
    assert status == 0, line


@pytest.mark.parametrize("name, threshold", [("serial.conf", 15), ("conduit.conf", 12), ("credential.conf", 12)])
def test_a_drop_in_is_understood_and_tight(unit: Path, name: str, threshold: int) -> None:
    """Each example drop-in is read without complaint, and opens no more than the page says."""
    drop_in(unit, name)
    assert_verified(unit)
    status, line = exposure(unit, threshold)
    assert status == 0, line


def test_the_broker_unit_is_understood_and_tight(broker_unit: Path) -> None:
    """The broker's unit verifies and scores 1.2 or less."""
    assert_verified(broker_unit)
    status, line = exposure(broker_unit, 12)
    assert status == 0, line


def test_the_brokers_own_limits_are_below_those_of_its_unit() -> None:
    """Mosquitto refuses what is too much before the kernel ends it: connections beside files, memory beside memory."""
    service = settings(SYSTEMD / "bsfg-broker@.service")["Service"]
    config = parse_config(render_config(BrokerPlan("/etc/mosquitto/bsfg/idmz", "/plugin.so")))
    assert int(config["max_connections"]) < int(service["LimitNOFILE"])
    assert int(config["memory_limit"]) < int(service["MemoryHigh"].removesuffix("M")) * 2**20


def test_debians_broker_alone_would_fail(tmp_path: Path) -> None:
    """The score test can fail: Debian's own unit of the same program is far above the threshold."""
    places = [Path(folder) / "mosquitto.service" for folder in ("/usr/lib/systemd/system", "/lib/systemd/system")]
    (debian, *_) = [place for place in places if place.exists()]
    status, _ = exposure(Path(shutil.copy(debian, tmp_path / "mosquitto.service")), 12)
    assert status != 0


@pytest.mark.parametrize(
    "name",
    [
        "bsfg-broker-files@.path",
        "bsfg-broker-files.service",
        "bsfg-broker-check.timer",
        "bsfg-broker-check.service",
        "bsfg-broker-sessions.service",
    ],
)
def test_the_broker_watch_units_are_valid(tmp_path: Path, name: str) -> None:
    """The units beside the broker are known to systemd, and each finds the service it starts."""
    for file in SYSTEMD.glob("bsfg-broker*"):
        (tmp_path / file.name).write_text(file.read_text().replace(PROGRAM, str(stand_in(tmp_path))))
    assert_verified(tmp_path / name)


@pytest.mark.parametrize(
    "name", ["bsfg-broker-files.service", "bsfg-broker-check.service", "bsfg-broker-sessions.service"]
)
def test_the_helper_units_are_tight(tmp_path: Path, name: str) -> None:
    """Exposure of each unit beside node and broker is 1.2 or less, and none runs as root."""
    text = (SYSTEMD / name).read_text()
    (tmp_path / name).write_text(text.replace(PROGRAM, str(stand_in(tmp_path))))
    status, line = exposure(tmp_path / name, 12)
    assert status == 0, line
    assert settings(SYSTEMD / name)["Service"]["User"] == "mosquitto"


@pytest.mark.system
def test_the_helper_reaches_a_broker_in_another_user_namespace(tmp_path: Path) -> None:
    """PrivateUsers= puts broker and helper into a user namespace each; the helper still finds and signals the broker,
    with the command of its unit."""
    apart = ["unshare", "--user", "--map-current-user"]
    if run(*apart, "true").returncode != 0:
        pytest.skip("this kernel gives no user namespaces")
    command = settings(SYSTEMD / "bsfg-broker-files.service")["Service"]["ExecStart"].split()
    assert command[1:4] == ["broker", "reload", "--config"]
    with Mosquitto.started(tmp_path, zones=("plant-a", "idmz"), links=("plant-a:idmz",)) as broker:
        done = run(*apart, Path(sys.executable).with_name("bsfg"), *command[1:4], broker.files.config_file.parent)
        assert done.returncode == 0, done.stdout + done.stderr
        assert "Reloading config." in broker.log_text()


def test_every_service_has_a_score() -> None:
    """No unit is added without a test of its exposure."""
    scored = {"bsfg@.service", "bsfg-page@.service", "bsfg-broker@.service"}
    scored |= {"bsfg-broker-files.service", "bsfg-broker-check.service", "bsfg-broker-sessions.service"}
    assert {path.name for path in SYSTEMD.glob("*.service")} == scored


def test_the_nodes_reload_has_a_result() -> None:
    """It runs the command that waits for the outcome, on the file with which the node was started; a bare SIGHUP would
    return before the file is read."""
    service = settings(SYSTEMD / "bsfg@.service")["Service"]
    assert service["ExecReload"] == service["ExecStart"].replace(" run ", " reload ")


def test_the_node_knows_which_start_of_the_machine_it_is() -> None:
    """Its sandbox hides the kernel's file, so the unit says it."""
    service = settings(SYSTEMD / "bsfg@.service")["Service"]
    assert service["ProcSubset"] == "pid"
    assert f"\nEnvironment={BOOT_ID_VARIABLE}=%b\n" in (SYSTEMD / "bsfg@.service").read_text()


def test_the_brokers_reload_is_guarded() -> None:
    """Unit, daily check and watched folder speak of the same configuration, and nothing sends SIGHUP unlooked."""
    service = settings(SYSTEMD / "bsfg-broker@.service")["Service"]
    config = service["ExecStart"].split("-c ")[1]
    folder = str(Path(config).parents[1])
    assert f"broker reload --config {config} --pid" in service["ExecReload"]
    assert settings(SYSTEMD / "bsfg-broker-check.service")["Service"]["ExecStart"].endswith(f"--files {folder}")
    assert settings(SYSTEMD / "bsfg-broker-files@.path")["Path"]["PathChanged"] == f"{folder}/%i"


def test_a_misspelt_directive_is_noticed(unit: Path) -> None:
    """The verification can fail: an unknown key is an error here, although systemd itself would only warn."""
    unit.write_text(unit.read_text() + "WantedBi=multi-user.target\n")
    with pytest.raises(AssertionError, match="WantedBi"):
        assert_verified(unit)


def test_user_and_folders_come_to_be(tmp_path: Path) -> None:
    """In an empty root, sysusers makes the user and tmpfiles makes the folders with the modes the unit counts on."""
    root = tmp_path / "root"
    (root / "etc").mkdir(parents=True)
    done = run("systemd-sysusers", f"--root={root}", SYSTEMD / "sysusers.d" / "bsfg.conf")
    assert done.returncode == 0, done.stderr
    assert re.search(r"^bsfg:.*:/var/lib/bsfg:", (root / "etc/passwd").read_text(), re.MULTILINE)

    folders = (SYSTEMD / "tmpfiles.d" / "bsfg.conf").read_text()
    if os.geteuid() != 0:  # only root may give a folder away; the modes are proven all the same
        folders = re.sub(r"(\d{4}) +\w+ +\w+", rf"\1 {os.geteuid()} {os.getegid()}", folders)
    config = tmp_path / "bsfg.conf"
    config.write_text(folders)
    done = run("systemd-tmpfiles", "--create", f"--root={root}", config)
    assert done.returncode == 0, done.stderr
    made = ("etc/bsfg", "etc/bsfg/pki", "etc/bsfg/pki/zones", "etc/bsfg/pki/signers", "var/lib/bsfg")
    assert {name: (root / name).stat().st_mode & 0o7777 for name in made} == dict.fromkeys(made, 0o750)


def test_users_folders_and_units_agree() -> None:
    """The unit's user, configuration and state folders are those that sysusers and tmpfiles make, the page is in the
    group that may read them, and no unit names a page of documentation, because nothing installs one."""
    units = [path for path in SYSTEMD.rglob("*") if path.suffix in {".service", ".path", ".timer", ".conf"}]
    assert [path.name for path in units if "Documentation=" in path.read_text()] == []
    service = settings(SYSTEMD / "bsfg@.service")["Service"]
    users = re.findall(r"^u +([\w-]+)", (SYSTEMD / "sysusers.d" / "bsfg.conf").read_text(), re.MULTILINE)
    folders = re.findall(r"^d +(\S+)", (SYSTEMD / "tmpfiles.d" / "bsfg.conf").read_text(), re.MULTILINE)
    page = settings(SYSTEMD / "bsfg-page@.service")["Service"]
    assert ([service["User"], page["User"]], page["SupplementaryGroups"]) == (users, service["Group"])
    assert "/var/lib/" + service["StateDirectory"].partition("/")[0] in folders
    assert str(Path(service["ExecStart"].split("--config ")[1]).parent) in folders
    examples = (SYSTEMD / "examples" / "credential.conf").read_text()
    credentials = re.findall(r"^(?:#   )?LoadCredential(?:Encrypted)?=[\w.]+:(\S+)$", examples, re.MULTILINE)
    assert [path for path in credentials if str(Path(path).parent) not in folders] == []
    assert len(credentials) == 3


def test_node_and_broker_have_the_same_sandbox() -> None:
    """What the node's unit takes away, the broker's unit takes away too."""
    node, broker = (settings(SYSTEMD / path)["Service"] for path in ("bsfg@.service", "bsfg-broker@.service"))
    taken = re.compile(
        r"Protect|Private|Restrict|NoNew|Capab|Ambient|Lock|Memory(Deny)|SystemCall|IPAddress|Device|Keyring"
    )
    lacking = {key for key in node if taken.match(key) and broker.get(key) != node[key]}
    assert not lacking


def test_the_page_lists_every_file() -> None:
    """docs/operate/install.md says of each file here where it goes."""
    page = (SYSTEMD.parent / "docs/operate/install.md").read_text()
    files = [path.relative_to(SYSTEMD).as_posix() for path in SYSTEMD.rglob("*") if path.is_file()]
    assert [name for name in files if f"`{name}`" not in page] == []


def test_the_page_unit_is_understood_and_tight(tmp_path: Path) -> None:
    """It verifies and scores 1.2 or less; it is another user than the node's, writes nowhere, and sees no key."""
    unit = tmp_path / "bsfg-page@plant-a.service"
    unit.write_text((SYSTEMD / "bsfg-page@.service").read_text().replace(PROGRAM, str(stand_in(tmp_path))))
    assert_verified(unit)
    status, line = exposure(unit, 12)
    assert status == 0, line
    service = settings(unit)["Service"]
    node = settings(SYSTEMD / "bsfg@.service")["Service"]
    assert service["User"] != node["User"]
    assert not {"StateDirectory", "RuntimeDirectory", "ReadWritePaths"} & service.keys()
    assert "/etc/bsfg/pki" in service["InaccessiblePaths"]
