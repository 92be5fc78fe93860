"""One real chain from device to table, whose parts are not ours where that is possible: an OPC UA server on node-opcua,
a Modbus device on libmodbus, two nodes of ours, Mosquitto, Chromium, and Spark.

What each part does under faults is in the tests marked `system` (`make test-long`).
"""

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, closing
from datetime import UTC, date, datetime, time, timedelta
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from pyarrow.dataset import dataset

from agent.demo.mosquitto import Mosquitto
from agent.demo.processes import Child
from agent.fact_store import StoreReader
from tests.foreign.modbus.device import HOST, LIBMODBUS, ModbusDevice, modbus_device, tag_map
from tests.foreign.server import NODE_OPCUA, ForeignServer
from tests.replication.nodes import write_node_toml
from tests.spark.making import QUICK_JVM
from tests.support.chromium import chromium
from tests.waiting import LIMIT_S, wait_until

SPARK_S_MAX, CHAIN_S_MAX = 300, 600  # ten times what they take
PLANT, ENTERPRISE, LAKE = "plant-a", "enterprise", "lake"
TELEMETRY = "facts.telemetry"
COUNTERS = ("first", "second")  # at the server; a fact for each change
LEVEL = "level"  # at the server; it only has the values of LEVELS, in minutes after yesterday's noon
LEVELS = {0: None, 1: 10.0, 2: 30.0, 3: None}  # None: a bad reading
REGISTERS = (10, 11)  # at the device; each holds how often it was read


class Chain(NamedTuple):
    """The running parts."""

    server: ForeignServer
    device: ModbusDevice
    broker: Mosquitto
    nodes: dict[str, Child]
    folder: Path

    def end(self, zone: str) -> int:
        """The end of the telemetry in a zone's store."""
        with closing(StoreReader(self.folder / zone / "state" / "facts.db")) as reader:
            return reader.end_offset(TELEMETRY)

    def wait_level(self, beyond: int) -> None:
        """Wait until the enterprise holds what the plant holds, which is more than `beyond`."""
        wait_until(lambda: self.end(ENTERPRISE) == self.end(PLANT) > beyond, "the enterprise to catch up", LIMIT_S)


@pytest.fixture
def chain(tmp_path: Path) -> Iterator[Chain]:
    """Server, device, broker and both nodes, with facts of both sources at the enterprise."""
    for installed in (NODE_OPCUA, LIBMODBUS):
        if why := installed.why_not():
            pytest.skip(why)
    variables: list[dict[str, Any]] = [{"name": name, "type": "Int32", "period_ms": 50} for name in COUNTERS]
    variables.append({"name": LEVEL, "type": "Double"})
    with ExitStack() as stack:
        server = stack.enter_context(closing(ForeignServer(tmp_path / "server", variables=variables)))
        asyncio.run(server.start())
        device = stack.enter_context(modbus_device(tmp_path / "device"))
        device.count(1, "holding", REGISTERS[0], REGISTERS[-1])
        links = [f"{PLANT}:{ENTERPRISE}", f"{ENTERPRISE}:{LAKE}"]
        broker = stack.enter_context(Mosquitto.started(tmp_path / "broker", (PLANT, ENTERPRISE, LAKE), links))
        sections = {
            PLANT: f'zone = "{ENTERPRISE}"\nexports = ["{TELEMETRY}"]\n' + sources(tmp_path, server, device),
            ENTERPRISE: f'zone = "{PLANT}"\npulls = ["{TELEMETRY}"]\n'
            f'[[peer]]\nbroker = "site"\nzone = "{LAKE}"\nexports = ["{TELEMETRY}"]\n'
            "[page]\nlisten_port = 0\n",
        }
        nodes = {}
        for zone, lines in sections.items():
            config = write_node_toml(tmp_path / zone, broker, zone, lines)
            command = [sys.executable, "-m", "agent.cli", "run", "--config", config]
            nodes[zone] = stack.enter_context(Child(zone, command, tmp_path / f"{zone}.log"))
            nodes[zone].start()
        for node in nodes.values():
            node.wait_ready(lambda node=node: "node_ready" in node.log_text())  # type: ignore[misc]
        made = Chain(server, device, broker, nodes, tmp_path)
        for source in ("press", "meter"):
            up = f'"source_connected", "source": "{source}"'
            wait_until(lambda up=up: up in nodes[PLANT].log_text(), f"{source} to deliver", LIMIT_S)  # type: ignore[misc]
        made.wait_level(20)
        yield made


def sources(folder: Path, server: ForeignServer, device: ModbusDevice) -> str:
    """The sections of both sources. Their limits are wide, so that a machine that stalls loses nothing."""
    opcua, modbus = folder / "press.csv", folder / "meter.csv"
    opcua.write_text(server.tags(*COUNTERS, LEVEL))
    modbus.write_text(tag_map((f"m/{register}", 1, "holding", register, "uint16") for register in REGISTERS))
    return f"""[[opcua]]
name = "press"
url = "{server.url}"
tags_file = "{opcua}"
security_policy = "None"
security_mode = "None"
insecure = true
sampling_interval_ms = 0
publishing_interval_ms = 100
queue_size = 2000
[[modbus]]
name = "meter"
host = "{HOST}"
port = {device.port}
tags_file = "{modbus}"
address_base = 0
poll_interval_ms = 100
timeout_ms = 20000
"""


