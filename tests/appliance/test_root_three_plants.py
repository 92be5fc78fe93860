"""docs/how-to/add-a-plant.md on clean machines: a site of one authority, one broker and three plants, each added by the
page as it stands there."""

import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from appliance.packages import Target
from tests.appliance.gateway import Gateway, clean_gateway
from tests.appliance.test_root_deb import ONE
from tests.docs.one_machine import BLOCK, PAGES
from tests.waiting import wait_until

PLANTS = ("plant-a", "plant-b", "plant-c")
VALUES_S = 120
SESSIONS = """
import sys, time
from pathlib import Path
from agent.replication import pki
from tests.security.broker_attacker import Attacker
context = pki.client_context(*map(Path, sys.argv[2:]))
context.check_hostname = False
sessions = [Attacker(sys.argv[1], 8883, context) for _ in range(40)]
while True:
    for session in sessions:
        session.ping()
    time.sleep(5)
"""
BROKER = """
[[broker]]
name = "broker"
host = "broker.idmz.example"
ca_file = "pki/ca.pem"
cert_file = "pki/zones/idmz.pem"
key_file = "pki/zones/idmz.key"
"""


def cable(idmz: Gateway, plant: Gateway, number: int) -> None:
    """A cable of its own to each plant: networks without a way between the plants."""
    device = f"eth{number}"
    peer = ["type", "veth", "peer", "name", "eth0", "netns", str(plant._network_pid)]
    subprocess.run([*idmz.in_network, "ip", "link", "add", device, *peer], check=True)
    for machine, at, address in ((idmz, device, f"10.20.{number}.1/24"), (plant, "eth0", f"10.20.{number}.2/24")):
        machine.add_address(address, at)
        subprocess.run([*machine.in_network, "ip", "link", "set", at, "up"], check=True)


class Operator:
    """Types commands and carries the stick from machine to machine."""

    def __init__(self, machines: dict[str, Gateway], stick: Path) -> None:
        self._machines, self._stick = machines, stick
        self.commands = 0

    def type(self, machine: str, command: str) -> None:
        """A command, with the stick in its machine; it must succeed."""
        place = self._machines[machine].root / "media/usb"
        shutil.copytree(self._stick, place, dirs_exist_ok=True)
        self._machines[machine].run(command)
        shutil.rmtree(self._stick)
        shutil.move(place, self._stick)
        self.commands += 1

    def page(self, plant: str) -> None:
        """The page, for this plant."""
        for kind, machine, name, text in BLOCK.findall(
            (PAGES / "add-a-plant.md").read_text().replace("plant-b", plant)
        ):
            if kind == "console":
                for line in text.splitlines():
                    self.type(machine, line.removeprefix("$ "))
            else:
                with (self._machines[machine].root / name.lstrip("/")).open("a") as settings:
                    settings.write(f"\n{text}")

    def identity(self, machine: str, of: str, name: str, folder: str, more: str = "") -> None:
        """What the page takes for granted: a certificate of the site's authority, with its revocation list."""
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


@contextmanager
def too_many_sessions(plant: Gateway, zone: str, host: str) -> Iterator[None]:
    """Forty sessions with the certificate of a plant, from its network."""
    pki = plant.root / "etc/bsfg/pki"
    files = [pki / "ca.pem", pki / "zones" / f"{zone}.pem", pki / "zones" / f"{zone}.key"]
    attacker = subprocess.Popen([*plant.in_network, sys.executable, "-c", SESSIONS, host, *files])
    try:
        yield
        assert attacker.poll() is None, "the sessions are open"
    finally:
        attacker.kill()
        attacker.wait()


@ONE
def test_a_site_of_three_plants(target: Target, gateway: Gateway, deb: Path, tmp_path: Path) -> None:
    """Each plant is connected by the page's commands, without a change at the others; a fact of each arrives in the
    IDMZ, and all zones are good. Then one opens too many sessions: the broker's machine sees it, and its node names the
    certificate. Prints how much was typed."""
    stick = tmp_path / "stick"
    stick.mkdir()
    with ExitStack() as stack:
        machines = {"authority": gateway}
        for name in ("idmz", *PLANTS):
            machines[name] = stack.enter_context(clean_gateway(target, tmp_path / name))
        idmz = machines["idmz"]
        for number, plant in enumerate(PLANTS, 1):
            cable(idmz, machines[plant], number)
            with (machines[plant].root / "etc/hosts").open("a") as hosts:
                hosts.write(f"10.20.{number}.1 broker.idmz.example\n")
        with (idmz.root / "etc/hosts").open("a") as hosts:
            hosts.write("127.0.0.1 broker.idmz.example\n")
        for name, machine in machines.items():
            machine.run(f"dpkg -i {machine.copy_in(deb)}")
            if name != "authority":
                stack.enter_context(machine.boot())
        operator = Operator(machines, stick)
        operator.type("authority", "bsfg pki ca --no-passphrase")
        operator.identity("idmz", "broker", "idmz", "/etc/mosquitto/pki", "--host broker.idmz.example")
        operator.identity("idmz", "zone", "idmz", "/etc/bsfg/pki")
        operator.type("idmz", "bsfg init --zone idmz --config /etc/bsfg/idmz.toml")
        with (idmz.root / "etc/bsfg/idmz.toml").open("a") as settings:
            settings.write(BROKER)
        operator.type("idmz", "systemctl enable bsfg@idmz && systemctl start --no-block bsfg@idmz")

        operator.commands = 0
        for plant in PLANTS:
            operator.page(plant)
            machines[plant].run(f"bsfg append --config /etc/bsfg/{plant}.toml batch:B-1042 step_completed '{{}}'")
        print(f"{operator.commands} commands for {len(PLANTS)} plants")
        asked = "bsfg sql --csv --config /etc/bsfg/idmz.toml \"select zone from facts where subject = 'batch:B-1042'\""
        wait_until(lambda: set(idmz.try_(asked).text.split()) >= set(PLANTS), "a fact of each plant", VALUES_S)

        def wait_good(zone: str) -> None:
            status = f"bsfg status --config /etc/bsfg/{zone}.toml"
            wait_until(lambda: machines[zone].try_(status).status == 0, f"{zone} is good", VALUES_S)

        for zone in ("idmz", *PLANTS):
            wait_good(zone)
        seen = "cat /run/bsfg-broker/abuses.json"
        wait_until(lambda: idmz.try_(seen).text == "[]", "the unit has seen nothing", VALUES_S)
        with too_many_sessions(machines["plant-c"], "plant-c", "10.20.3.1"):
            status = "bsfg status --config /etc/bsfg/idmz.toml"
            wait_until(lambda: "zone plant-c: has 4" in idmz.try_(status).text, "the node names it", VALUES_S)
        wait_good("idmz")
