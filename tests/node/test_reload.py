"""A running node takes over a changed node.toml: `bsfg run` in its own process, two real brokers, a real Modbus and a
real OPC UA server. Whether a connection was disturbed is read from the kernel's table of connections, not from the
node."""

import json
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from agent.demo.plant.tags import modbus_tags_csv, opcua_tags_csv
from tests.ingest.fakes import Program, running
from tests.support import command
from tests.support.mosquitto import Mosquitto
from tests.waiting import wait_until

pytestmark = pytest.mark.system


class Gateway:
    """plant-a with two sources and two brokers, observed from outside."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self.folder, self.file, self.log = folder, folder / "node.toml", folder / "log"
        self.bsfg = partial(command.bsfg, folder)
        first = stack.enter_context(Mosquitto.started(folder / "site", links=("plant-a:idmz", "plant-a:plant-b")))
        second = stack.enter_context(first.second_process("second", ("enterprise:plant-a",)))
        self.brokers: dict[str, Mosquitto] = {"first": first, "second": second}
        self.sources: dict[str, Program] = {
            "meter": stack.enter_context(running("modbus_server")),
            "plc": stack.enter_context(running("opcua_server")),
        }
        self.ports = {name: server.port for name, server in {**self.brokers, **self.sources}.items()}
        (folder / "meter.csv").write_text(modbus_tags_csv())
        (folder / "plc.csv").write_text(opcua_tags_csv())
        self.file.write_text(self.text())
        with self.log.open("wb") as log:
            self.process = subprocess.Popen([sys.executable, "-m", "agent.cli", "run"], cwd=folder, stderr=log)
        stack.callback(self.stop)
        wait_until(lambda: all(self.connections().values()), "connections to all")
        wait_until(self.is_well, "values of both sources")

    def text(self) -> str:
        """The file at the start."""
        lines = ['[node]\nzone = "plant-a"\n[store]\ncommit_interval_ms = 250\n']
        for name, broker in self.brokers.items():
            lines.append(broker.section("plant-a", name))
        lines += ['[[peer]]\nzone = "idmz"\nbroker = "first"\nexports = ["facts.telemetry"]\n']
        lines += ['[[peer]]\nzone = "enterprise"\nbroker = "second"\npulls = ["orders"]\n']
        lines.append(
            f'[[opcua]]\nname = "plc"\nurl = "opc.tcp://127.0.0.1:{self.ports["plc"]}/plant"\ntags_file = "plc.csv"\n'
            'security_policy = "None"\nsecurity_mode = "None"\ninsecure = true\n'
        )
        lines.append(
            f'[[modbus]]\nname = "meter"\nhost = "127.0.0.1"\nport = {self.ports["meter"]}\ntags_file = "meter.csv"\n'
            "address_base = 0\nunit_id = 1\nconnections_max = 1\n"
        )
        return "".join(lines)

    def connections(self) -> dict[str, frozenset[int]]:
        """The node's connections to each server, by its local port. A connection that ended and was made again has
        another port."""
        found: dict[str, set[int]] = {name: set() for name in self.ports}
        own = set()
        for link in Path(f"/proc/{self.process.pid}/fd").iterdir():
            with suppress(FileNotFoundError):  # closed meanwhile
                own.add(link.readlink().name)
        for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
            words = line.split()
            local, remote = (int(words[index].rpartition(":")[2], 16) for index in (1, 2))
            for name, port in self.ports.items():
                if remote == port and words[3] == "01" and f"socket:[{words[9]}]" in own:
                    found[name].add(local)
        return {name: frozenset(ports) for name, ports in found.items()}

    def status(self) -> dict[str, Any]:
        """The output of `bsfg status --json`."""
        done = self.bsfg("status", "--json")
        found: dict[str, Any] = json.loads(done.stdout) if done.stdout else {}
        return found

    def is_well(self) -> bool:
        """Whether both sources give values and both brokers are connected."""
        found = self.status()
        sources = found.get("sources", [])
        return (
            bool(sources)
            and all(source["connected"] and source["values_total"] for source in sources)
            and all(broker["connected"] for broker in found["brokers"])
        )

    def reasons(self) -> list[str]:
        """What the status reports about node.toml."""
        return [reason["text"] for reason in self.status().get("reasons", []) if reason["subject"] == "node.toml"]

    def gaps(self) -> set[str]:
        """Sources for which a gap was recorded."""
        query = "select distinct subject from facts where predicate like '%gap%'"
        done = self.bsfg("sql", "--json", query)
        return {json.loads(line)["subject"] for line in done.stdout.splitlines()}

    def stop(self) -> None:
        """Stop it as systemd does."""
        self.process.send_signal(signal.SIGTERM)
        assert self.process.wait(command.LIMIT_S) == 0, self.log.read_text()


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    """The node with its servers. Every test leaves the file of the start in force."""
    with ExitStack() as stack:
        yield Gateway(tmp_path_factory.mktemp("gateway"), stack)


@pytest.fixture(autouse=True)
def _restored(gateway: Gateway) -> Iterator[None]:
    yield
    gateway.file.write_text(gateway.text())
    assert gateway.bsfg("reload").returncode == 0
    wait_until(gateway.is_well, "the node as it was")


NEW_PEER = 'bytes_per_second_max = 100_000\n[[peer]]\nzone = "plant-b"\nbroker = "second"\nasks = true\n'


@pytest.mark.parametrize(
    "line, more, applied, disturbed",
    [
        ("unit_id = 1\n", "poll_interval_ms = 300\n", ["modbus meter"], "meter"),
        ('pulls = ["orders"]\n', NEW_PEER, ["peer enterprise", "peer plant-b"], "second"),
    ],
)
def test_a_change_disturbs_no_other_part(
    gateway: Gateway, line: str, more: str, applied: list[str], disturbed: str
) -> None:
    """A new interval of the meter, or a limit of a peer and another peer at its broker, cost only the connection to
    that meter or broker; the OPC UA session stays, and has no gap."""
    before, gaps = gateway.connections(), gateway.gaps()
    gateway.file.write_text(gateway.text().replace(line, line + more))
    answer = json.loads(gateway.bsfg("reload", "--json").stdout)
    assert answer == {"applied": applied, "needs_restart": [], "tag_file_problems": []}
    wait_until(lambda: gateway.connections()[disturbed] and gateway.is_well(), "the connection again")
    after = gateway.connections()
    assert not after.pop(disturbed) & before.pop(disturbed)
    assert after == before
    assert not {gap for gap in gateway.gaps() - gaps if "plc" in gap}


def test_a_source_comes_and_another_goes(gateway: Gateway) -> None:
    """The tags of a removed source are recorded as out of service; an added source gives values; the unchanged OPC UA
    session stays."""
    before = gateway.connections()
    new = gateway.text().replace('name = "meter"', 'name = "meter-2"').replace("meter.csv", "meter-2.csv")
    (gateway.folder / "meter-2.csv").write_text(modbus_tags_csv().replace("unit1.", "unit9."))
    gateway.file.write_text(new)
    assert gateway.bsfg("reload").stdout == "reloaded: modbus meter, modbus meter-2\n"
    wait_until(gateway.is_well, "the new source")
    assert {source["name"] for source in gateway.status()["sources"]} == {"plc", "meter-2"}
    assert gateway.connections()["plc"] == before["plc"]
    wait_until(lambda: "tags_removed_while_stopped" in gateway.log.read_text(), "the removed tags recorded")


def test_a_bad_file_changes_nothing(gateway: Gateway) -> None:
    """A typing error, a file of another zone, a missing tag file and a missing key are each refused with exit status 1
    and the reason, which the status keeps until a reload succeeds; no connection is touched."""
    before = gateway.connections()
    text = gateway.text()
    for bad, why in [
        (text.replace("unit_id = 1", 'unit_id = "x"'), "modbus[0].unit_id"),
        (text.replace('"plant-a"\n[store]', '"plant-z"\n[store]'), "node.zone, node.name cannot change"),
        (text.replace('tags_file = "meter.csv"', 'tags_file = "none.csv"'), "none.csv"),
        (text.replace('key_file = "', 'key_file = "/nowhere', 1), "/nowhere"),
    ]:
        assert bad != text
        gateway.file.write_text(bad)
        done = gateway.bsfg("reload")
        assert (done.returncode, done.stdout) == (1, "")
        assert why in done.stderr
        gateway.file.write_text(text)  # `status` with another zone would ask another node
        assert any(why in reason for reason in gateway.reasons()), (why, gateway.reasons())
    assert gateway.connections() == before
    assert gateway.bsfg("reload").returncode == 0
    wait_until(lambda: not gateway.reasons(), "a status without a reason")
    assert gateway.connections() == before


def test_what_needs_a_restart_is_named(gateway: Gateway) -> None:
    """The command and the status name what only a restart takes over; the rest of the file is in force."""
    new = gateway.text().replace("commit_interval_ms = 250", "commit_interval_ms = 500\nbytes_max = 500_000_000")
    gateway.file.write_text(new)
    done = gateway.bsfg("reload")
    assert done.stdout == (
        "reloaded: store.bytes_max\nnote: not in force until the node is restarted: store.commit_interval_ms\n"
    )
    assert gateway.reasons() == ["not in force until a restart: store.commit_interval_ms"]
    assert gateway.bsfg("status").returncode == 0


def test_what_is_refused_is_told_line_by_line(gateway: Gateway) -> None:
    """Each problem of node.toml has its line. A tag file that was edited a moment ago is read too: the reload does not
    succeed while one is refused, and does once it is right."""
    gateway.file.write_text(
        gateway.text().replace("unit_id = 1", "unit = 1").replace("address_base = 0", "address_base = 2")
    )
    done = gateway.bsfg("reload")
    assert done.returncode == 1
    first, *problems = done.stderr.splitlines()
    assert first == "bsfg: node.toml: 2 problems"
    assert [line.split()[0] for line in problems] == ["modbus[0].unit", "modbus[0].address_base"]
    gateway.file.write_text(gateway.text())
    tags = gateway.folder / "meter.csv"
    right = tags.read_text()
    tags.write_text(right.replace("uint16", "uint61"))
    done = gateway.bsfg("reload")
    nothing = "reloaded: nothing has changed for the node; [page] and [[notify]] need a restart of the page\n"
    assert (done.returncode, done.stdout) == (1, nothing)
    assert "bsfg: a tag file is refused\n  meter.csv row 2 column type: 'uint61'" in done.stderr
    assert json.loads(gateway.bsfg("reload", "--json").stdout)["tag_file_problems"]
    tags.write_text(right)
    assert gateway.bsfg("reload").returncode == 0


def test_sighup_reloads(gateway: Gateway) -> None:
    """The signal reloads too, without an answer, and does not end the process."""
    count = gateway.log.read_text().count('"reloaded"')
    gateway.file.write_text(gateway.text() + '[[stream]]\nname = "orders"\nkeep_hours = 1\n')
    gateway.process.send_signal(signal.SIGHUP)
    wait_until(lambda: gateway.log.read_text().count('"reloaded"') > count, "the reload")
    (applied,) = re.findall(r'"reloaded", "applied": (\[.*?\])', gateway.log.read_text())[-1:]
    assert json.loads(applied) == ["stream orders"]
    assert gateway.process.poll() is None


def test_nothing_to_reload(tmp_path: Path) -> None:
    """If no node runs, the command says so and makes no store."""
    (tmp_path / "node.toml").write_text('[node]\nzone = "plant-a"\n')
    done = command.bsfg(tmp_path, "reload")
    assert done.returncode == 1
    assert "no node runs in" in done.stderr
    assert not (tmp_path / "state").exists()
