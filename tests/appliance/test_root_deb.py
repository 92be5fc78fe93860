"""The .deb on clean Debian roots without a network: installed, run under systemd, upgraded, interrupted, removed."""

import asyncio
import dataclasses
import re
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from appliance.packages import Target
from tests.appliance.gateway import Gateway
from tests.appliance.page import commands
from tests.foreign.modbus.device import LIBMODBUS, ModbusDevice
from tests.foreign.server import NODE_OPCUA, ForeignServer
from tests.waiting import wait_until

CONFIG = "--config /etc/bsfg/plant-a.toml"
INSTALLED_MIB_MAX = 120
STICK = "/media"
OLDER = "bsfg_0.1.0+deb12_amd64.deb"  # as the page has it
BOTH = pytest.mark.parametrize("target", ["debian12-amd64", "debian13-amd64"], indirect=True)
ONE = pytest.mark.parametrize("target", ["debian12-amd64"], indirect=True)
VALUES_S = 60


def as_version(deb: Path, folder: Path, version: str = "0.2.0") -> Path:
    """The same package as another version, which reports itself as that."""
    tree = folder / "next"
    subprocess.run(["dpkg-deb", "--raw-extract", deb, tree], check=True)
    control = tree / "DEBIAN" / "control"
    text = control.read_text()
    before = re.search(r"^Version: (\S+)\+deb", text, re.MULTILINE)[1]  # type: ignore[index]
    control.write_text(text.replace(f"Version: {before}+", f"Version: {version}+"))
    (own,) = tree.glob("opt/bsfg.package/program/lib/*/site-packages/agent/__init__.py")
    for file in (own, tree / "opt/bsfg.package/bundle.json"):
        file.write_text(file.read_text().replace(f'"{before}"', f'"{version}"'))
    built = folder / deb.name.replace(before, version)
    subprocess.run(
        ["dpkg-deb", "--root-owner-group", "-Zgzip", "-z1", "--build", tree, built], check=True, capture_output=True
    )
    shutil.rmtree(tree)
    return built


@contextmanager
def boiler(gateway: Gateway, folder: Path) -> Iterator[ModbusDevice]:
    """A Modbus device of another make in the gateway's network; register 10 counts how often it was read."""
    if why := LIBMODBUS.why_not():
        pytest.skip(why)
    stack = dataclasses.replace(LIBMODBUS, command=(*gateway.in_network, *LIBMODBUS.command))
    device = ModbusDevice(folder / "boiler", stack)
    device.start()
    device.set(1, "holding", 10, 1, 215)
    device.count(1, "holding", 10, 10)
    try:
        yield device
    finally:
        device.close()


@contextmanager
def press(gateway: Gateway, folder: Path, **options: Any) -> Iterator[ForeignServer]:
    """An OPC UA server of another make in the gateway's network, by default with one variable that changes."""
    if why := NODE_OPCUA.why_not():
        pytest.skip(why)
    server = ForeignServer(
        folder / "press",
        dataclasses.replace(NODE_OPCUA, command=(*gateway.in_network, *NODE_OPCUA.command)),
        **{"variables": [{"name": "count", "type": "Int32", "period_ms": 200}], **options},
    )
    (folder / "press").mkdir()
    asyncio.run(server.start())
    try:
        yield server
    finally:
        server.close()


def add_press(gateway: Gateway, server: ForeignServer) -> None:
    """One more source in the node's configuration, without security: the certificates have tests of their own."""
    etc = gateway.root / "etc" / "bsfg"
    (etc / "press.csv").write_text(f"tag,address\npress/count,{server.address('count')}\n")
    with (etc / "plant-a.toml").open("a") as config:
        config.write(f"""[[opcua]]
name = "press"
url = "{server.url}"
tags_file = "press.csv"
security_policy = "None"
security_mode = "None"
insecure = true
""")
    gateway.run(f"bsfg check {CONFIG} && systemctl restart bsfg@plant-a")


def put_on_stick(gateway: Gateway, *files: Path) -> None:
    """The only packages on the stick, with their checksums."""
    stick = gateway.root / STICK.lstrip("/")
    for old in stick.glob("bsfg*"):
        old.unlink()
    for file in files:
        shutil.copy(file, stick)
    gateway.run(f"cd {STICK} && sha256sum bsfg* >SHA256SUMS")


