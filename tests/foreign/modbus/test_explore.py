"""`bsfg modbus` and `bsfg source` against libmodbus and modbus-serial: from an unknown device to the row that reads it,
on TCP and on a serial line."""

import asyncio
import json
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.foreign.modbus.device import (
    BAUD_RATE,
    modbus_device,
    serial_line,
)
from tests.foreign.test_explore import bsfg
from tests.support import command
from tests.waiting import wait_until_async

pytestmark = pytest.mark.system


@pytest.mark.foreign("libmodbus")
async def test_probe_at_the_edge_of_what_exists(tmp_path: Path) -> None:
    """A device that refuses every register but two, and those two apart from each other: the value is found, and what
    is not given is named."""
    with modbus_device(tmp_path / "device") as device:
        device.set(1, "holding", 100, 0x6666, 0x4367)  # 231.4 as float32, low word first
        device.fault("exception", 2, at=(0, 99))
        device.fault("exception", 2, at=(102, 65_535))
        words = ("modbus", "probe", f"127.0.0.1:{device.port}", "--base", "40001")
        code, out, err = await bsfg(tmp_path, *words, "40101", "--value", "231.4")
        assert code == 0, err
        assert re.search(r"holding 40101 +float32 +CDAB +231.4", out)
        assert "not given: holding 40100: illegal data address (2)" in out
        assert "not given: holding 40103-40105: illegal data address (2)" in out
        assert "127.0.0.1/holding_40101,1,holding,40101,float32,CDAB," in out
        asked = len(device.asked())
        assert asked <= 20


@pytest.mark.foreign("libmodbus")
async def test_scan_finds_what_a_device_has(tmp_path: Path) -> None:
    """Two blocks in a table that is otherwise refused, on a device that takes 30 registers a read: the ranges are
    exact, and the length that it takes is told. Addresses to which it is silent are no registers either."""
    with modbus_device(tmp_path / "device", units=(1, 7)) as device:
        there = [(100, 139), (200, 201)]
        for first, last in ((0, 99), (140, 199), (202, 65_535)):
            device.fault("exception", 2, at=(first, last))
        device.fault("longer", 30, at=(100, 139))
        where = f"tcp://127.0.0.1:{device.port}"
        code, out, err = await bsfg(tmp_path, "modbus", "scan", where, "--base", "0", "holding:0-299", "--json")
        assert code == 0, err
        found = json.loads(out)
        assert [(area["address"], area["address"] + area["count"] - 1) for area in found["found"]] == there
        assert found["refused"] == {"illegal data address (2)": 300 - 42}
        assert not found["unknown"]
        device.clear()
        device.fault("silent", at=(20, 29))
        quick = ("--timeout-ms", "100", "--pause-ms", "0")
        code, out, err = await bsfg(tmp_path, "modbus", "scan", where, *quick, "--base", "0", "input:0-49", "--json")
        found = json.loads(out)
        assert [(area["address"], area["count"]) for area in found["found"]] == [(0, 20), (30, 20)], err
        assert found["refused"] == {"no answer": 10}
        code, out, _ = await bsfg(tmp_path, "modbus", "scan", where, *quick, "--units", "1-9", "--json")
        assert [unit["unit_id"] for unit in json.loads(out)["units"]] == [1, 7]


@asynccontextmanager
async def running(folder: Path) -> AsyncIterator[None]:
    """The node for the length of a block, which begins when the only source is connected and has a good tag."""

    async def is_connected() -> bool:
        code, out, _ = await bsfg(folder, "source", "list", "--json")
        found: dict[str, Any] = json.loads(out) if code == 0 else {}
        return found.get("state") == "connected" and found["tags_good"] > 0

    node = await asyncio.create_subprocess_exec(*command.words("run"), cwd=folder)
    try:
        await wait_until_async(is_connected, "a connected source", limit_s=60)
        yield
    finally:
        node.terminate()
        assert await node.wait() == 0


def write_node(folder: Path, settings: str) -> None:
    """node.toml with one source of three registers."""
    (folder / "meter.csv").write_text(
        "tag,table,register,type\n" + "".join(f"f/{n},holding,{n},uint16\n" for n in (0, 1, 2))
    )
    (folder / "node.toml").write_text(
        '[node]\nzone = "plant-a"\n[[modbus]]\nname = "meter"\ntags_file = "meter.csv"\n'
        f"address_base = 0\npoll_interval_ms = 200\n{settings}"
    )


@pytest.mark.foreign("libmodbus")
async def test_a_device_with_one_connection_is_not_taken_from_the_node(tmp_path: Path) -> None:
    """The device hangs up on a second connection. `source test` and `read` have their values from the running node,
    whose connection is the only one that the device has ever seen."""
    with modbus_device(tmp_path / "device") as device:
        device.set(1, "holding", 0, 11, 22, 33)
        device.take_connections(1)
        write_node(tmp_path, f'host = "127.0.0.1"\nport = {device.port}\n')
        async with running(tmp_path):
            for _ in range(3):
                code, out, err = await bsfg(tmp_path, "source", "read", "meter", "--json")
                assert code == 0, err
                assert [json.loads(line)["value"] for line in out.splitlines()] == [11, 22, 33]
            device.fault("exception", 4, at=(2, 2))
            code, out, _ = await bsfg(tmp_path, "source", "test", "meter")
            assert code == 1
            assert "has read the values: many devices accept only one connection" in out
            assert "f/2 (unit 1 holding 2 (base 0) AB): unit 1 refuses it: server device failure (4)" in out
            assert device.status()["accepted"] == 1


@pytest.mark.foreign("libmodbus")
@pytest.mark.foreign("socat")
async def test_a_serial_line_from_the_first_look_to_the_running_node(tmp_path: Path) -> None:
    """A unit on a serial line: scanned, probed and read with the options of the port; the printed section is a source
    that `source test` finds good, and that the running node reads for the command, as the port is its own."""
    with (
        serial_line(tmp_path) as (ours, port),
        modbus_device(tmp_path / "device", units=(3,), serial_port=ours) as device,
    ):
        device.set(3, "holding", 0, 2_314, 22, 33)
        line = (str(port), "--baud-rate", str(BAUD_RATE), "--parity", "none", "--timeout-ms", "1000")
        code, out, err = await bsfg(tmp_path, "modbus", "scan", *line, "--units", "2-4", "--json")
        assert [unit["unit_id"] for unit in json.loads(out)["units"]] == [3], err
        words = ("modbus", "probe", *line, "--unit", "3", "--base", "0", "holding:0", "--value", "231.4")
        code, out, err = await bsfg(tmp_path, *words)
        assert code == 0, err
        assert re.search(r"holding 0 +uint16 +AB +0.1 +231.4", out)
        section = out.partition("[[modbus]]\n")[2]
        assert f'serial_port = "{port}"' in section
        write_node(tmp_path, "")
        kept = [row for row in section.splitlines() if not row.startswith(("name", "tags_file", "address_base"))]
        with (tmp_path / "node.toml").open("a") as file:
            file.write("\n".join(kept))
        code, out, _ = await bsfg(tmp_path, "source", "test", "meter")
        assert code == 0, out
        async with running(tmp_path):
            code, out, _ = await bsfg(tmp_path, "source", "test", "meter")
            assert (code, "has read the values" in out) == (0, True)
