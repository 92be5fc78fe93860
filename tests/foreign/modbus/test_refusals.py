"""What a device refuses: a register, long reads, everything. Whatever is good beside it has its value in every poll.

Registers of the device count their reads, so no value comes twice. A tag that has as many values as a tag of another
table, which nothing troubles, has a value of every poll.
"""

from pathlib import Path

import pytest

from agent.ingest import quality
from agent.ingest.tags.watch import WatchTimes
from tests.foreign.modbus.device import ModbusDevice, modbus_device, source, tag_map, words_map
from tests.ingest.fakes import in_loop
from tests.ingest.plant import Running, ingesting
from tests.waiting import wait_until_async

pytestmark = [pytest.mark.system, pytest.mark.foreign("libmodbus")]

MOMENTARY = (4, 5, 6)  # exceptions that may be about the moment: the read is made once more before it is split
WITNESS = ("f/witness", 1, "input", 0, "uint16")
POLLS = 15
SWIFT = WatchTimes(settle_s=0.02, settle_max_s=0.2, missing_s=0.5, reread_s=60.0)


def counting(device: ModbusDevice, unit: int = 1) -> None:
    """Every register of the device counts its reads."""
    for table in ("holding", "input"):
        device.count(unit, table, 0, 9_999)


async def polls_pass(run: Running, count: int = POLLS) -> None:
    """Until the witness has been read so often again."""
    await run.wait_good("f/witness", len(run.store.good("f/witness")) + count - 1)


def judge(run: Running, tags: list[str], marked_max: int = 0) -> None:
    """Each of these tags has a value of every poll, once; of so many polls it may have a bad sample instead."""
    polls = len(run.store.good("f/witness"))
    for tag in tags:
        values = [sample.value for sample in run.store.good(tag)]
        marked = len(run.store.of(tag)) - len(values)
        assert sorted(set(values)) == values, f"{tag} has a value twice"
        assert marked <= marked_max, f"{tag} was marked bad {marked} times"
        assert polls - 1 - marked <= len(values) <= polls + 1, f"{tag} has values of {len(values)} of {polls} polls"


@pytest.mark.parametrize("code", [1, 2, 3, 4, 5, 6])
def test_a_refused_register_costs_itself_alone(code: int, tmp_path: Path) -> None:
    """A device that answers an exception for one register of a block, whatever its number: the other 99 have a value in
    every poll, the first included; where the exception may be about the moment, they are marked bad in the first. The
    one is marked bad in the first poll, counted, and good again when the device has changed its mind."""

    @in_loop
    async def story() -> None:
        with modbus_device(tmp_path / "device") as device:
            counting(device)
            device.fault("exception", code, table="holding", at=(50, 50))
            tags = words_map(0, 100) + tag_map([WITNESS]).partition("\n")[2]
            async with ingesting(source(device.port, tmp_path, tags)) as run:
                await polls_pass(run)
                good = [f"f/{address}" for address in range(100) if address != 50]
                judge(run, good, marked_max=code in MOMENTARY)
                refused = run.store.of("f/50")
                assert refused, "the refused tag has no sample"
                assert all(sample.quality for sample in refused)
                first = [
                    run.store.samples.index(("facts.telemetry", s)) for s in (refused[0], run.store.good("f/99")[1])
                ]
                assert first[0] < first[1], "it was marked in the first poll"
                assert run.source("meter").tags_bad == 1
                device.clear()
                await run.wait_good("f/50")
                assert run.source("meter").tags_bad == 0

    story()


def test_a_device_that_takes_short_reads_only(tmp_path: Path) -> None:
    """Reads of more than 20 registers are refused, and nobody said so in the settings. All of 300 tags have a value in
    every poll; later polls ask for nothing that was refused."""

    @in_loop
    async def story() -> None:
        with modbus_device(tmp_path / "device") as device:
            counting(device)
            device.fault("longer", 20, table="holding")
            tags = words_map(0, 300) + tag_map([WITNESS]).partition("\n")[2]
            async with ingesting(source(device.port, tmp_path, tags)) as run:
                await polls_pass(run)
                before = device.status()["requests"]
                await polls_pass(run)
                judge(run, [f"f/{address}" for address in range(300)])
            later = device.asked(before)
            assert not [one for one in later if one.outcome != "good"]
            reads = [one for one in later if one.table == "holding"]
            polls = len([one for one in later if one.table == "input"])
            assert len(reads) <= 32 * (polls + 1), (
                "halves of 125 that fit into 20 are 16 registers: 20 reads, some more"
            )

    story()


