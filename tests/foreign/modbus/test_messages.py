"""What the log says of a device in trouble: which tag, in which row, at the address as the map writes it; what is wrong
with it; and each once."""

import asyncio
import logging
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from agent.ingest.lifecycle import State
from tests.foreign.modbus.device import IMPATIENT, ModbusDevice, modbus_device, source, tag_map, words_map
from tests.ingest.plant import ingesting
from tests.waiting import wait_until_async

pytestmark = [pytest.mark.system, pytest.mark.foreign("libmodbus")]

ATTEMPTS = 4


def words_of(record: logging.LogRecord) -> str:
    """A log record as an operator reads it: the event and every field."""
    plain = vars(logging.LogRecord("", 0, "", 0, "", (), None))
    fields = {name: value for name, value in vars(record).items() if name not in plain}
    return f"{record.getMessage()} {fields}"


@pytest.mark.parametrize("code", [2, 4])
def test_a_refused_tag_is_named_as_its_map_writes_it(
    code: int, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The log names the tag, its row in the file, and the register number of the vendor's sheet, once and not at every
    poll; the number on the wire does not stand for it."""

    async def story() -> None:
        rows = [
            ("f/first", 1, "", 40_890, "uint16"),
            ("f/pump.speed", 1, "", 40_900, "uint16"),
            ("f/last", 1, "", 40_901, "uint16"),
        ]
        with modbus_device(tmp_path / "device") as device:
            device.fault("exception", code, at=(899, 899))
            async with ingesting(source(device.port, tmp_path, tag_map(rows), address_base=40_001)) as run:
                await wait_until_async(lambda: run.store.of("f/pump.speed"), "the bad sample")
                await run.wait_good("f/last", 10)
        about = [text for record in caplog.records if "f/pump.speed" in (text := words_of(record))]
        assert len(about) == 1, [words_of(record) for record in caplog.records]
        assert "40900" in about[0]
        assert "row 3" in about[0]
        assert not re.search(r"\b899\b", about[0])

    caplog.set_level(logging.INFO, "agent.ingest")
    asyncio.run(story())


SILENT = re.compile(r"does not answer|do not answer|none of its units answers|answers any more|gave no answer")
GARBAGE: dict[str, Callable[[ModbusDevice], None]] = {
    "bytes": lambda device: device.fault("garbage", table="holding"),
    "wrong unit": lambda device: device.fault("wrong_unit", table="holding"),
    "wrong function": lambda device: device.fault("wrong_function", table="holding"),
    "fewer values": lambda device: device.fault("fewer", table="holding"),
    "half an answer": lambda device: device.fault("half", table="holding"),
}


@pytest.mark.parametrize("kind", GARBAGE)
def test_garbage_is_not_silence(kind: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A device that sends what is no answer is not said to be silent: an engineer would look at its cable. What it
    sends never becomes a value, and right values come when it has recovered."""

    async def story() -> None:
        with modbus_device(tmp_path / "device") as device:
            device.set(1, "holding", 0, *range(1000, 1010))
            device.set(1, "input", 0, *range(2000, 2010))
            async with ingesting(source(device.port, tmp_path, words_map(0, 10), **IMPATIENT)) as run:
                await run.wait_good("f/9", 3)
                GARBAGE[kind](device)
                before = device.status()["requests"]
                await wait_until_async(lambda: device.status()["requests"] > before + ATTEMPTS, "attempts")
                await wait_until_async(lambda: run.store.of("f/9")[-1].quality, "a bad sample")
                device.clear()
                await run.wait_good("f/9", len(run.store.good("f/9")) + 3)
        for address in range(10):
            assert {s.value for s in run.store.good(f"f/{address}")} == {1000 + address}
        told = [words_of(record) for record in caplog.records if record.levelno >= logging.WARNING]
        assert told
        assert not [text for text in told if SILENT.search(text)], told

    caplog.set_level(logging.INFO, "agent.ingest")
    asyncio.run(story())


def events(caplog: pytest.LogCaptureFixture, *actions: str) -> list[str]:
    """The events of these names, in order."""
    found = [getattr(record, "action", "") for record in caplog.records]
    return [action for action in found if action in actions]


async def story_of_a_silent_unit(device: ModbusDevice, folder: Path) -> None:
    """Unit 2 falls silent beside unit 1 for several attempts, and returns."""
    tags = words_map(0, 10) + words_map(0, 10, unit=2, scope="g").partition("\n")[2]
    async with ingesting(source(device.port, folder, tags, **IMPATIENT)) as run:
        await run.wait_good("g/0", 3)
        device.fault("silent", unit=2)
        await wait_until_async(lambda: asked_in_vain(device) >= ATTEMPTS, "attempts")
        await run.wait_good("f/0", len(run.store.good("f/0")) + 3)
        device.clear()
        await run.wait_good("g/0", len(run.store.good("g/0")) + 3)


def asked_in_vain(device: ModbusDevice) -> int:
    """How often the silent unit was asked."""
    return len([one for one in device.asked() if one.outcome == "silent"])


async def test_a_lost_unit_is_said_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """However often a silent unit is asked, the log has one line going and one returning."""
    caplog.set_level(logging.INFO, "agent.ingest")
    with modbus_device(tmp_path / "device", units=(1, 2)) as device:
        await story_of_a_silent_unit(device, tmp_path)
    assert events(caplog, "unit_lost", "unit_returned") == ["unit_lost", "unit_returned"]


async def story_of_a_silent_device(device: ModbusDevice, folder: Path) -> None:
    """The only unit of a device falls silent for several attempts, each over a new connection, and returns."""
    async with ingesting(source(device.port, folder, words_map(0, 10), **IMPATIENT)) as run:
        await run.wait_good("f/0", 3)
        device.fault("silent")
        connections = device.status()["accepted"]
        await wait_until_async(lambda: device.status()["accepted"] > connections + ATTEMPTS, "attempts")
        device.clear()
        await run.wait_good("f/0", len(run.store.good("f/0")) + 3)
        assert run.source("meter").state is State.CONNECTED


async def test_a_lost_device_is_said_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A device whose only unit is silent is lost and returns once, whatever number of connections were made to it
    meanwhile: one line while the connection stood, and one for the other reason, that new ones are of no use."""
    caplog.set_level(logging.INFO, "agent.ingest")
    with modbus_device(tmp_path / "device") as device:
        await story_of_a_silent_device(device, tmp_path)
    assert len(events(caplog, "unit_lost")) <= 1
    assert events(caplog, "source_lost", "source_returned") in (
        ["source_lost", "source_returned"],
        ["source_lost", "source_lost", "source_returned"],
    )
