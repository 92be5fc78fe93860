"""The polling of a Modbus device, against a line whose answers the test writes."""

import struct
import time
from pathlib import Path

from agent.ingest.delivery import Delivery
from agent.ingest.modbus.address import Register, Table
from agent.ingest.modbus.decode import value_type
from agent.ingest.modbus.line import ReadRefused, UnitSilent
from agent.ingest.modbus.plan import Read
from agent.ingest.modbus.source import ModbusSource
from agent.ingest.quality import BAD_DEVICE_FAILURE, BAD_NODE_ID_UNKNOWN, BAD_TIMEOUT
from agent.ingest.recorder import Recorder
from agent.ingest.sampling import SamplingRule
from agent.ingest.settings import ModbusSourceSettings
from agent.ingest.tags.tag_map import Tag
from agent.message import TagDefinition
from tests.ingest.fakes import Busy, FakeStore, in_loop

INT16 = value_type("int16", "ABCD")
TAGS = [
    Tag(
        number,
        "facts.telemetry",
        TagDefinition(f"tag:a/{number}"),
        SamplingRule(),
        Register(1, Table.HOLDING, number, 1, INT16),
    )
    for number in (1, 2)
]


class Device:
    """A line to unit 1. `refused`: these addresses are refused with a Modbus exception; `is_silent`: no answer."""

    def __init__(self, refused: dict[int, int] | None = None, *, is_silent: bool = False) -> None:
        self.refused, self.is_silent = refused or {}, is_silent

    async def read_bytes(self, read: Read) -> bytes:
        if self.is_silent:
            raise UnitSilent("no answer")
        for address in range(read.address, read.end):
            if address in self.refused:
                raise ReadRefused(read, self.refused[address])
        return struct.pack(f">{read.count}H", *range(read.address, read.end))


async def made(store: FakeStore) -> ModbusSource:
    """A source of two registers that is connected to nothing."""
    recorder = Recorder("meter", "plant-a", store, (Busy,), "facts.operational")
    numbers = await recorder.define([tag.definition for tag in TAGS])
    settings = ModbusSourceSettings("meter", Path("t.csv"), 0, host="meter")
    return ModbusSource(settings, None, Delivery("meter", TAGS, numbers, recorder))


async def poll(source: ModbusSource, device: Device) -> None:
    """One poll of everything, with time for the search."""
    await source._poll_all(device, frozenset({1_000}), time.monotonic_ns() + 10**10)  # type: ignore[arg-type]


def qualities(store: FakeStore) -> dict[str, list[int]]:
    """The qualities of the samples of each tag."""
    return {str(number): [sample.quality for sample in store.of(f"a/{number}")] for number in (1, 2)}


@in_loop
async def test_a_unit_that_falls_silent_makes_its_tags_bad() -> None:
    """Once: its last values must not pass for current ones."""
    store = FakeStore()
    source = await made(store)
    await poll(source, Device())
    for _ in range(2):
        await poll(source, Device(is_silent=True))
    assert qualities(store) == {"1": [0, BAD_TIMEOUT], "2": [0, BAD_TIMEOUT]}


@in_loop
async def test_a_register_that_does_not_exist_is_bad_alone() -> None:
    """Its neighbour goes on; the refused one is recorded as bad, once."""
    store = FakeStore()
    source = await made(store)
    for _ in range(3):
        await poll(source, Device({2: 2}))
    found = qualities(store)
    assert found["2"] == [BAD_NODE_ID_UNKNOWN]
    assert set(found["1"]) == {0}


@in_loop
async def test_a_device_that_is_busy_makes_what_was_asked_for_bad() -> None:
    """A refusal for the moment is no lesson about addresses: all that the read was to bring is bad, and asked for
    again."""
    store = FakeStore()
    source = await made(store)
    await poll(source, Device({2: 4}))
    await poll(source, Device())
    assert qualities(store) == {"1": [BAD_DEVICE_FAILURE, 0], "2": [BAD_DEVICE_FAILURE, 0]}
