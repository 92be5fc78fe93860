"""Files for the kernel that are made from node.toml: conduits as the real nft loads and enforces them, and names of
serial ports."""

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from agent.hardware.conduits import Flow, render_conduits
from agent.hardware.machine import read_serial_port
from agent.hardware.udev import SerialPort, render_udev
from tests.support.command import bsfg
from tests.waiting import LIMIT_S

NODE = """
[node]
zone = "plant-a"

[[broker]]
name = "idmz"
host = "10.20.0.7"
ca_file = "ca.pem"
cert_file = "c.pem"
key_file = "k.pem"

[[opcua]]
name = "press"
url = "opc.tcp://[fd00::5]/"
tags_file = "t.csv"
server_certificate_sha256 = "SHA"

[[modbus]]
name = "boiler"
host = "10.20.0.5"
tags_file = "t.csv"
address_base = 0
"""

# In a network namespace of its own: who is reached, of three addresses with two ports each.
ENFORCED = """
import json, socket, subprocess, sys
for address in ("10.9.0.1", "10.9.0.2"):
    subprocess.run(["ip", "addr", "add", f"{address}/32", "dev", "lo"], check=True)
subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
subprocess.run(["nft", "-f", sys.argv[1]], check=True)
found, held = {}, []
for address in ("10.9.0.1", "10.9.0.2", "127.0.0.1"):
    for port in (502, 503):
        held.append(socket.create_server((address, port)))
        try:
            socket.create_connection((address, port), 10).close()
            found[f"{address}:{port}"] = True
        except OSError:
            found[f"{address}:{port}"] = False
print(json.dumps(found))
"""


def in_namespace(*words: str) -> "subprocess.CompletedProcess[str]":
    """Run in a user and network namespace of its own; skipped where the kernel gives none."""
    if shutil.which("nft", path="/usr/sbin:/usr/bin:/sbin") is None:
        pytest.skip("nft is not installed: apt-get install nftables")
    command = ["unshare", "-rn", "env", "PATH=/usr/sbin:/usr/bin:/sbin:/bin"]
    tried = subprocess.run([*command, "nft", "add", "table", "inet", "t"], capture_output=True, text=True, check=False)
    if tried.returncode:
        pytest.skip(f"no packet filter in a user namespace here: {tried.stderr.strip()}")
    return subprocess.run([*command, *words], capture_output=True, text=True, timeout=LIMIT_S, check=False)


@pytest.mark.system
def test_nft_accepts_the_conduits_of_a_node(tmp_path: Path) -> None:
    """Broker, OPC UA server and Modbus device, of both families, twice in a row."""
    (tmp_path / "plant-a.toml").write_text(NODE.replace("SHA", "0" * 64))
    page = (Path(__file__).parents[2] / "hardware" / "README.md").read_text("utf-8")
    commands = re.findall(r"^\$ bsfg hardware conduits /etc/bsfg/plant-a.toml( --systemd)? >", page, re.MULTILINE)
    assert commands == ["", " --systemd"], "these are the calls here and below"
    done = bsfg(tmp_path, "hardware", "conduits", "plant-a.toml", "--user", "root")
    assert (done.returncode, done.stderr) == (0, "")
    for rule in (
        "ip daddr { 10.20.0.7 } tcp dport 8883 counter accept  # broker idmz",
        "ip6 daddr { fd00::5 } tcp dport 4840 counter accept  # opcua press",
        "ip daddr { 10.20.0.5 } tcp dport 502 counter accept  # modbus boiler",
    ):
        assert rule in done.stdout.replace("/32", "").replace("/128", "")
    assert "names" not in done.stdout, "no name, so no resolver"
    rules = tmp_path / "bsfg.nft"
    rules.write_text(done.stdout)
    loaded = in_namespace("sh", "-c", f"nft -c -f {rules} && nft -f {rules} && nft -f {rules}")
    assert (loaded.returncode, loaded.stderr) == (0, "")


@pytest.mark.system
def test_the_kernel_enforces_them(tmp_path: Path) -> None:
    """The named address is reached at the named port, loopback always, and nothing else."""
    rules = tmp_path / "bsfg.nft"
    rules.write_text(render_conduits("root", [Flow("modbus boiler", ("10.9.0.1",), 502)], []))
    done = in_namespace(sys.executable, "-c", ENFORCED, str(rules))
    assert done.returncode == 0, done.stderr
    reached = {where for where, is_reached in json.loads(done.stdout).items() if is_reached}
    assert reached == {"10.9.0.1:502", "127.0.0.1:502", "127.0.0.1:503"}


def test_the_drop_in_has_the_same_addresses(tmp_path: Path) -> None:
    """systemd's form, which begins by clearing the unit's list, as the example in systemd/examples does."""
    (tmp_path / "node.toml").write_text(NODE.replace("SHA", "0" * 64))
    done = bsfg(tmp_path, "hardware", "conduits", "--systemd")
    found = re.findall(r"(?m)^IPAddressAllow=(.*)$", done.stdout)
    assert found == ["", "localhost", "10.20.0.7", "fd00::5", "10.20.0.5"]


