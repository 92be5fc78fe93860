"""What a node has learned of a device survives the node."""

import signal
from pathlib import Path

import pytest

from agent.ingest.gap import AGENT_STOPPED
from tests.foreign.account import declared, stored
from tests.foreign.modbus.device import modbus_device, settings_of, source, tag_map
from tests.foreign.plant import source_node
from tests.waiting import wait_until_async

pytestmark = [pytest.mark.system, pytest.mark.foreign("libmodbus")]


@pytest.mark.parametrize("ends_by", [signal.SIGTERM, signal.SIGKILL])
async def test_a_restart_is_one_gap(tmp_path: Path, ends_by: signal.Signals) -> None:
    """A node with two units stops and starts again, each time as soon as its store has a new value: a gap fact
    covers the time from the last value before each stop to the first one after it."""
    state, good = tmp_path / "state", list[int]()
    with modbus_device(tmp_path / "device", units=(1, 2)) as device:
        tags = tag_map((f"f/{unit}", unit, "holding", 0, "uint16") for unit in (1, 2))
        told = settings_of(source(device.port, tmp_path, tags))
        device.count(1, "holding", 0, 0)
        device.count(2, "holding", 0, 0)
        for number in range(4):
            good.append(len(stored(state, "1")) if number else 0)
            async with source_node(tmp_path, "modbus", told) as node:
                if not number:  # there is no store yet
                    await wait_until_async(lambda: node.events("source_connected"), "the source", 60)
                await wait_until_async(lambda: len(stored(state, "1")) > good[-1], "a value", 60)
                node.ends_by = ends_by
    times_ns = [sample.time_ns for sample in stored(state, "1")]
    expected = [(times_ns[first - 1], times_ns[first]) for first in good[1:]]
    gaps = [gap for gap in declared(state) if gap.reason == AGENT_STOPPED]  # and not a poll that a busy machine missed
    found = [(gap.first_ns, gap.last_ns) for gap in gaps]
    assert len(found) <= len(expected)  # a node that is killed at its first value may leave its gap to the next one
    for before_ns, after_ns in expected:
        covering = [first for first, last in found if last >= after_ns]
        assert min(covering) <= before_ns + 10**9  # the other unit was read last
