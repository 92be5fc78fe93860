"""A site of clean machines: an authority, an IDMZ with broker and node, and gateways for plants, each with a cable of
its own to the IDMZ. An operator types the pages of docs/how-to there, word by word, and carries the stick."""

import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from appliance.packages import TARGETS
from tests.appliance.gateway import Gateway, clean_gateway
from tests.docs.one_machine import blocks
from tests.waiting import wait_until

VALUES_S = 120
(TARGET,) = (target for target in TARGETS if target.name == "debian12-amd64")
BROKER = """
[[broker]]
name = "broker"
host = "broker.idmz.example"
ca_file = "pki/ca.pem"
cert_file = "pki/zones/idmz.pem"
key_file = "pki/zones/idmz.key"
"""


class Site:
    """The machines, all booted but the authority, and the operator."""

    def __init__(self, machines: dict[str, Gateway], stick: Path) -> None:
        self.machines = machines
        self.commands = 0
        self._stick = stick
        self._powered = {name: ExitStack() for name in machines}

    def power_on(self, machine: str) -> None:
        """Boot a machine; it returns once everything was started."""
        self._powered[machine].enter_context(self.machines[machine].boot())

    def cut_power(self, machine: str) -> None:
        """End a machine at once."""
        self.machines[machine].cut_power()
        self._powered[machine].close()

    def close(self) -> None:
        """Power off what runs."""
        for powered in self._powered.values():
            powered.close()

    def type(self, machine: str, command: str) -> str:
        """A command, with the stick in its machine; it must succeed."""
        place = self.machines[machine].root / "media/usb"
        shutil.copytree(self._stick, place, dirs_exist_ok=True)
        if command.startswith("bsfg pair status"):  # of a node that has just begun
            wait_until(lambda: self.machines[machine].try_(command).status == 0, command, VALUES_S)
        shown = self.machines[machine].run(command)
        shutil.rmtree(self._stick)
        shutil.move(place, self._stick)
        self.commands += 1
        return shown

    def page(self, name: str, section: str = "", zone: str = "plant-b", more: Mapping[str, str] | None = None) -> None:
        """Type a page or a section of it. `zone` is the plant that the page calls plant-b,
        `more` what the page leaves to the reader, by the file to which it is added."""
        for kind, machine, file, text in blocks(name, section, zone):
            if kind == "console":
                for line in text.splitlines():
                    self.type(machine, line.removeprefix("$ "))
            else:
                self.add(machine, file, text + (more or {}).get(file, ""))

    def add(self, machine: str, file: str, text: str) -> None:
        """Add lines to a file, which keeps its owner and mode, or make it."""
        with (self.machines[machine].root / file.lstrip("/")).open("a") as there:
            there.write(f"\n{text}" if there.tell() else text)

    def identity(self, machine: str, of: str, name: str, folder: str, more: str = "") -> None:
        """What the pages take for granted: a certificate of the site's authority, with its revocation list."""
        kind, who = ("brokers", f"--broker {name}") if of == "broker" else ("zones", name)
        self.type(machine, f"bsfg pki request {who} {more} --pki {folder}")
        self.type(machine, f"cp {folder}/{kind}/requested/{name}.csr /media/usb/{of}.csr")
        self.type("authority", f"bsfg pki sign {who} --request /media/usb/{of}.csr")
        self.type(
            "authority", f"cp /srv/authority/{kind}/{name}.pem /srv/authority/ca.pem /srv/authority/ca.crl /media/usb"
        )
        crl = "--crl /media/usb/ca.crl" if of == "broker" else ""
        carried = f"--cert /media/usb/{name}.pem --ca /media/usb/ca.pem {crl}"
        self.type(machine, f"bsfg pki import {who} {carried} --pki {folder}")

    def wait_good(self, machine: str) -> None:
        """Wait until a machine's node says that all is well."""
        status = f"bsfg status --config /etc/bsfg/{machine}.toml"
        try:
            wait_until(lambda: self.machines[machine].try_(status).status == 0, f"{machine} is good", VALUES_S)
        except AssertionError:
            print(self.machines[machine].try_(status).text)
            raise


@contextmanager
def site(authority: Gateway, deb: Path, folder: Path, plants: Sequence[str]) -> Iterator[Site]:
    """A site whose plants have the package and nothing else, for the length of a block."""
    stick = folder / "stick"
    stick.mkdir()
    with ExitStack() as stack:
        machines = {"authority": authority}
        for name in ("idmz", *plants):
            machines[name] = stack.enter_context(clean_gateway(TARGET, folder / name))
        made = Site(machines, stick)
        stack.callback(made.close)
        made.add("idmz", "/etc/hosts", "127.0.0.1 broker.idmz.example\n")
        for number, plant in enumerate(plants, 1):  # networks without a way between the plants
            cable = (f"10.20.{number}.1/24", f"10.20.{number}.2/24", (f"eth{number}", "eth0"))
            machines["idmz"].connect(machines[plant], *cable)
            made.add(plant, "/etc/hosts", f"10.20.{number}.1 broker.idmz.example\n")
        for name, machine in machines.items():
            machine.run(f"dpkg -i {machine.copy_in(deb)}")
            if name != "authority":
                made.power_on(name)
        _prepare(made)
        yield made


def _prepare(made: Site) -> None:
    """The authority, and the IDMZ, whose broker has no link yet."""
    made.type("authority", "bsfg pki ca --no-passphrase")
    made.identity("idmz", "broker", "idmz", "/etc/mosquitto/pki", "--host broker.idmz.example")
    made.identity("idmz", "zone", "idmz", "/etc/bsfg/pki")
    made.type("idmz", "bsfg init --zone idmz --config /etc/bsfg/idmz.toml")
    made.add("idmz", "/etc/bsfg/idmz.toml", BROKER)
    made.type("idmz", "systemctl enable bsfg@idmz && systemctl start --no-block bsfg@idmz")