async def set_levels(chain: Chain) -> datetime:
    """Let the server have LEVELS; returns yesterday's noon."""
    noon = datetime.combine(datetime.now(UTC).date() - timedelta(days=1), time(12), UTC)
    for minute, value in LEVELS.items():
        status = "BadSensorFailure" if value is None else "Good"
        at_s = int(noon.timestamp()) + 60 * minute
        await chain.server.set(LEVEL, 0.0 if value is None else value, status, at_s * 1_000_000_000)
    return noon


def land(chain: Chain) -> dict[str, list[int]]:
    """Let Spark land what the enterprise node serves, over MQTT as the zone `lake`, clean it and roll it up. Returns
    the values of each tag by offset."""
    mine, table = chain.broker.identity(LAKE), chain.folder / "table"
    files = {"caFile": mine.ca_file, "certFile": mine.cert_file, "keyFile": mine.key_file}
    source = {"host": HOST, "port": chain.broker.port, "peer": ENTERPRISE, "consumer": f"{LAKE}.table", **files}
    settings = chain.folder / "jobs.toml"
    settings.write_text(
        '[source]\ntransport = "mqtt"\n'
        + "".join(
            f"{name} = {value if isinstance(value, int) else json.dumps(str(value))}\n"
            for name, value in source.items()
        )
        + f'[land]\ntable = "{table}"\ncheckpoint = "{chain.folder / "checkpoint"}"\nformat = "parquet"\n'
        + "".join(f'[{name}]\ntable = "{chain.folder / name}"\n' for name in ("clean", "rollup"))
    )
    command = [sys.executable, "-m", "pyspark_bsfg", settings]
    environment = os.environ | {"JAVA_TOOL_OPTIONS": QUICK_JVM}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment, timeout=SPARK_S_MAX)
    assert done.returncode == 0, done.stderr[-2000:]
    rows = dataset(table, format="parquet", partitioning="hive").to_table().sort_by("offset").to_pylist()
    found: dict[str, list[int]] = {}
    for row in rows:
        if row["quality"] == 0:
            found.setdefault(row["tag"], []).append(row["value_int"])
    return found


def rolled_level(rollup: Path, day: date) -> dict[str, Any]:
    """The one row of LEVEL in a day, in a table of windows of an hour or more."""
    rows: list[dict[str, Any]] = dataset(rollup, format="parquet", partitioning="hive").to_table().to_pylist()
    (row,) = [row for row in rows if (row["tag"], str(row["date"])) == (f"tag:f/{LEVEL}", str(day))]
    return row


def look(chain: Chain) -> None:
    """See the plant on the page of the enterprise, in Chromium: its sources, and a value that changes."""
    config = chain.folder / ENTERPRISE / "node.toml"
    words = [sys.executable, "-m", "agent.cli", "page", "--config", config]
    with Child("page", words, chain.folder / "page.log") as page, chromium() as browser:
        page.start()
        address = page.wait_line("page: ").removeprefix("page: ")
        browser.open(f"{address}zone/{PLANT}")
        browser.wait_text("2 of 2 sources deliver", "press", "meter")
        browser.open(f"{address}tags?q=first")
        browser.wait_text("f/first")
        browser.wait_text("f/first", no=browser.text)
        assert browser.complaints() == []


@pytest.mark.timeout(CHAIN_S_MAX)
def test_every_value_of_the_devices_is_in_the_table_once(chain: Chain) -> None:
    """Two tags of each source, through the broker, a killed broker and a killed node: what the table has of each tag is
    what the server recorded, and what the device counted, in order, without a hole and without a double. A tag whose
    minutes are not all good has in the rollups the figures of those that are."""
    noon = asyncio.run(set_levels(chain))
    chain.broker.kill()
    chain.broker.restart()
    chain.wait_level(chain.end(ENTERPRISE) + 20)
    chain.nodes[ENTERPRISE].kill()
    chain.nodes[ENTERPRISE].start()
    chain.wait_level(chain.end(ENTERPRISE) + 20)
    look(chain)
    landed = land(chain)
    of_server, of_device = {f"tag:f/{name}" for name in (*COUNTERS, LEVEL)}, {f"tag:m/{at}" for at in REGISTERS}
    assert set(landed) == of_server | of_device
    for register in REGISTERS:
        values = landed[f"tag:m/{register}"]
        assert values == list(range(values[0], values[0] + len(values)))
        assert len(values) >= 10
    for name in COUNTERS:
        values = landed[f"tag:f/{name}"]
        recorded = [entry.value for entry in chain.server.record(name)]
        first = recorded.index(values[0])
        assert values == recorded[first : first + len(values)]
        assert len(values) >= 10
    for window in ("1h", "1d"):
        row = rolled_level(chain.folder / "rollup" / window, noon.date())
        assert [row[name] for name in ("count", "bad_count", "first", "last", "mean")] == [4, 2, 10, 30, 20], window
        assert (row["min"], row["max"], row["covered_s"], row["time_mean"]) == (10, 30, 120, 20), window