@pytest.mark.parametrize("code", [1, 2, 3, 4, 5, 6])
def test_a_refusing_unit_is_marked_at_once(code: int, tmp_path: Path) -> None:
    """A unit that refuses everything: each of its 500 tags is marked bad in the first poll, and the unit beside it has a
    value in every poll. When it answers again, every tag has a value."""

    @in_loop
    async def story() -> None:
        with modbus_device(tmp_path / "device", units=(1, 2)) as device:
            counting(device)
            device.fault("exception", code, unit=2)
            tags = words_map(0, 100) + "".join(
                text.partition("\n")[2] for text in (words_map(0, 500, unit=2, scope="g"), tag_map([WITNESS]))
            )
            async with ingesting(source(device.port, tmp_path, tags)) as run:
                await polls_pass(run, 2)
                unmarked = [a for a in range(500) if not run.store.of(f"g/{a}")]
                assert not unmarked, f"{len(unmarked)} of 500 tags have no sample"
                assert run.source("meter").tags_bad == 500
                await polls_pass(run)
                judge(run, [f"f/{address}" for address in range(100)])
                device.clear()
                for address in range(500):
                    await run.wait_good(f"g/{address}")
                assert run.source("meter").tags_bad == 0

    story()


def test_a_bad_row_added_to_a_running_file_costs_no_other_tag_a_slot(tmp_path: Path) -> None:
    """Rows of refused registers are added to the file of a running source, into the middle of blocks. The tags that were
    there go on with a value in every poll."""

    @in_loop
    async def story() -> None:
        with modbus_device(tmp_path / "device") as device:
            counting(device)
            bad = {45: 2, 150: 4, 230: 3}
            for address, code in bad.items():
                device.fault("exception", code, table="holding", at=(address, address))
            there = [a for a in range(300) if a % 5]  # a hole in every five, the bad ones in some of them
            rows = [WITNESS, *((f"f/{a}", 1, "holding", a, "uint16") for a in there)]
            settings = source(device.port, tmp_path, tag_map(rows))
            async with ingesting(settings, times=SWIFT) as run:
                await polls_pass(run)
                for address in bad:
                    rows.append((f"f/{address}", 1, "holding", address, "uint16"))
                    settings.tags_file.write_text(tag_map(rows))
                    await wait_until_async(lambda a=address: run.store.of(f"f/{a}"), f"the row of {address}")
                    await polls_pass(run, 5)
                judge(run, [f"f/{address}" for address in there])
                assert [s.value for a in bad for s in run.store.good(f"f/{a}")] == []

    story()


def test_a_register_that_begins_to_refuse_costs_itself_alone(tmp_path: Path) -> None:
    """Registers that were good are refused from some moment on, one after the other: each costs the others of its block
    one poll at most, in which they are marked bad."""

    @in_loop
    async def story() -> None:
        with modbus_device(tmp_path / "device") as device:
            counting(device)
            tags = words_map(0, 250) + tag_map([WITNESS]).partition("\n")[2]
            bad = (7, 124, 125, 200)
            async with ingesting(source(device.port, tmp_path, tags)) as run:
                await polls_pass(run)
                for address in bad:
                    device.fault("exception", 4, table="holding", at=(address, address))
                    await run.wait_bad(f"f/{address}", quality.BAD_DEVICE_FAILURE)
                    await polls_pass(run, 3)
                judge(run, [f"f/{address}" for address in range(250) if address not in bad], marked_max=len(bad))
                assert run.source("meter").tags_bad == len(bad)

    story()
