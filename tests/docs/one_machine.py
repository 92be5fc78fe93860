"""A site on one machine, on which the pages of docs/how-to are typed: each machine is a folder with its own /etc and
/var/lib, and systemctl, mount and dpkg do there what they would do.

A block of a page names its machine: ```console plant-a. A block with a file, ```toml plant-a /etc/bsfg/plant-a.toml, is
added to that file; one in CSV is the file. What a page cannot say for a test is replaced: ports and the broker's host.
"""

import os
import pwd
import re
import shlex
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

from agent.demo.processes import Child, accepts
from tests.support import command
from tests.support.mosquitto import free_port
from tests.waiting import wait_until

PAGES = Path(__file__).resolve().parents[2] / "docs" / "how-to"
BLOCK = re.compile(r"^```(\w+) ([\w-]+) ?(\S*)\n(.*?)^```", re.MULTILINE | re.DOTALL)
FOLDERS = re.compile(r"(?<=[\s\"'])/(?=(etc|var/lib|mnt|dev)/?)|(?<=^)/(?=(etc|var/lib|mnt|dev)/)")
LIMIT_S = 60.0


def blocks(name: str, section: str = "", zone: str = "plant-b") -> list[tuple[str, str, str, str]]:
    """The blocks of a page or of one of its sections: kind, machine, file or mark, text. `zone` is the plant that the
    page calls plant-b."""
    page = (PAGES / f"{name}.md").read_text("utf-8").replace("plant-b", zone)
    if section:
        (page,) = re.findall(rf"^## {section}\n(.*?)(?=^## |\Z)", page, re.MULTILINE | re.DOTALL)
    return BLOCK.findall(page)