def do(gateway: Gateway, block: str, port: int = 0, package: str = "") -> str:
    """Type the commands of a block of the page on the gateway, in the folder of the stick; what they printed. The
    device of the test has an address of its own, and its package another name."""
    printed = ""
    for command in commands(block):
        typed = command.replace('host = "10.20.0.5"', f'host = "127.0.0.1"\nport = {port}')
        printed += gateway.run(f"cd {STICK}\n{typed.replace(OLDER, package or OLDER)}")
    return printed


def count_reads(gateway: Gateway) -> int:
    """The latest value of the counting register that the gateway's store holds."""
    done = gateway.try_(f"bsfg latest {CONFIG} --json")
    found = re.search(r'boiler/pressure".*?"value": ?"?(\d+)', done.text)
    return int(found[1]) if found else 0


def wait_for_more(gateway: Gateway, than: int) -> int:
    """Wait until newer values of the device are in the store; the newest."""
    wait_until(lambda: count_reads(gateway) > than, "newer values in the store", VALUES_S)
    return count_reads(gateway)


def offsets(gateway: Gateway) -> tuple[int, int]:
    """First and last offset of the telemetry in the store."""
    text = gateway.run(f'bsfg sql {CONFIG} --json "select min(offset) low, max(offset) high from facts"')
    low, high = (int(re.search(rf'"{name}": ?(\d+)', text)[1]) for name in ("low", "high"))  # type: ignore[index]
    return low, high


def installed_mib(gateway: Gateway) -> int:
    """What the package takes on the disk, compiled files included."""
    used = gateway.run("du --summarize --total --block-size=1M /opt /usr/share/doc/bsfg")
    return int(used.splitlines()[-1].split()[0])


@BOTH
def test_from_the_stick_to_values_upgrade_and_removal(gateway: Gateway, deb: Path, tmp_path: Path) -> None:
    """The page, from a clean booted root to removal: values flow, a killed node returns, an upgrade keeps every fact
    and the way back too, removal leaves the facts, and purge deletes them only if told."""
    put_on_stick(gateway, deb)
    with gateway.boot(), boiler(gateway, tmp_path) as device, press(gateway, tmp_path) as server:
        assert re.findall(r"(\w+):", gateway.run("cat /proc/net/dev")) == ["lo"], "the root must have no network"
        assert "\nnext: bsfg setup" in do(gateway, "deb")
        told_kib = int(gateway.run("dpkg-query --show --showformat '${Installed-Size}' bsfg"))
        assert told_kib / 1024 == pytest.approx(installed_mib(gateway), rel=0.1)
        assert installed_mib(gateway) <= INSTALLED_MIB_MAX
        do(gateway, "source", device.port)
        seen = wait_for_more(gateway, 0)
        assert "boiler/temperature" in do(gateway, "values")
        add_press(gateway, server)
        wait_until(lambda: "press/count" in gateway.run(f"bsfg latest {CONFIG}"), "a value of OPC UA", VALUES_S)
        first, _ = offsets(gateway)

        gateway.run("systemctl kill --signal=KILL bsfg@plant-a")
        restarts = "systemctl show --property=NRestarts --value bsfg@plant-a"
        wait_until(lambda: gateway.run(restarts).strip() != "0", "a restart by systemd", VALUES_S)
        seen = wait_for_more(gateway, count_reads(gateway))

        put_on_stick(gateway, deb, as_version(deb, tmp_path))
        before = offsets(gateway)[1]
        do(gateway, "upgrade")
        assert "0.2.0" in gateway.run("bsfg --version")
        seen = wait_for_more(gateway, seen)
        assert "does not run" not in do(gateway, "back", package=deb.name)
        assert "0.2.0" not in gateway.run("bsfg --version")
        seen = wait_for_more(gateway, seen)
        low, high = offsets(gateway)
        assert low == first
        assert high > before
        gateway.run("systemctl stop bsfg@plant-a")
        gateway.run(f"bsfg store verify {CONFIG}")

        do(gateway, "remove")
        assert gateway.try_("ls /opt | grep bsfg || test -e /usr/bin/bsfg").status == 1
        gateway.run("test -e /var/lib/bsfg/plant-a -a -e /etc/bsfg/plant-a.toml")
        put_on_stick(gateway, deb)
        do(gateway, "upgrade")  # the facts are found again, and the node that is enabled starts
        wait_for_more(gateway, seen)
        gateway.run("systemctl stop bsfg@plant-a")
        assert "systemctl enable --now bsfg@plant-a" in do(gateway, "upgrade")
        assert offsets(gateway)[0] == first
        gateway.run("dpkg --purge bsfg")
        gateway.run("test -e /var/lib/bsfg/plant-a -a -e /etc/bsfg/plant-a.toml")
        assert gateway.try_("ls /etc/systemd/system/*.wants/bsfg@*").status != 0
        gateway.run(f"dpkg -i {STICK}/{deb.name} && BSFG_PURGE=delete dpkg --purge bsfg")
        assert gateway.try_("test -e /var/lib/bsfg -o -e /etc/bsfg").status == 1


