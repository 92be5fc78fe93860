"""What a node has learned of a device survives the node."""

from pathlib import Path

import pytest

from tests.foreign.modbus.device import QUICK, Asked, ModbusDevice, modbus_device, source, words_map
from tests.foreign.plant import source_node
from tests.waiting import wait_until_async

pytestmark = [pytest.mark.system, pytest.mark.foreign("libmodbus")]

HOLES = range(20, 300, 40)  # addresses that the device does not have, between those that are asked for
BAD = (57, 130)  # rows of the map that the device does not have
PATIENT = {"unit_retry_ms": 60_000, "unit_retry_max_ms": 60_000}  # what was refused is not asked again in a life


async def life(device: ModbusDevice, folder: Path) -> list[Asked]:
    """What a node asks in a life: from its start until it has read everything ten times."""
    tags = words_map(0, 300)
    for hole in HOLES:
        tags = tags.replace(f"f/{hole},1,holding,{hole},uint16,\n", "")
    settings = source(device.port, folder, tags)
    told = {"name": "meter", "host": "127.0.0.1", "port": device.port, "tags_file": str(settings.tags_file)}
    before = device.status()["requests"]
    async with source_node(folder, "modbus", {**told, "address_base": 0, **QUICK, **PATIENT}):
        await wait_until_async(
            lambda: len([one for one in device.asked(before) if one.outcome == "good" and one.address == 0]) > 10,
            "ten polls",
            60,
        )
    return device.asked(before)


async def test_learned_splits_are_kept_over_a_restart(tmp_path: Path) -> None:
    """A device that lacks addresses inside and beside blocks is learned in the first life. The second life begins with
    the reads that the first ended with, none of them refused, and searches nothing: it asks once for each of the small
    spans that it knows to be refused, in case the device has changed."""
    with modbus_device(tmp_path / "device") as device:
        for address in (*HOLES, *BAD):
            device.fault("exception", 2, table="holding", at=(address, address))
        first = await life(device, tmp_path)
        second = await life(device, tmp_path)
    searched = [(one.address, one.count) for one in first if one.outcome == "exception"]
    assert len(searched) > 3 * len(HOLES), "there was something to learn"
    polls = [number for number, one in enumerate(second) if one.address == 0]
    assert {one.outcome for one in second[: polls[1]] if one.count > 3} == {"good"}
    again = [(one.address, one.count) for one in second if one.outcome == "exception"]
    assert set(again) <= set(searched)
    assert len(again) == len(set(again)) == len(HOLES) + len(BAD)
