"""A gateway that starts in 1970 with sources of both protocols, and the zone above it."""

import json
import os
import re
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from agent.demo.mosquitto import Mosquitto
from agent.demo.processes import Child
from agent.status_codes import CLOCK_UNCERTAIN
from tests.foreign.modbus.device import HOST, modbus_device, words_map
from tests.foreign.plant import QUICK, bsfg_command, section
from tests.foreign.server import ForeignServer
from tests.foreign.wall_clock import WallClock
from tests.replication.nodes import write_node_toml
from tests.waiting import wait_until

pytestmark = [pytest.mark.system, pytest.mark.foreign("node_opcua"), pytest.mark.foreign("libmodbus")]

PLANT, ABOVE = "plant-a", "enterprise"
STREAMS = '["facts.telemetry", "facts.operational"]'
LIMIT_S = 90.0
MODBUS, OPCUA = "m/0", "f/count"


class Zone(NamedTuple):
    """A node, and its node.toml and environment for commands."""

    node: Child
    config: Path
    environment: dict[str, str]

    def bsfg(self, *arguments: str) -> str:
        """What a command prints."""
        command = bsfg_command(*arguments, "--config", self.config)
        return subprocess.run(command, capture_output=True, text=True, check=False, env=self.environment).stdout

    def samples(self, tag: str) -> list[dict[str, Any]]:
        """Quality and time of each sample of a tag in the store."""
        statement = f"select quality, source_time_ns from facts where subject = 'tag:{tag}' order by offset"
        return [json.loads(line) for line in self.bsfg("sql", "--json", statement).splitlines()]

    def wait_quality(self, tag: str, quality: int) -> None:
        """Until the last sample of a tag has this quality."""
        wait_until(
            lambda: [sample["quality"] for sample in self.samples(tag)][-1:] == [quality], f"{tag}: {quality}", LIMIT_S
        )


@pytest.fixture
def clock(tmp_path: Path) -> WallClock:
    """That of the gateway."""
    return WallClock(tmp_path)


@pytest.fixture
def zones(server: ForeignServer, clock: WallClock, tmp_path: Path) -> Iterator[tuple[Zone, Zone]]:
    """The gateway and the zone above it, not yet started."""
    with ExitStack() as stack:
        device = stack.enter_context(modbus_device(tmp_path / "device"))
        device.count(1, "holding", 0, 0)
        broker = stack.enter_context(Mosquitto.started(tmp_path / "broker", (PLANT, ABOVE), [f"{PLANT}:{ABOVE}"]))
        press, meter = tmp_path / "press.csv", tmp_path / "meter.csv"
        press.write_text(server.tags("count"))
        meter.write_text(words_map(0, 1, scope="m"))
        lines = {
            PLANT: f'zone = "{ABOVE}"\nexports = {STREAMS}\n'
            + section("opcua", name="press", url=server.url, tags_file=str(press), **QUICK)
            + section("modbus", name="meter", host=HOST, port=device.port, tags_file=str(meter), address_base=0),
            ABOVE: f'zone = "{PLANT}"\npulls = {STREAMS}\n',
        }
        made = []
        for name, environment in ((PLANT, clock.environment), (ABOVE, {})):
            config = write_node_toml(tmp_path / name, broker, name, lines[name])
            command = bsfg_command("run", "--config", config)
            node = stack.enter_context(Child(name, command, tmp_path / f"{name}.log", environment))
            made.append(Zone(node, config, {**os.environ, **environment}))
        yield made[0], made[1]


def tells_of_set_clock(zone: Zone, by: str = "") -> bool:
    """Whether the status of this zone says by how much the plant's clock was set."""
    return re.search(f"plant-a +set forward by {by}", zone.bsfg("status")) is not None


def test_values_of_1970_are_not_good_in_the_zone_above(zones: tuple[Zone, Zone], clock: WallClock) -> None:
    """The samples of the Modbus device are uncertain there until the time of the gateway arrives, and good from then
    on; those of the OPC UA server have its times and are good. Both nodes show what happened to the clock, also while
    the gateway's node did not run; the gateway names it as the cause while its broker is refused."""
    plant, above = zones
    clock.set(100 - int(time.time()))
    plant.node.start()
    above.node.start()
    plant.wait_quality(MODBUS, CLOCK_UNCERTAIN)
    plant.wait_quality(OPCUA, 0)
    wait_until(lambda: "so broker site: " in plant.bsfg("status"), "the consequence", LIMIT_S)
    assert plant.bsfg("status").splitlines()[1].startswith("  ! clock: not believed: it shows 1970-01-01 00:0")
    clock.set(0)
    above.wait_quality(MODBUS, 0)
    above.wait_quality(OPCUA, 0)
    for zone in (plant, above):
        found = zone.samples(MODBUS)
        assert found[0]["quality"] == CLOCK_UNCERTAIN
        assert all((sample["quality"] == 0) == (sample["source_time_ns"] > 10**18) for sample in found)
        assert {sample["quality"] for sample in zone.samples(OPCUA)} == {0}
        wait_until(partial(tells_of_set_clock, zone), "it", LIMIT_S)
    plant.node.stop()
    clock.set(10_800)
    plant.node.start()
    wait_until(partial(tells_of_set_clock, above, "3 h at"), "the second", LIMIT_S)