@ONE
def test_the_newest_of_the_stick_is_installed(gateway: Gateway, deb: Path, tmp_path: Path) -> None:
    """`dpkg -i bsfg_*.deb` with several on the stick, the newest amid the others: it is installed and its node runs,
    whatever the order, and an older one and one for another Debian are each refused before anything is unpacked."""
    newest, older = (as_version(deb, tmp_path, version) for version in ("0.10.0", "0.9.0"))
    other = tmp_path / older.name.replace("deb12", "deb13")
    for_release(older, other)
    with gateway.boot(), boiler(gateway, tmp_path) as device:
        put_on_stick(gateway, deb)
        do(gateway, "deb")
        do(gateway, "source", device.port)
        seen = wait_for_more(gateway, 0)
        put_on_stick(gateway, deb, newest, older, other)
        done = gateway.try_(f"cd {STICK} && dpkg -i bsfg_*.deb")
        assert done.status == 1
        assert "0.9.0+deb12 is older, so it is left out. To go back" in done.text
        assert "pre-dependency problem" in done.text
        assert "python3.13 is not installed" in done.text
        assert "0.10.0" in gateway.run("bsfg --version && dpkg --audit")
        wait_for_more(gateway, seen)


def for_release(deb: Path, to: Path) -> None:
    """The package of Debian 12 as one for Debian 13."""
    tree = to.with_suffix("")
    subprocess.run(["dpkg-deb", "--raw-extract", deb, tree], check=True)
    control = tree / "DEBIAN" / "control"
    control.write_text(control.read_text().replace("python3.11", "python3.13").replace("+deb12", "+deb13"))
    subprocess.run(["dpkg-deb", "--root-owner-group", "-Znone", "--build", tree, to], check=True, capture_output=True)
    shutil.rmtree(tree)


def unpacked_mib(deb: Path) -> int:
    """What dpkg writes of a package; its compiled files come on top."""
    tar = subprocess.run(["dpkg-deb", "--fsys-tarfile", deb], check=True, capture_output=True).stdout
    return len(tar) >> 20


def record_a_message(gateway: Gateway) -> None:
    """A store with one message, made by hand."""
    gateway.run(f"bsfg append {CONFIG} batch:B-1042 step_completed '{{}}'")


