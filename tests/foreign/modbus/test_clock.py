"""The clock of the node is set while it reads a device, whose samples have the node's time."""

import json
import subprocess
import time
from pathlib import Path

import pytest

from tests.foreign.modbus.device import QUICK, modbus_device, source, words_map
from tests.foreign.plant import source_node
from tests.waiting import wait_until_async

pytestmark = [pytest.mark.system, pytest.mark.foreign("libmodbus")]

WALL_CLOCK = Path(__file__).parents[2] / "appliance" / "wall_clock.c"


@pytest.fixture
def library(tmp_path: Path) -> Path:
    """Moves the wall clock of a program that loads it."""
    built = tmp_path / "wall_clock.so"
    subprocess.run(["cc", "-shared", "-fPIC", "-o", built, WALL_CLOCK], check=True)
    return built


@pytest.mark.parametrize("start_s, then_s", [(0, -7200), (100 - int(time.time()), 0)], ids=["set back", "1970"])
async def test_the_newest_value_after_the_clock_was_set(
    library: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, start_s: int, then_s: int
) -> None:
    """The clock is set back two hours, or the node starts in 1970 and the time arrives later: `latest` shows what the
    device counted on, and no more than a minute old; so it does after a restart with the same clock."""
    clock = tmp_path / "clock"

    def set_clock(seconds: int) -> None:
        new = tmp_path / "clock.new"
        new.write_text(f"{seconds}\n")
        new.rename(clock)

    with modbus_device(tmp_path / "device") as device:
        device.count(1, "holding", 0, 0)
        settings = source(device.port, tmp_path, words_map(0, 1))
        told = {"name": "meter", "host": "127.0.0.1", "port": device.port, "tags_file": str(settings.tags_file)}
        told = {**told, "address_base": 0, **QUICK}
        monkeypatch.setenv("WALL_CLOCK", str(clock))
        monkeypatch.setenv("LD_PRELOAD", str(library))  # for the node and its commands
        for clocks in ((start_s, then_s), (then_s,)):
            set_clock(clocks[0])
            async with source_node(tmp_path, "modbus", told) as node:
                await wait_until_async(lambda: node.events("source_connected"), "the source", 60)
                for seconds in clocks:
                    set_clock(seconds)
                    asked = device.status()["requests"]
                    await wait_until_async(lambda n=asked: device.status()["requests"] > n + 10, "polls")
                    code, row = await node.bsfg("latest", "--json", "f/0")
                    found = json.loads(row)
                    assert code == 0
                    assert found["value"] > asked
                    assert abs(found["age_ms"]) < 60_000
                    assert not found["ahead_ms"]