class Site:
    """An authority, an IDMZ with broker and node, and plants; `said` has what the commands of a page printed."""

    def __init__(self, folder: Path, device_port: int) -> None:
        self.folder = folder
        self.said: dict[str, str] = {}
        self.running: dict[str, Child] = {}
        self.device_port = device_port
        self._ports = {shown: free_port() for shown in ("8883", "8884", "8885")}
        self._done: set[str] = set()
        self._passphrase = folder / "passphrase"
        self._passphrase.touch(0o600)
        self._passphrase.write_text("what a person types")
        (folder / "usb").mkdir()

    def prepare(self) -> None:
        """What the pages take for granted: an authority, the IDMZ, and plant-a, which reads a meter, connected."""
        self.type("authority", "bsfg pki ca --no-passphrase")
        self._identity("idmz", "--broker idmz --host broker.idmz.example", "/etc/mosquitto/pki", "brokers/idmz")
        for zone in ("idmz", "plant-a"):
            self._identity(zone, zone, "/etc/bsfg/pki", f"zones/{zone}")
            self.type(zone, f"bsfg init --zone {zone} --config /etc/bsfg/{zone}.toml")
        config = "bsfg broker config /etc/mosquitto/bsfg/idmz --pki /etc/mosquitto/pki"
        self.type("idmz", f"{config} --link plant-a:idmz --port 8883")
        page = (PAGES / "add-a-plant.md").read_text("utf-8").replace("plant-b", "plant-a")
        (theirs,) = re.findall(r"^\[\[broker\]\].*?^$", page, re.MULTILINE | re.DOTALL)
        ours = theirs.replace('name = "idmz"', 'name = "broker"').replace("zones/plant-a", "zones/idmz")
        self.write("idmz", "/etc/bsfg/idmz.toml", ours)
        for kind, machine, name, text in BLOCK.findall(page):
            if kind == "toml":
                self.write(machine, name, text)
        self.write(
            "plant-a", "/etc/bsfg/meter.csv", "tag,table,register,type,scale,unit\nline1/voltage,input,0,uint16,0.1,V\n"
        )
        meter = f'name = "meter"\nhost = "127.0.0.1"\nport = {self.device_port}\npoll_interval_ms = 100\n'
        self.write(
            "plant-a", "/etc/bsfg/plant-a.toml", f'[[modbus]]\n{meter}address_base = 0\ntags_file = "meter.csv"\n'
        )
        for machine, unit in (("idmz", "bsfg-broker@idmz"), ("idmz", "bsfg@idmz"), ("plant-a", "bsfg@plant-a")):
            self.type(machine, f"systemctl enable --now {unit}")

    def page(
        self, name: str, outage: Callable[[str], None] | None = None, section: str = "", zone: str = "plant-b"
    ) -> dict[str, str]:
        """Type the commands of a page or of one of its sections, once; what each printed. `outage` runs those of a
        block marked so; `zone` is the plant that the page calls plant-b."""
        if name + section + zone in self._done:
            return self.said
        self._done.add(name + section + zone)
        self.said = {}
        for kind, machine, mark, text in blocks(name, section, zone):
            if kind != "console":
                self.write(machine, mark, text)
                continue
            for line in text.splitlines():
                if mark == "outage":
                    assert outage is not None, name
                    outage(line.removeprefix("$ "))
                else:
                    self.type(machine, line.removeprefix("$ "))
        return self.said

    def root(self, machine: str) -> Path:
        """The folder that is a machine's /."""
        return self.folder / machine

    def write(self, machine: str, name: str, text: str) -> None:
        """A file of a page, as `name` on a machine; settings are added to those that are there."""
        file = self.root(machine) / self._here(machine, name)
        file.parent.mkdir(parents=True, exist_ok=True)
        before = file.read_text() if file.suffix == ".toml" and file.exists() else ""
        file.write_text(f"{before}\n{self._here(machine, text)}" if before else self._here(machine, text))

    def type(self, machine: str, line: str, *, is_good: bool = True) -> str:
        """Run one line; it must succeed, or fail, and what it prints is returned."""
        (self.root(machine) / "etc/bsfg").mkdir(parents=True, exist_ok=True)
        words = shlex.split(self._here(machine, line))
        if words[0] == "bsfg":
            said = self._bsfg(machine, words, is_good=is_good)
        elif words[0] == "systemctl":
            said = self._systemctl(machine, words[-1], words[1])
        elif words[0] == "dpkg":  # as its scripts do; tests/appliance types the command itself
            for action in ("stop", "start"):
                self._systemctl(machine, f"bsfg@{machine}", action)
            said = ""
        elif words[0] in {"mount", "umount"}:
            said = self._mount(*words)
        else:
            assert words[0] in {"cp", "mv", "mkdir", "rm", "openssl"}, line
            subprocess.run(words, cwd=self.root(machine), check=True)
            said = ""
        self.said[line] = said
        return said

    def stop(self) -> None:
        """End everything."""
        for child in reversed(self.running.values()):
            child.kill()

    def _bsfg(self, machine: str, words: list[str], *, is_good: bool) -> str:
        if words[1] == "init":
            # Relative, because a restored file must name the folder of the machine it came to.
            words += ["--state-dir", f"../../var/lib/bsfg/{words[words.index('--zone') + 1]}"]
        if words[1] in {"backup", "restore"}:
            words += ["--passphrase-file", str(self._passphrase)]
        if words[1] == "restore":
            words += ["--config", str(self.root(machine) / "etc/bsfg/plant-a.toml")]
        if words[1:3] == ["broker", "config"]:
            words += ["--user", pwd.getpwuid(os.geteuid()).pw_name]
        asks = (
            words[1:3] in (["peer", "test"], ["source", "read"], ["peer", "compare"], ["pair", "status"])
            or words[1] == "latest"
        )
        if asks and is_good:
            # These say how things are: a node that was started a moment ago is given its time.
            wait_until(lambda: command.bsfg(self.root(machine), *words[1:]).returncode == 0, str(words), LIMIT_S)
        done = command.bsfg(self.root(machine), *words[1:])
        if words[1:3] in (["broker", "restart"], ["broker", "deny"]):  # the service starts it again
            for unit in [name.partition(" ")[2] for name in self.running if name.startswith(f"{machine} bsfg-broker@")]:
                self._systemctl(machine, unit, "restart")
        if words[1] != "status":  # which judges the node, as the test does then
            assert (done.returncode == 0) is is_good, (words, done.stdout, done.stderr)
        return done.stdout + done.stderr

    def _systemctl(self, machine: str, unit: str, action: str) -> str:
        name = f"{machine} {unit}"
        if action == "stop":
            self.running[name].stop()
        elif action == "restart":
            self.running[name].stop()
            self.running[name].start()
            self.running[name].wait_ready(self._unit(machine, unit)[1])
        elif action == "reload":
            self.type(machine, f"bsfg reload --config /etc/bsfg/{machine}.toml")
        else:
            assert action in {"enable", "start"}, action
            arguments, ready = self._unit(machine, unit)
            self.running[name] = Child(unit, arguments, self.folder / f"{machine}.{unit}.log")
            self.running[name].start()
            self.running[name].wait_ready(ready)
        return ""

    def _unit(self, machine: str, unit: str) -> tuple[list[str], Callable[[], bool]]:
        """The command of a unit, and whether it answers."""
        kind, _, name = unit.partition("@")
        return (self._broker if kind == "bsfg-broker" else self._node)(machine, name)

    def _broker(self, machine: str, name: str) -> tuple[list[str], Callable[[], bool]]:
        """The command of a broker process, and whether it answers."""
        file = self.root(machine) / "etc/mosquitto/bsfg" / name / "mosquitto.conf"
        (port,) = re.findall(r"^listener (\d+)", file.read_text(), re.MULTILINE)
        program = shutil.which("mosquitto", path=f"{os.environ['PATH']}:/usr/sbin")
        return [str(program), "-c", str(file)], lambda: accepts(int(port))

    def _node(self, machine: str, zone: str) -> tuple[list[str], Callable[[], bool]]:
        """The command of a node, and whether it answers."""
        config = str(self.root(machine) / "etc/bsfg" / f"{zone}.toml")
        status = ("status", "--config", config, "--json")
        return command.words("run", "--config", config), lambda: bool(command.bsfg(self.folder, *status).stdout)

    def _mount(self, action: str, *words: str) -> str:
        """A link in place of the folder: the device is a folder below dev."""
        place = Path(words[-1])
        if action == "umount":
            place.unlink()
        else:
            device = Path(words[0])
            device.mkdir(parents=True, exist_ok=True)
            if place.exists():
                place.rmdir()  # empty, as it should be
            place.symlink_to(device)
        return ""

    def _identity(self, machine: str, asked: str, folder: str, name: str) -> None:
        """A certificate as the pages make one."""
        kind, _, file = name.partition("/")
        self.type(machine, f"bsfg pki request {asked} --pki {folder}")
        request = f"/media/usb/{machine}-{file}.csr"
        self.type(machine, f"cp {folder}/{kind}/requested/{file}.csr {request}")
        who = f"--broker {file}" if kind == "brokers" else file
        self.type("authority", f"bsfg pki sign {who} --request {request}")
        carried = f"--cert {self.root('authority')}/pki/{name}.pem --ca {self.root('authority')}/pki/ca.pem"
        crl = f"--crl {self.root('authority')}/pki/ca.crl" if kind == "brokers" else ""
        self.type(machine, f"bsfg pki import {who} {carried} {crl} --pki {folder}")

    def _here(self, machine: str, text: str) -> str:
        """A text of a page as it is in this test."""
        text = text.replace("/media/usb", str(self.folder / "usb")).replace("broker.idmz.example", "localhost")
        text = text.replace("gateway-a.plant.example", "localhost")
        text = text.replace("/srv/authority", str(self.root("authority") / "pki"))  # tests/conftest.py sets BSFG_PKI
        for shown, port in self._ports.items():
            text = text.replace(shown, str(port))
        return FOLDERS.sub(f"{self.root(machine)}/", text)