@ONE
def test_a_full_disk_takes_nothing_and_the_second_try_works(gateway: Gateway, deb: Path, tmp_path: Path) -> None:
    """A first installation and an upgrade that meet a full disk: dpkg fails and says so, the old version still works,
    the message is there, and with more room the same command succeeds."""
    put_on_stick(gateway, deb)
    opt = gateway.root / "opt"
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=40m", "tmpfs", opt], check=True)
    assert gateway.try_(f"dpkg -i {STICK}/{deb.name}").status != 0
    subprocess.run(["mount", "-o", "remount,size=128m", opt], check=True)
    do(gateway, "interrupted")
    gateway.run(f"bsfg init --zone plant-a {CONFIG}")
    record_a_message(gateway)

    next_version = as_version(deb, tmp_path)
    put_on_stick(gateway, next_version)
    used = int(gateway.run("du --summarize --block-size=1M /opt").split()[0])
    subprocess.run(["mount", "-o", f"remount,size={used + 5}m", opt], check=True)
    failed = gateway.try_(f"dpkg -i {STICK}/bsfg_*.deb")
    assert failed.status != 0
    assert "No space left" in failed.text
    assert "0.2.0" not in gateway.run("bsfg --version")
    assert "B-1042" in gateway.run(f"bsfg tail {CONFIG} --stream facts.operational --limit 1")
    is_unpacked = used + unpacked_mib(next_version) + 10  # its last blocks, and far less than its compiled files
    subprocess.run(["mount", "-o", f"remount,size={is_unpacked}m", opt], check=True)
    failed = gateway.try_(f"dpkg -i {STICK}/bsfg_*.deb")
    assert "could not be compiled; /opt has 0 MiB free" in failed.text
    assert "0.2.0" not in gateway.run("bsfg --version")
    subprocess.run(["mount", "-o", "remount,size=260m", opt], check=True)
    do(gateway, "interrupted")
    assert "0.2.0" in gateway.run("bsfg --version")
    assert "B-1042" in gateway.run(f"bsfg tail {CONFIG} --stream facts.operational --limit 1")


@ONE
def test_the_node_can_read_what_root_imports(gateway: Gateway, deb: Path) -> None:
    """The commands of docs/how-to by which root gets and rotates a certificate: `check` is content at once, and the
    node's user reads the new key; nobody else does."""
    put_on_stick(gateway, deb)
    gateway.run(f"dpkg -i {STICK}/{deb.name}")
    gateway.run(f"bsfg init --zone plant-a {CONFIG} && bsfg pki ca --no-passphrase")
    files = "ca_file = 'pki/ca.pem'\ncert_file = 'pki/zones/plant-a.pem'\nkey_file = 'pki/zones/plant-a.key'\n"
    section = f"[[broker]]\nname = 'idmz'\nhost = 'localhost'\noptional = true\n{files}"
    gateway.run(f"cat >>/etc/bsfg/plant-a.toml <<'END'\n{section}END")
    for force in ("", "--force"):
        gateway.run("bsfg pki request plant-a --pki /etc/bsfg/pki")
        request = "/etc/bsfg/pki/zones/requested/plant-a.csr"
        gateway.run(f"bsfg pki sign plant-a --request {request}")
        carried = "--cert /srv/authority/zones/plant-a.pem --ca /srv/authority/ca.pem"
        gateway.run(f"bsfg pki import plant-a {carried} --pki /etc/bsfg/pki {force}")
        gateway.run(f"bsfg check {CONFIG} && runuser -u bsfg -- cat /etc/bsfg/pki/zones/plant-a.key")
    former = "--cert zones/previous/plant-a.pem --key zones/previous/plant-a.key --ca ca.pem --pki . --force"
    gateway.run(f"cd /etc/bsfg/pki && bsfg pki import plant-a {former} && bsfg check {CONFIG}")
    assert gateway.try_("runuser -u nobody -- cat /etc/bsfg/pki/zones/plant-a.key").status != 0


@pytest.mark.parametrize("target", ["debian12-arm64", "debian13-arm64"], indirect=True)
def test_arm64_runs_under_emulation(gateway: Gateway, deb: Path, target: Target) -> None:
    """The arm64 package on an arm64 root: installed, every package imported, a key made, a fact stored and read."""
    put_on_stick(gateway, deb)
    do(gateway, "deb")
    assert gateway.run("uname -m").strip() == "aarch64"
    assert installed_mib(gateway) <= INSTALLED_MIB_MAX
    python = f"/opt/bsfg/lib/python{target.python}/site-packages"
    names = [file.name.partition("-")[0] for file in (gateway.root / python.lstrip("/")).glob("*.dist-info")]
    tops = {"bsfg_agent": "agent", "paho_mqtt": "paho.mqtt.client", "pyserial": "serial", "python_dateutil": "dateutil"}
    modules = ", ".join(tops.get(name.lower(), name.lower()) for name in names)
    gateway.run(f"/opt/bsfg/bin/python3 -sPc 'import {modules}'")
    record_a_message(gateway)
    assert "B-1042" in gateway.run(f"bsfg tail {CONFIG} --stream facts.operational --limit 1")
    gateway.run("cd /root && bsfg pki ca --pki pki --no-passphrase && test -s pki/ca.pem")