def test_a_name_is_resolved_and_resolvers_are_reached(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A host's name needs the resolver; one that does not resolve is named with what to do."""
    resolv = tmp_path / "resolv.conf"
    resolv.write_text("search plant\nnameserver 10.20.0.1\nnameserver fe80::1%eth0\n")
    monkeypatch.setattr("agent.cli.hardware.rules.RESOLV_CONF", resolv)
    text = NODE.replace("SHA", "0" * 64)
    (tmp_path / "node.toml").write_text(text.replace("10.20.0.5", "localhost"))
    said = bsfg(tmp_path, "hardware", "conduits").stdout
    assert "10.20.0.1" in said
    assert "fe80::1" in said
    (tmp_path / "node.toml").write_text(text.replace("10.20.0.5", "no-such-host.invalid"))
    done = bsfg(tmp_path, "hardware", "conduits")
    assert done.returncode == 1
    assert "modbus boiler: no-such-host.invalid" in done.stderr
    assert "write the address" in done.stderr


def kernel(root: Path) -> None:
    """A kernel with an adapter that has a serial, one that has none, and a port of the board."""
    (root / "dev/serial/by-id").mkdir(parents=True)
    usb = root / "sys/devices/usb1"
    for tty, place, interface, attributes in (
        ("ttyUSB0", "1-1.2", "00", {"idVendor": "0403", "idProduct": "6001", "serial": 'AB"12*'}),
        ("ttyUSB1", "1-1.3", "01", {"idVendor": "1a86", "idProduct": "7523"}),
    ):
        device = usb / place / f"{place}:1.0" / tty
        device.mkdir(parents=True)
        (device.parent / "bInterfaceNumber").write_text(f"{interface}\n")
        for name, value in attributes.items():
            (usb / place / name).write_text(f"{value}\n")
        (root / "sys/class/tty" / tty).mkdir(parents=True)
        (root / "sys/class/tty" / tty / "device").symlink_to(device)
        (root / "dev" / tty).touch()
    (root / "dev/serial/by-id/usb-FTDI").symlink_to("../../ttyUSB0")
    (root / "sys/devices/platform/serial8250").mkdir(parents=True)
    (root / "sys/class/tty/ttyS1").mkdir(parents=True)
    (root / "sys/class/tty/ttyS1/device").symlink_to(root / "sys/devices/platform/serial8250")
    (root / "dev/ttyS1").touch()


def test_a_port_is_known_by_what_stays(tmp_path: Path) -> None:
    """An adapter by its serial number, one without by its socket, a port of the board by the kernel's name."""
    kernel(tmp_path)
    found = [read_serial_port(Path("/dev") / name, tmp_path) for name in ("serial/by-id/usb-FTDI", "ttyUSB1", "ttyS1")]
    assert found == [
        SerialPort("ttyUSB0", "0403", "6001", 'AB"12*', "00", "1-1.2"),
        SerialPort("ttyUSB1", "1a86", "7523", "", "01", "1-1.3"),
        SerialPort("ttyS1"),
    ]
    rules = render_udev(zip(("boiler", "meter", "pump"), found, strict=True), "bsfg").splitlines()
    end = 'GROUP="bsfg", MODE="0660"'
    serial = 'ATTRS{serial}=="AB?12?", ENV{ID_USB_INTERFACE_NUM}=="00", SYMLINK+="bsfg-boiler", '
    assert [line for line in rules if not line.startswith("#")] == [
        'SUBSYSTEM=="tty", ATTRS{idVendor}=="0403", ATTRS{idProduct}=="6001", ' + serial + end,
        'SUBSYSTEM=="tty", KERNELS=="1-1.3", ENV{ID_USB_INTERFACE_NUM}=="01", SYMLINK+="bsfg-meter", ' + end,
        'SUBSYSTEM=="tty", KERNEL=="ttyS1", SYMLINK+="bsfg-pump", ' + end,
    ]
    with pytest.raises(OSError, match="ttyUSB7"):
        read_serial_port(Path("/dev/ttyUSB7"), tmp_path)


def test_an_adapter_adds_no_rule() -> None:
    """Whatever an adapter gives as its serial number stays inside one rule."""
    hostile = SerialPort("ttyUSB0", "0403", "6001", 'A"\n, RUN+="/bin/sh\r\\', "00", "1-1.2")
    rules = [line for line in render_udev([("boiler", hostile)], "bsfg").split("\n") if not line.startswith("#")]
    (rule, end) = rules
    assert 'ATTRS{serial}=="A??, RUN+=?/bin/sh??", ENV{ID_USB_INTERFACE_NUM}=="00", ' in rule
    assert (rule.count('"') % 2, 'RUN+="' in rule, end) == (0, False, "")


def test_udevadm_accepts_the_rules(tmp_path: Path) -> None:
    """By the real `udevadm verify`, which systemd has since version 254 (Debian 13)."""
    if shutil.which("udevadm") is None:
        pytest.skip("udevadm is not installed: apt-get install udev")
    rules = tmp_path / "70-bsfg.rules"
    port = SerialPort("ttyUSB0", "0403", "6001", "AB12", "00", "1-1.2")
    rules.write_text(render_udev([("boiler", port), ("pump", SerialPort("ttyS1"))], "root"))
    done = subprocess.run(
        ["udevadm", "verify", str(rules)], capture_output=True, text=True, timeout=LIMIT_S, check=False
    )
    if "nknown command" in done.stderr:
        pytest.skip("this udevadm has no verify")
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_command_names_the_new_port(tmp_path: Path) -> None:
    """A port that is not there is an error with what to do; a node without serial lines too."""
    section = '[node]\nzone = "a"\n[[modbus]]\nname = "b"\ntags_file = "t"\naddress_base = 0\n'
    (tmp_path / "node.toml").write_text(f'{section}transport = "rtu"\nserial_port = "/dev/ttyNONE7"\n')
    done = bsfg(tmp_path, "hardware", "udev")
    assert "serial_port /dev/ttyNONE7" in done.stderr
    assert "plug the adapter in" in done.stderr
    (tmp_path / "node.toml").write_text(f'{section}host = "h"\n')
    assert "no source of these files has transport" in bsfg(tmp_path, "hardware", "udev").stderr
