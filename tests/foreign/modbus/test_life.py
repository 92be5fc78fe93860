"""The life of a connection to a device: answers that come late, in pieces or twice, devices that take one connection,
are cut off, frozen or switched off, and a node that ends. No value is wrong, and values come again by themselves."""

import signal
from pathlib import Path

import pytest

from agent.ingest.gap import AGENT_STOPPED
from agent.ingest.lifecycle import State
from tests.foreign.account import declared, stored
from tests.foreign.modbus.device import IMPATIENT, modbus_device, settings_of, source, tag_map, words_map
from tests.foreign.plant import source_node
from tests.ingest.plant import Running, ingesting
from tests.waiting import wait_until_async

pytestmark = [pytest.mark.system, pytest.mark.foreign("libmodbus")]

WORDS = 250  # two reads
VALUES = [(31 * address + 5) % 65_536 for address in range(WORDS)]


def all_right(run: Running) -> None:
    """Whatever was stored is what the device holds."""
    for address, value in enumerate(VALUES):
        assert {sample.value for sample in run.store.good(f"f/{address}")} == {value}


@pytest.mark.parametrize(
    "kind, argument",
    [("late", 100), ("late", 450), ("pieces", 50), ("pieces", 450), ("twice", 0), ("half", 0), ("close", 0)],
)
async def test_awkward_answers_make_no_wrong_value(kind: str, argument: int, tmp_path: Path) -> None:
    """Two different reads a poll, and every answer to some of them late (within the time-out, and beyond it, so that it
    meets the next question), in pieces, twice, or cut: each value is its register's."""
    with modbus_device(tmp_path / "device") as device:
        device.set(1, "holding", 0, *VALUES)
        async with ingesting(source(device.port, tmp_path, words_map(0, WORDS), **IMPATIENT)) as run:
            await run.wait_good("f/249")
            for first in (0, 125):  # of both reads
                device.fault(kind, argument, table="holding", at=(first, first), times=3)
                asked = device.status()["requests"]
                await wait_until_async(lambda n=asked: device.status()["requests"] > n + 6, "reads")
            await run.wait_more("f/249", 3)
            await run.wait_more("f/0", 3)
        all_right(run)


@pytest.mark.parametrize("at_the_second", ["closes", "reads nothing"])
async def test_a_device_that_takes_one_connection(at_the_second: str, tmp_path: Path) -> None:
    """It closes a second connection, or leaves it open and reads nothing from it: one silent unit behind it delays the
    other, and no more; when it answers again, it is read again."""
    with modbus_device(tmp_path / "device", units=(1, 2)) as device:
        device.take_connections(1, hangs_up=at_the_second == "closes")
        device.set(1, "holding", 0, *VALUES)
        tags = words_map(0, WORDS) + words_map(0, 5, unit=2, scope="g").partition("\n")[2]
        async with ingesting(source(device.port, tmp_path, tags, **IMPATIENT)) as run:
            await run.wait_good("g/4", 2)
            device.fault("silent", unit=2)
            await wait_until_async(lambda: run.store.of("g/4")[-1].quality, "the silence")
            await run.wait_more("f/249", 5)
            device.clear()
            await run.wait_more("g/4", 2)
            assert run.source("meter").connects_total == 1
        all_right(run)


async def test_a_device_that_goes_comes_back(tmp_path: Path) -> None:
    """A connection that is cut is opened again without a loss. Frozen, switched off: each is a lost source whose tags
    are bad, and values come again when the device does."""
    with modbus_device(tmp_path / "device") as device:
        device.set(1, "holding", 0, *VALUES)
        async with ingesting(source(device.port, tmp_path, words_map(0, WORDS), **IMPATIENT)) as run:
            await run.wait_good("f/249")
            lives = run.source("meter").connects_total
            device.cut()
            await run.wait_more("f/249", 3)
            assert run.source("meter").connects_total == lives
            assert not [sample for sample in run.store.of("f/249") if sample.quality]
            device.freeze()
            await wait_until_async(lambda: run.store.of("f/249")[-1].quality, "bad samples")
            device.thaw()
            await run.wait_more("f/249", 1)
            device.kill()
            await run.wait_state("meter", State.WAITING)
            assert run.store.of("f/249")[-1].quality
            device.start()
            device.set(1, "holding", 0, *VALUES)
            await run.wait_more("f/249", 3)
            zeros = [sample for sample in run.store.good("f/249") if sample.value == 0]
            assert len(zeros) <= 3, "what it held before the test set it again"


async def test_four_sections_of_a_gateway_that_takes_one_connection(tmp_path: Path) -> None:
    """A whole node with a section for each of four units: each gives the values of its own unit, at every poll, over
    the one connection that the gateway takes."""
    units = (1, 2, 3, 4)
    with modbus_device(tmp_path / "device", units=units) as device:
        device.take_connections(1)
        sections = []
        for unit in units:
            device.set(unit, "holding", 10 * unit, 100 * unit)
            tags = words_map(10 * unit, 1, unit=unit)
            sections.append(settings_of(source(device.port, tmp_path, tags, name=f"unit{unit}")))
        async with source_node(tmp_path, "modbus", *sections):
            await wait_until_async(lambda: device.status()["requests"] > 60, "polls")
        assert device.status()["accepted"] == 1
    for unit in units:
        found = stored(tmp_path / "state", f"{10 * unit}")
        assert {(sample.value, sample.quality) for sample in found} == {(100 * unit, 0)}
        assert len(found) > 8


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
