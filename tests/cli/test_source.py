"""`bsfg source` and `bsfg check --connect`: the same words for both protocols, with and without a running node."""

import json
import re
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from agent.cli.source import access, commands
from agent.demo.plant.tags import modbus_tags_csv, opcua_tags_csv
from agent.local_socket import SourceRetried
from tests.cli.conftest import Bsfg, typed
from tests.cli.test_sources_page import node
from tests.ingest.fakes import Program, running
from tests.support.mosquitto import Mosquitto, free_port
from tests.waiting import wait_until

pytestmark = pytest.mark.system


@pytest.fixture(scope="module")
def plc() -> Iterator[Program]:
    """The plant's OPC UA server, without security."""
    with running("opcua_server") as program:
        yield program


def write_node(folder: Path, meter_port: int, plc_port: int, more: str = "", **meter: Any) -> None:
    """node.toml with both sources; `meter` are more settings of the Modbus one."""
    (folder / "meter.csv").write_text(modbus_tags_csv())
    (folder / "plc.csv").write_text(opcua_tags_csv())
    settings = "".join(f"{name} = {json.dumps(value)}\n" for name, value in meter.items())
    (folder / "node.toml").write_text(
        '[node]\nzone = "plant-a"\n'
        f'[[opcua]]\nname = "plc"\nurl = "opc.tcp://127.0.0.1:{plc_port}/plant"\ntags_file = "plc.csv"\n'
        'security_policy = "None"\nsecurity_mode = "None"\ninsecure = true\n'
        f'[[modbus]]\nname = "meter"\nhost = "127.0.0.1"\nport = {meter_port}\ntags_file = "meter.csv"\n'
        f"address_base = 0\n{settings}{more}"
    )


@contextmanager
def running_node(folder: Path, bsfg: Bsfg) -> Iterator[None]:
    """`bsfg run` in a process of its own, for the length of a block, once all its sources are connected."""
    with node(folder):
        wait_until(lambda: {source["state"] for source in listed(bsfg)} == {"connected"}, "connected sources")
        yield


def listed(bsfg: Bsfg) -> list[dict[str, Any]]:
    """What `source list` says for programs."""
    return lines(bsfg("source", "list", "--json"))


def lines(done: "subprocess.CompletedProcess[str]") -> list[dict[str, Any]]:
    """The JSON objects that a command printed."""
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_without_a_node_the_files_are_listed(meter: Program, plc: Program, bsfg: Bsfg, tmp_path: Path) -> None:
    """Name, protocol, endpoint and number of tags, with the remark that no node runs; a tag file with problems shows
    its first one."""
    write_node(tmp_path, meter.port, plc.port)
    done = bsfg("source", "list")
    assert (done.returncode, "no node runs here" in done.stderr) == (0, True)
    assert re.search(rf"plc +opcua +opc.tcp://127.0.0.1:{plc.port}/plant +40", done.stdout)
    assert re.search(rf"meter +modbus +127.0.0.1:{meter.port} +26", done.stdout)
    (tmp_path / "meter.csv").write_text("tag,register\n")
    found = listed(bsfg)[1]
    assert (found["is_node_running"], found["state"], found["tags"]) == (False, None, None)
    assert "meter.csv" in found["tags_problem"]


@pytest.mark.parametrize("name", ["plc", "meter"])
def test_a_source_is_tested_and_read_without_a_node(
    meter: Program, plc: Program, bsfg: Bsfg, tmp_path: Path, name: str
) -> None:
    """The steps end with the values of tags, and `read` gives every tag, decoded as the source decodes it."""
    write_node(tmp_path, meter.port, plc.port)
    done = bsfg("source", "test", name, "--all", "--json")
    assert done.returncode == 0, done.stdout
    steps = lines(done)
    assert {step["outcome"] for step in steps} <= {"ok", "note"}
    assert re.fullmatch(r"all \d+ tags read, each has a value", steps[-1]["what"])
    done = bsfg("source", "read", name, "--json")
    found = {line["tag"]: line for line in lines(done)}
    assert done.returncode == 0
    assert {value["status"] for value in found.values()} == {"Good"}
    if name == "plc":
        assert len(found) == 40
        assert found["plant/temperature_01"]["source_time"].endswith("Z")
    else:
        assert len(found) == 26
        assert 226 <= found["plant/unit1.voltage_l1"]["value"] <= 234
        assert found["plant/unit1.model"]["value"] == "PM-1"
    assert not (tmp_path / "state").exists()


