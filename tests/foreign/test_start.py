"""A node starts with everything that is right: `bsfg run` in its own process between kills, a foreign OPC UA server and
a foreign Modbus device, and files that a person has spoiled."""

import asyncio
import json
import signal
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import pytest

from tests.foreign.conftest import COUNT
from tests.foreign.modbus.device import QUICK as QUICK_MODBUS
from tests.foreign.modbus.device import ModbusDevice, modbus_device, words_map
from tests.foreign.plant import QUICK as QUICK_OPCUA
from tests.foreign.plant import bsfg_command, section
from tests.foreign.server import OPEN62541, ForeignServer
from tests.support import command
from tests.waiting import wait_until

pytestmark = [pytest.mark.system, pytest.mark.foreign("open62541"), pytest.mark.foreign("libmodbus")]
START_S = 60.0


class Gateway:
    """plant-a with the sources `plc` and `meter`."""

    def __init__(self, folder: Path, server: ForeignServer, device: ModbusDevice) -> None:
        self.folder, self.file = folder, folder / "node.toml"
        self.plc_file, self.meter_file = folder / "plc.csv", folder / "meter.csv"
        self.plc_file.write_text(server.tags("count"))
        self.meter_file.write_text(words_map(10, 3))
        self.node = f'[node]\nzone = "plant-a"\nstate_dir = {json.dumps(str(folder / "state"))}\n'
        self.plc = section("opcua", name="plc", url=server.url, tags_file="plc.csv", **QUICK_OPCUA)
        given = {"host": "127.0.0.1", "port": device.port, "tags_file": "meter.csv", "address_base": 0}
        self.meter = section("modbus", name="meter", **given, **QUICK_MODBUS)
        self.file.write_text(self.node + self.plc + self.meter)
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start the node; the process before is killed."""
        self.kill()
        with (self.folder / "log").open("ab") as log:
            self._process = subprocess.Popen(bsfg_command("run", "--config", self.file), cwd=self.folder, stderr=log)
        self.status()

    def kill(self) -> None:
        """As a power cut."""
        if self._process is not None:
            assert self._process.poll() is None, (self.folder / "log").read_text()
            self._process.send_signal(signal.SIGKILL)
            self._process.wait()
            self._process = None

    def status(self) -> tuple[int, dict[str, Any]]:
        """Exit status and content of `bsfg status`, once the node answers in time: a busy machine delays it."""
        done = command.bsfg(self.folder, "status", "--json")

        def has_answered() -> bool:
            nonlocal done
            done = done if done.stdout else command.bsfg(self.folder, "status", "--json")
            return bool(done.stdout)

        wait_until(has_answered, "a status", START_S)
        return done.returncode, json.loads(done.stdout)

    def reasons(self) -> dict[str, str]:
        """What the status reports, by subject."""
        return {reason["subject"]: reason["text"] for reason in self.status()[1]["reasons"]}

    def tags(self) -> dict[str, int]:
        """The tags of each source that is connected and gives values in this process."""
        return {
            source["name"]: source["tags"]
            for source in self.status()[1]["sources"]
            if source["connected"] and source["values_total"]
        }

    def wait_values(self, **tags: int) -> None:
        """Until exactly these sources give values, with so many tags."""
        wait_until(lambda: self.tags() == tags, f"values of {tags}", START_S)

    def wait_good(self) -> None:
        """Until nothing is reported, and the exit status says so."""
        wait_until(lambda: self.status()[0] == 0 and not self.reasons(), "a good status", START_S)

    def check(self) -> tuple[int, str]:
        """Exit status and output of `bsfg check`."""
        done = command.bsfg(self.folder, "check")
        return done.returncode, done.stdout

    def rows(self, query: str) -> list[dict[str, Any]]:
        """The rows of a query on the store."""
        return [json.loads(line) for line in command.bsfg(self.folder, "sql", "--json", query).stdout.splitlines()]


@pytest.fixture(scope="module", name="devices")
def devices_of_the_plant(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[ForeignServer, ModbusDevice]]:
    """Both devices, for all tests."""
    with ExitStack() as stack:
        made = ForeignServer(tmp_path_factory.mktemp("server"), OPEN62541, variables=[COUNT])
        server = stack.enter_context(closing(made))
        asyncio.run(server.start())
        yield server, stack.enter_context(modbus_device(tmp_path_factory.mktemp("device")))


@pytest.fixture
def gateway(devices: tuple[ForeignServer, ModbusDevice], tmp_path: Path) -> Iterator[Gateway]:
    """A new node; it is not started yet."""
    found = Gateway(tmp_path, *devices)
    yield found
    found.kill()


def test_a_typing_mistake_in_a_tag_file_costs_nothing(gateway: Gateway) -> None:
    """Restarted with the mistake, the node reads both sources as before, alarms and names the row; `check` refuses.
    Corrected, with one tag more, the file comes into force by itself. Then it is missing: the map of the last
    correction goes on."""
    gateway.start()
    gateway.wait_values(plc=1, meter=3)
    gateway.meter_file.write_text(words_map(10, 3).replace("uint16", "uint61", 1))
    gateway.start()
    gateway.wait_values(plc=1, meter=3)
    code, found = gateway.status()
    assert (code, found["summary"].partition(":")[0]) == (1, "broken")
    assert "its tag file is not in force: meter.csv row 2 column type: 'uint61'" in gateway.reasons()["source meter"]
    assert gateway.check()[0] == 1
    assert "uint61" in command.bsfg(gateway.folder, "store", "stats").stdout
    gateway.meter_file.write_text(words_map(10, 4))
    gateway.wait_values(plc=1, meter=4)
    gateway.wait_good()
    gateway.meter_file.unlink()
    gateway.start()
    gateway.wait_values(plc=1, meter=4)
    assert "meter.csv: does not exist" in gateway.reasons()["source meter"]


SPOILED = ("address_base = 0", "address_base = 4")


def test_a_mistake_in_one_section(gateway: Gateway) -> None:
    """In a new node the source of the section is left out and the other is read; corrected, it is read without a
    restart. In a node that had read it, it goes on as before, and its tags are not taken for removed."""
    good = gateway.file.read_text()
    gateway.file.write_text(good.replace(*SPOILED))
    gateway.start()
    gateway.wait_values(plc=1)
    assert (gateway.status()[0], gateway.check()[0]) == (1, 1)
    assert any("is left out" in text for text in gateway.reasons().values())
    gateway.file.write_text(good)
    gateway.wait_values(plc=1, meter=3)
    gateway.wait_good()
    gateway.file.write_text(good.replace(*SPOILED))
    gateway.start()
    gateway.wait_values(plc=1, meter=3)
    assert gateway.status()[0] == 1
    assert "goes on as it was last in force" in gateway.reasons()["source meter"]
    gateway.file.write_text(good)
    gateway.wait_good()
    ended = gateway.rows(f"select subject from facts where quality = {0x808D0000} and subject like 'tag:f/%'")
    assert ended == []


def test_a_source_that_was_left_out_keeps_its_tags(gateway: Gateway) -> None:
    """A node that lost what it last ran with leaves the source out. Its tags are not recorded as removed."""
    gateway.start()
    gateway.wait_values(plc=1, meter=3)
    gateway.kill()
    (gateway.folder / "state" / "in_force" / "settings.json").unlink()
    gateway.file.write_text(gateway.file.read_text().replace(*SPOILED))
    gateway.start()
    gateway.wait_values(plc=1)
    gateway.wait_values(plc=1)
    assert gateway.rows(f"select subject from facts where quality = {0x808D0000}") == []


def test_what_cannot_run_stops_nothing_else(gateway: Gateway) -> None:
    """A broker whose name is not known, one without certificates, a peer that names no broker, sources whose
    certificate, key or password cannot be read: each is named, and both devices are read."""
    state = gateway.folder / "state"
    files = {"ca_file": "ca.pem", "cert_file": "c.pem", "key_file": "c.key"}
    (gateway.folder / "bad.key").write_text("no key")
    (gateway.folder / "bad.der").write_text("no certificate")
    secured = {"url": "opc.tcp://127.0.0.1:1", "reconnect_delay_ms": 50}
    (gateway.folder / "a.csv").write_text(gateway.plc_file.read_text().replace("f/", "a/"))
    (gateway.folder / "b.csv").write_text(gateway.plc_file.read_text().replace("f/", "b/"))
    (gateway.folder / "c.csv").write_text(words_map(10, 1, scope="c"))
    gateway.file.write_text(
        gateway.file.read_text()
        + section("broker", name="far", host="broker.invalid", **files)
        + section("peer", zone="idmz", broker="far", exports=["facts.telemetry"])
        + section("peer", zone="lost", broker="fra", exports=["facts.telemetry"])
        + section(
            "opcua", name="a", tags_file="a.csv", certificate_file="bad.der", private_key_file="bad.key", **secured
        )
        + section("opcua", name="b", tags_file="b.csv", user_name="u", password_file="none", **secured)
        + section(
            "modbus", name="c", tags_file="c.csv", host="127.0.0.1", transport="tls", ca_file="none", address_base=0
        )
    )
    gateway.start()
    gateway.wait_values(plc=1, meter=3)
    expected = {
        "broker far": "c.pem",
        "peer lost": "no [[broker]] is named 'fra'",
        "source a": "bad.",
        "source b": "none",
        "source c": "none",
    }

    def named() -> bool:
        found = gateway.reasons()
        return all(part in found.get(subject, "") for subject, part in expected.items())

    wait_until(named, "all of them named", START_S)
    assert gateway.status()[0] == 1
    assert (state / "in_force").is_dir()


@pytest.mark.parametrize(
    "spoil, why",
    [
        (('zone = "plant-a"', 'zone = "plant-a'), "node: is not TOML"),
        (("[node]", "[store]\nbytes_max = 3\n[node]"), "store.bytes_max = 3"),
        (('zone = "plant-a"', 'zone = "Plant A"'), "node.zone"),
    ],
)
def test_what_a_node_cannot_start_without(gateway: Gateway, spoil: tuple[str, str], why: str) -> None:
    """Zone and state folder; the limits of the store, where no earlier ones are known: the process ends with the
    reason."""
    gateway.file.write_text(gateway.file.read_text().replace(*spoil))
    done = command.process(gateway.folder, "run")
    assert done.returncode == 1
    assert why in done.stderr
