"""What a node has learned of a device survives the node."""

import signal
from pathlib import Path

import pytest

from tests.foreign.account import declared, stored
from tests.foreign.modbus.device import QUICK, Asked, ModbusDevice, modbus_device, source, tag_map, words_map
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


@pytest.mark.parametrize("ends_by", [signal.SIGTERM, signal.SIGKILL])
async def test_a_restart_is_one_gap(tmp_path: Path, ends_by: signal.Signals) -> None:
    """A node with two units stops and starts again, each time as soon as its store has a new value: one gap fact from
    the last value before each stop to the first one after it."""
    state, good = tmp_path / "state", list[int]()
    with modbus_device(tmp_path / "device", units=(1, 2)) as device:
        settings = source(
            device.port, tmp_path, tag_map((f"f/{unit}", unit, "holding", 0, "uint16") for unit in (1, 2))
        )
        told = {"name": "meter", "host": "127.0.0.1", "port": device.port, "tags_file": str(settings.tags_file)}
        device.count(1, "holding", 0, 0)
        device.count(2, "holding", 0, 0)
        for number in range(4):
            good.append(len(stored(state, "1")) if number else 0)
            async with source_node(tmp_path, "modbus", {**told, "address_base": 0, **QUICK}) as node:
                if not number:  # there is no store yet
                    await wait_until_async(lambda: node.events("source_connected"), "the source", 60)
                await wait_until_async(lambda: len(stored(state, "1")) > good[-1], "a value", 60)
                node.ends_by = ends_by
    times_ns = [one.time_ns for one in stored(state, "1")]
    expected = [(times_ns[first - 1], times_ns[first]) for first in good[1:]]
    found = [(gap.first_ns, gap.last_ns) for gap in declared(state)]
    assert len(found) == len(expected)
    for (first_ns, last_ns), (before_ns, after_ns) in zip(found, expected, strict=True):
        assert first_ns <= before_ns + 10**9  # the other unit was read last
        assert last_ns >= after_ns
