"""What a device refuses: a register, long reads, everything. Whatever is good beside it has its value in every poll.

Registers of the device count their reads, so no value comes twice. A tag that has as many values as a tag of another
unit, which nothing troubles, has a value of every poll. The search for what is refused does not end with its slot here
(`unhurried`), so a machine that stalls costs polls and never a value of a poll.
"""

from pathlib import Path

import pytest

from tests.foreign.modbus.device import ModbusDevice, modbus_device, source, tag_map, words_map
from tests.foreign.plant import SWIFT
from tests.ingest.plant import Running, ingesting
from tests.waiting import wait_until_async

pytestmark = [pytest.mark.system, pytest.mark.foreign("libmodbus"), pytest.mark.usefixtures("unhurried")]

CODES = (1, 2, 3, 4, 5, 6)  # Modbus exceptions; unit n refuses with exception n
MOMENTARY = (4, 5, 6)  # may be about the moment: such a read is made once more before it is split
WITNESS = ("f/witness", 9, "holding", 0, "uint16")
UNITS = (*CODES, 9)


def counting(device: ModbusDevice) -> None:
    """Every register of the device counts its reads."""
    for unit in UNITS:
        device.count(unit, "holding", 0, 999)


def joined(*maps: str) -> str:
    """Tag maps in one file, with the witness."""
    return tag_map([WITNESS]) + "".join(text.partition("\n")[2] for text in maps)


async def polls_pass(run: Running, count: int) -> None:
    """Until the witness, which is read last in a poll, has been read so often again."""
    await run.wait_more("f/witness", count - 1)


def places(run: Running, tag: str) -> list[int]:
    """Where the samples of a tag are among all."""
    number = next(i for i, d in enumerate(run.store.definitions, 1) if d.subject == f"tag:{tag}")
    return [i for i, (_, sample) in enumerate(run.store.samples) if sample.tag == number]


def judge(run: Running, tags: list[str], marked_max: int = 0) -> None:
    """Each of these tags has a value of every poll, once; of so many polls it may have a bad sample instead."""
    polls = len(run.store.good("f/witness"))
    for tag in tags:
        values = [sample.value for sample in run.store.good(tag)]
        marked = len(run.store.of(tag)) - len(values)
        assert sorted(set(values)) == values, f"{tag} has a value twice"
        assert marked <= marked_max, f"{tag} was marked bad {marked} times"
        assert polls - 1 - marked <= len(values) <= polls + 1, f"{tag} has values of {len(values)} of {polls} polls"


async def test_a_refused_register_costs_itself_alone(tmp_path: Path) -> None:
    """Units that answer an exception for one register of a block, each unit another: the other 99 have a value in every
    poll, the first included; where the exception may be about the moment, they are marked bad in the first. The one is
    marked bad in the first poll, counted, and good again when the device has changed its mind."""
    with modbus_device(tmp_path / "device", units=UNITS) as device:
        counting(device)
        for code in CODES:
            device.fault("exception", code, unit=code, at=(50, 50))
        tags = joined(*(words_map(0, 100, unit=code, scope=f"u{code}") for code in CODES))
        async with ingesting(source(device.port, tmp_path, tags)) as run:
            await run.wait_good("f/witness")
            await polls_pass(run, 4)
            second_poll = places(run, "f/witness")[1]
            for code in CODES:
                assert places(run, f"u{code}/50")[0] < second_poll, "the refused tag has a bad sample of the first poll"
                good = [f"u{code}/{address}" for address in range(100) if address != 50]
                judge(run, good, marked_max=code in MOMENTARY)
                assert all(sample.quality for sample in run.store.of(f"u{code}/50"))
            assert run.source("meter").tags_bad == len(CODES)
            device.clear()
            for code in CODES:
                await run.wait_good(f"u{code}/50")
            assert run.source("meter").tags_bad == 0


async def test_a_bad_row_added_to_a_running_file_costs_no_other_tag_a_slot(tmp_path: Path) -> None:
    """Rows of refused registers are added to the file of a running source, into the middle of blocks. The tags that
    were there go on with a value in every poll."""
    bad = {45: 2, 150: 4, 230: 3}
    with modbus_device(tmp_path / "device", units=UNITS) as device:
        counting(device)
        for address, code in bad.items():
            device.fault("exception", code, unit=1, at=(address, address))
        there = [address for address in range(300) if address % 5]  # a hole in every five; the bad ones are in holes
        rows = [(f"f/{address}", 1, "holding", address, "uint16") for address in there]
        settings = source(device.port, tmp_path, joined(tag_map(rows)))
        async with ingesting(settings, times=SWIFT) as run:
            await polls_pass(run, 3)
            before = {address: len(run.store.of(f"f/{address}")) for address in there}
            judge(run, [f"f/{address}" for address in there], marked_max=1)
            for address in bad:
                rows.append((f"f/{address}", 1, "holding", address, "uint16"))
                settings.tags_file.write_text(joined(tag_map(rows)))
                await wait_until_async(lambda a=address: run.store.of(f"f/{a}"), f"the row of {address}")
                await polls_pass(run, 2)
            for address in there:
                later = run.store.of(f"f/{address}")[before[address] :]
                assert not [sample for sample in later if sample.quality], f"f/{address} was marked bad"
            judge(run, [f"f/{address}" for address in there], marked_max=1)
            assert not [sample for address in bad for sample in run.store.good(f"f/{address}")]
