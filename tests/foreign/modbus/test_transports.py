"""Serial lines and converters, made of programs that nobody here wrote: libmodbus on a pseudo terminal, socat as the
cable and as the serial-to-Ethernet converter."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from agent.ingest.lifecycle import State
from tests.foreign.modbus.device import (
    BAUD_RATE,
    HOST,
    IMPATIENT,
    ModbusDevice,
    listening_socat,
    modbus_device,
    serial_line,
    source,
    words_map,
)
from tests.ingest.plant import ingesting
from tests.waiting import wait_until_async

pytestmark = [pytest.mark.system, pytest.mark.foreign("libmodbus"), pytest.mark.foreign("socat")]

VALUES = [(7 * address + 1) % 65_536 for address in range(300)]
UNIT = 3


@contextmanager
def serial_device(folder: Path) -> Iterator[tuple[ModbusDevice, Path]]:
    """libmodbus on a serial line, and the other end of the line."""
    with (
        serial_line(folder) as (ours, other),
        modbus_device(folder / "device", units=(UNIT,), serial_port=ours) as device,
    ):
        device.set(UNIT, "holding", 0, *VALUES)
        yield device, other


def serial_settings(port: Path) -> dict[str, Any]:
    """A source on a serial line."""
    line = {"serial_port": str(port), "baud_rate": BAUD_RATE, "parity": "none", "stop_bits": 1}
    return {"transport": "rtu", "host": "", **line, **IMPATIENT}


async def reads_everything(run: Any) -> None:
    """Until every register was read, right."""
    for address, value in enumerate(VALUES):
        await run.wait_good(f"f/{address}", 1)
        assert {sample.value for sample in run.store.good(f"f/{address}")} == {value}


async def test_trouble_on_a_serial_line(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A unit that is not on the line is silent and delays the other by time-outs only; noise, half an answer and
    answers in pieces or of a wrong unit make no wrong value, and the line recovers from each."""
    caplog.set_level(logging.INFO, "agent.ingest")
    with serial_device(tmp_path) as (device, port):
        tags = words_map(0, len(VALUES), unit=UNIT) + words_map(0, 1, unit=9, scope="absent").partition("\n")[2]
        settings = serial_settings(port) | {"unit_retry_ms": 1_000, "unit_retry_max_ms": 5_000}
        async with ingesting(source(1, tmp_path, tags, **settings)) as run:
            await reads_everything(run)
            for kind in ("garbage", "half", "pieces", "wrong_unit"):
                device.fault(kind, 30)
                asked = device.status()["requests"]
                await wait_until_async(lambda n=asked: device.status()["requests"] > n, kind)
                device.clear()
                await run.wait_more("f/0", 2)
                await run.wait_more("f/299", 2)
            for address, value in enumerate(VALUES):
                assert {sample.value for sample in run.store.good(f"f/{address}")} == {value}
            assert run.store.of("absent/0")[-1].quality
    lost = [record for record in caplog.records if getattr(record, "action", "") == "unit_lost"]
    assert len([record for record in lost if getattr(record, "unit", 0) == 9]) == 1


async def test_a_serial_port_that_goes_and_comes(tmp_path: Path) -> None:
    """A serial adapter that is pulled out is a lost source; plugged in again under the same name it is read again."""
    settings = source(1, tmp_path, words_map(0, len(VALUES), unit=UNIT), **serial_settings(tmp_path / "tty-source"))
    with serial_device(tmp_path):
        ingest = ingesting(settings)
        run = await ingest.__aenter__()
        await reads_everything(run)
    await run.wait_state("meter", State.WAITING)
    assert run.store.of("f/0")[-1].quality
    with serial_device(tmp_path):
        await run.wait_more("f/0", 2)
        await ingest.__aexit__(None, None, None)


async def test_rtu_over_tcp(tmp_path: Path) -> None:
    """Frames of a serial line through a converter that knows nothing of Modbus: values are right, and come again when
    the converter was away."""
    with serial_device(tmp_path) as (device, port):
        listen, line = "TCP-LISTEN:{port},bind=" + HOST + ",reuseaddr,fork", f"FILE:{port},raw,echo=0"
        with listening_socat(listen, line) as tcp_port:
            tags = words_map(0, len(VALUES), unit=UNIT)
            async with ingesting(source(tcp_port, tmp_path, tags, transport="rtu_over_tcp", **IMPATIENT)) as run:
                await reads_everything(run)
                for kind in ("garbage", "half"):
                    device.fault(kind, times=1)
                    await run.wait_more("f/299", 2)
                await reads_everything(run)
