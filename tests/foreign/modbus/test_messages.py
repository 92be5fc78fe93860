"""What the log says of a device in trouble: which tag, in which row, at the address as the map writes it; what is wrong
with it; and each once."""

import logging
import re
from pathlib import Path

import pytest

from tests.foreign.modbus.device import IMPATIENT, modbus_device, source, words_map
from tests.ingest.plant import ingesting
from tests.waiting import wait_until_async

pytestmark = [pytest.mark.system, pytest.mark.foreign("libmodbus")]

ATTEMPTS = 4


def words_of(record: logging.LogRecord) -> str:
    """A log record as an operator reads it: the event and every field."""
    plain = vars(logging.LogRecord("", 0, "", 0, "", (), None))
    fields = {name: value for name, value in vars(record).items() if name not in plain}
    return f"{record.getMessage()} {fields}"


SILENT = re.compile(r"does not answer|do not answer|none of its units answers|answers any more|gave no answer")


@pytest.mark.parametrize("kind", ["garbage", "wrong_unit", "wrong_function", "fewer", "half"])
async def test_garbage_is_not_silence(kind: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A device that sends what is no answer is not said to be silent: an engineer would look at its cable. What it
    sends never becomes a value, and right values come when it has recovered."""
    caplog.set_level(logging.INFO, "agent.ingest")
    with modbus_device(tmp_path / "device") as device:
        device.set(1, "holding", 0, *range(1000, 1010))
        device.set(1, "input", 0, *range(2000, 2010))
        async with ingesting(source(device.port, tmp_path, words_map(0, 10), **IMPATIENT)) as run:
            await run.wait_good("f/9", 3)
            device.fault(kind, table="holding")
            before = device.status()["requests"]
            await wait_until_async(lambda: device.status()["requests"] > before + ATTEMPTS, "attempts")
            await wait_until_async(lambda: run.store.of("f/9")[-1].quality, "a bad sample")
            device.clear()
            await run.wait_more("f/9", 3)
    for address in range(10):
        assert {s.value for s in run.store.good(f"f/{address}")} == {1000 + address}
    told = [words_of(record) for record in caplog.records if record.levelno >= logging.WARNING]
    assert told
    assert not [text for text in told if SILENT.search(text)], told