def test_on_a_running_node(meter: Program, plc: Program, bsfg: Bsfg, tmp_path: Path) -> None:
    """The list shows the state and every tag good; test and read work beside the node, whose sources stay connected."""
    write_node(tmp_path, meter.port, plc.port)
    with running_node(tmp_path, bsfg):
        wait_until(lambda: [source["tags_good"] for source in listed(bsfg)] == [40, 26], "good tags")
        wait_until(lambda: all(source["last_value_unix_ms"] for source in listed(bsfg)), "stored values")
        shown = bsfg("source", "list").stdout
        assert re.search(r"plc +opcua +\S+ +connected +40 +40 +0 +0 +255 +[\d.]+ s ago", shown), shown
        for name in ("plc", "meter"):
            assert bsfg("source", "test", name).returncode == 0
            assert bsfg("source", "read", name).returncode == 0
        assert {source["state"] for source in listed(bsfg)} == {"connected"}
        done = bsfg("source", "read", "meter", "plant/unit1.model")
        assert re.search(r"plant/unit1.model +PM-1 +Good", done.stdout)
        assert bsfg("check", "--connect").returncode == 0


def test_a_modbus_device_is_asked_by_the_node(
    meter: Program, plc: Program, bsfg: Bsfg, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The running node reads for the command, in as many requests as it takes, and says so; what it does not read yet
    is named; without a node the command connects by itself."""
    monkeypatch.setattr(access, "TAGS_PER_REQUEST", 10)
    write_node(tmp_path, meter.port, plc.port)
    with running_node(tmp_path, bsfg):
        done = bsfg("source", "test", "meter", "--json")
        assert done.returncode == 0, done.stdout
        first, *_, last = lines(done)
        assert "has read the values: many devices accept only one connection" in first["what"]
        assert last["what"] == "20 of 26 tags read, each has a value"
        done = bsfg("source", "read", "meter", "--json")
        found = {line["tag"]: line for line in lines(done)}
        assert (done.returncode, len(found)) == (0, 26)
        assert 226 <= found["plant/unit1.voltage_l1"]["value"] <= 234
        rows = modbus_tags_csv().replace("plant/unit1.model", "plant/unit1.name")
        (tmp_path / "meter.csv").write_text(rows + "plant/unit1.bad,1,input,5,nonsense,,,\r\n")
        (tmp_path / "alone.toml").write_text((tmp_path / "node.toml").read_text().replace("meter.csv", "alone.csv"))
        (tmp_path / "alone.csv").write_text(rows)
        done = bsfg("source", "read", "meter", "plant/unit1.name", "--config", "alone.toml")
        assert done.returncode == 1
        assert "the running node does not read it" in done.stdout
    (tmp_path / "meter.csv").write_text(modbus_tags_csv())
    assert "connection       to 127.0.0.1:" in bsfg("source", "test", "meter").stdout


@pytest.mark.parametrize(
    "name, row, why, todo",
    [
        (
            "meter",
            "plant/unit1.none,1,input,500,uint16,,,",
            "unit 1 refuses it: illegal data address (2)",
            "modbus probe meter",
        ),
        ("plc", "plant/none,nsu=urn:bsfg:demo:plant;s=none,,,", "BadNodeIdUnknown", "opcua browse plc"),
    ],
)
def test_a_tag_that_the_device_does_not_have(
    meter: Program, plc: Program, bsfg: Bsfg, tmp_path: Path, name: str, row: str, why: str, todo: str
) -> None:
    """Test and read are status 1; the tag is named with its address, the device's reason and what to do; the others
    have their values."""
    write_node(tmp_path, meter.port, plc.port)
    with (tmp_path / f"{name}.csv").open("a") as file:
        file.write(row + "\r\n")
    done = bsfg("source", "test", name, "--all")
    assert done.returncode == 1
    assert re.search(r"failed +tags +all \d+ tags read, 1 without a value \(1 BadNodeIdUnknown\)", done.stdout)
    assert why in done.stdout
    assert todo in done.stdout
    done = bsfg("source", "read", name, "--json")
    bad = [line for line in lines(done) if line["status"] != "Good"]
    assert (done.returncode, len(bad), bad[0]["value"]) == (1, 1, None)


def test_what_does_not_answer(plc: Program, bsfg: Bsfg, tmp_path: Path) -> None:
    """A unit that is silent and a device that is not there each end the test with the step and what to do."""
    with running("modbus_server", "--silent", "2") as meter:
        write_node(tmp_path, meter.port, plc.port, timeout_ms=200)
        done = bsfg("source", "test", "meter")
        assert done.returncode == 1
        assert re.search(r"failed +units +no answer from unit 2; 1 answers\n +-> .*bsfg modbus scan meter", done.stdout)
    write_node(tmp_path, free_port(), free_port())
    done = bsfg("source", "test", "meter")
    assert done.returncode == 1
    assert re.search(r"failed +connection +no connection to .*\n +-> is the device on", done.stdout)
    done = bsfg("source", "read", "meter")
    assert (done.returncode, "is the device on" in done.stderr) == (1, True)
    assert bsfg("source", "test", "plc").returncode == 1


def test_wrong_names_are_usage_errors(bsfg: Bsfg, tmp_path: Path) -> None:
    """A source or tag that is not configured is status 2 and names what there is."""
    write_node(tmp_path, 1, 1)
    done = bsfg("source", "test", "metre")
    assert (done.returncode, "it has plc, meter" in done.stderr) == (2, True)
    done = bsfg("source", "read", "meter", "a/b")
    assert (done.returncode, "source meter has no tag 'a/b'; its tag file has 26 others" in done.stderr) == (2, True)


def test_a_retry_speaks_of_refused_tags_where_there_are_some(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An OPC UA server refuses tags; a Modbus device that is connected has none to try again."""
    write_node(tmp_path, 1, 1)
    monkeypatch.setattr(commands, "ask", lambda *_: SourceRetried("connected"))
    config = ("--config", str(tmp_path / "node.toml"))
    assert typed("source", "retry", "plc", *config).output.endswith("; tags that its server refuses are tried now\n")
    assert typed("source", "retry", "meter", *config).output == "meter is connected already\n"


def test_check_connect_tries_everything(meter: Program, plc: Program, bsfg: Bsfg, tmp_path: Path) -> None:
    """A line for each source, broker and peer; the one that fails is named with what to do, and decides the status;
    plain `check` connects to nothing."""
    with Mosquitto.started(tmp_path / "mqtt", zones=("plant-a", "idmz"), links=("plant-a:idmz",)) as broker:
        more = f'{broker.section("plant-a")}[[peer]]\nzone = "idmz"\nbroker = "site"\nexports = ["facts.telemetry"]\n'
        write_node(tmp_path, meter.port, plc.port, more)
        done = bsfg("check", "--connect")
        assert done.returncode == 0, done.stdout
        for tried in ("source plc: 20 of 40 tags", "source meter: 20 of 26 tags", "broker site: ", "peer idmz: "):
            assert re.search(rf"^  ok +{tried}", done.stdout, re.MULTILINE), done.stdout
    done = bsfg("check", "--connect", "--json")
    assert done.returncode == 1
    tried = {
        (connection["kind"], connection["name"]): connection for connection in json.loads(done.stdout)["connections"]
    }
    assert [result["is_bad"] for result in tried.values()] == [False, False, True, True]
    assert tried["broker", "site"]["todo"]
    assert bsfg("check").returncode == 0
    (tmp_path / "meter.csv").write_text("tag,register\n")
    done = bsfg("check", "--connect")
    assert "failed  source meter: not tried: its tag file has problems" in done.stdout
