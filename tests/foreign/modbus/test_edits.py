"""Tag files are edited at random while 2,000 tags of three devices are polled: one device is well, one dies and
returns, one refuses. Tags that nobody edits lose and double nothing. `make sim` makes 300 edits.

The registers of the devices count their reads, so the values of a tag only rise, and a value that comes twice shows. A
poll is from one value of a coil, which is read before all registers, to its next: in each, each tag that nobody edits
has one value. How many polls there were is in the times of the values: what is missing in the grid is what the
source itself counts as missed.
"""

from __future__ import annotations

import random
import time
from array import array
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from agent.columns import SampleColumns
from agent.message import TagDefinition
from agent.settings.sources import ModbusSourceSettings
from tests.foreign.modbus.device import IMPATIENT, ModbusDevice, modbus_device, source, tag_map
from tests.foreign.plant import SWIFT
from tests.ingest.fakes import FakeStore, done
from tests.ingest.plant import Running, ingesting
from tests.sim import first_seed, patient, scaled
from tests.waiting import wait_until_async

INTERVAL_MS = 200
ADDRESSES = 1_000
POLLS_PER_LIFE_MAX = 200  # of the dying device
LIVES_MAX = 320
EDITABLE_EVERY = 8  # each eighth address belongs to the tags that are edited, so every edit is amid a block
REFUSED = {  # by exception: addresses; those that 8 does not divide are in the file from the beginning
    2: (*range(0, 4_000, 128), *range(3, 4_000, 200)),
    3: (*range(64, 4_000, 512),),
    4: (*range(8, 4_000, 320),),
}
SIZES = {"well": 800, "dying": 600, "refusing": 600}

Row = tuple[object, ...]


class Tally(FakeStore):
    """Takes in samples and keeps of each tag its values, their times, and the places of its bad samples. Quick for
    thousands of tags."""

    def __init__(self) -> None:
        super().__init__()
        self._numbers: dict[TagDefinition, int] = {}
        self._of_subject: dict[str, list[int]] = {}  # in the order of their definitions
        self.values: dict[int, array[int]] = {}
        self.bad_at: dict[int, list[int]] = {}  # how many values there were before
        self.times: dict[int, array[int]] = {}

    def define(self, definitions: Sequence[TagDefinition]) -> Future[list[int]]:
        numbers = [self._numbers.setdefault(definition, len(self._numbers) + 1) for definition in definitions]
        for definition, number in zip(definitions, numbers, strict=True):
            self._of_subject.setdefault(definition.subject, []).append(number)
        return done(numbers)

    def append_columns(self, _stream: str, columns: SampleColumns) -> Future[Any]:
        for sample in columns.rows():
            values = self.values.setdefault(sample.tag, array("q"))
            if sample.quality:
                self.bad_at.setdefault(sample.tag, []).append(len(values))
            else:
                assert isinstance(sample.value, int)
                values.append(sample.value)
                self.times.setdefault(sample.tag, array("q")).append(sample.source_time_ns)
        return done(None)

    def number(self, tag: str) -> int:
        """The number of a tag by its scope/id; the newest, if its definition has changed."""
        return self._of_subject.get(f"tag:{tag}", [0])[-1]

    def is_told(self, tag: str) -> bool:
        """Whether a tag has a sample. A loss stands once: of a tag that is refused and whose definition then changes,
        it is under the number before."""
        numbers = self._of_subject.get(f"tag:{tag}", [0])
        told = next((number for number in reversed(numbers) if number in self.values), None)
        return told is not None and (told == numbers[-1] or self.bad_at.get(told, [-1])[-1] == len(self.values[told]))


@dataclass
class Edited:
    """A source's tag file: rows that stay as they are, and rows that come, go and change."""

    name: str
    kept: list[Row]
    pool: list[int]
    settings: ModbusSourceSettings | None = None
    loose: dict[int, Row] = field(default_factory=dict)

    @classmethod
    def of(cls, name: str, count: int) -> Edited:
        """A file of so many rows; a tenth of them is edited."""
        addresses = range(count * EDITABLE_EVERY // (EDITABLE_EVERY - 1))
        made = cls(name, [(f"{name}/witness", 1, "coil", 0, "bool")], [])
        for address in addresses:
            if address % EDITABLE_EVERY:
                made.kept.append(made.row(address))
            else:
                made.pool.append(address)
        for address in made.pool[::2]:
            made.loose[address] = made.row(address)
        return made

    def row(self, address: int, kind: str = "uint16") -> Row:
        """The row of an address of unit 1."""
        return (f"{self.name}/{address}", 1, "holding", address, kind)

    def text(self, rows: list[Row] | None = None) -> str:
        """The file."""
        return tag_map([*self.kept, *self.loose.values()] if rows is None else rows)


# --- edits ------------------------------------------------------------------------------------------------------------


def add(file: Edited, chance: random.Random) -> str:
    """Some rows more, of registers that are good or refused."""
    for address in chance.sample(file.pool, 3):
        file.loose[address] = file.row(address)
    return file.text()


def remove(file: Edited, chance: random.Random) -> str:
    """Some rows fewer."""
    for address in chance.sample(sorted(file.loose), min(3, len(file.loose))):
        del file.loose[address]
    return file.text()


def change(file: Edited, chance: random.Random) -> str:
    """Other types in some rows."""
    for address in chance.sample(sorted(file.loose), min(3, len(file.loose))):
        file.loose[address] = file.row(address, chance.choice(["int16", "bit0", "uint16"]))
    return file.text()


def shuffle(file: Edited, chance: random.Random) -> str:
    """The same rows in another order."""
    rows = [*file.kept, *file.loose.values()]
    chance.shuffle(rows)
    return file.text(rows)


def spoil(file: Edited, chance: random.Random) -> str:
    """A file with a mistake, which changes nothing."""
    return file.text() + chance.choice(["x/y,1,holding,70000,uint16,\n", "x/y,1,holding,5,uint15,\n", "x/y,1\n"])


def empty(_file: Edited, _chance: random.Random) -> str:
    """An empty file, as an editor leaves it for a moment."""
    return ""


EDITS: tuple[Callable[[Edited, random.Random], str], ...] = (
    *(add, add, add, remove, remove, change, change, shuffle, spoil, empty),
)


def write(file: Edited, text: str, chance: random.Random) -> None:
    """In place, or under another name that takes the place."""
    assert file.settings is not None
    path = file.settings.tags_file
    if chance.random() < 0.5:
        path.write_text(text)
    else:
        beside = path.with_suffix(".new")
        beside.write_text(text)
        beside.replace(path)


# --- devices ----------------------------------------------------------------------------------------------------------


def prepare(device: ModbusDevice, name: str, life: int = 0) -> None:
    """What a device is before anything is asked of it. It counts on from a number that no life before has reached."""
    device.set(1, "holding", 0, *[life * POLLS_PER_LIFE_MAX] * ADDRESSES)
    device.count(1, "holding", 0, ADDRESSES - 1)
    if name == "refusing":
        device.fault("exception", 4, unit=2)
        for code, addresses in REFUSED.items():
            for address in addresses:
                device.fault("exception", code, table="holding", at=(address, address))


def trouble(device: ModbusDevice, chance: random.Random, life: int) -> None:
    """The dying device dies, or returns, or is silent for a moment."""
    if not device.is_running:
        device.start()
        prepare(device, "dying", life)
        return
    match chance.randrange(4):
        case 0 | 1:
            device.kill()
        case 2:
            device.cut()
        case 3:
            device.fault("silent", times=3)


# --- the judge --------------------------------------------------------------------------------------------------------


def unedited(store: Tally, file: Edited) -> dict[str, int]:
    """The good registers that nobody edits, with their numbers."""
    refused = {address for all_of in REFUSED.values() for address in all_of if file.name == "refusing"}
    rows = [row for row in file.kept if row[2] == "holding" and row[1] == 1 and row[3] not in refused]
    return {str(row[0]): store.number(str(row[0])) for row in rows}


def judge(store: Tally, run: Running, file: Edited, begin_ns: int) -> None:
    """What must hold of the tags that nobody edited, from a time on when all of them had been read."""
    tags = unedited(store, file)
    counts = [len(store.values[number]) for number in tags.values()]
    statistics = run.source(file.name)
    connects, missed = statistics.connects_total, statistics.polls_missed_total
    print(f"{file.name}: {len(tags)} tags, {min(counts)} to {max(counts)} values each, {connects} connections")
    for tag, number in tags.items():
        assert all(earlier < later for earlier, later in pairwise(store.values[number])), f"{tag} has a value twice"
    if file.name == "dying":
        assert max(counts) - min(counts) <= connects, "a poll that a loss cuts short has values of some; others of all"
        return
    assert connects == 1
    polls = [at for at in store.times[store.number(f"{file.name}/witness")] if at >= begin_ns]
    for tag, number in tags.items():
        times = [at for at in store.times[number] if polls[0] <= at < polls[-1]]
        assert len(times) == len(polls) - 1, f"{tag} has {len(times)} values of {len(polls) - 1} polls"
        assert all(polls[i] <= at < polls[i + 1] for i, at in enumerate(times)), (
            f"{tag} lacks a poll, and has one twice"
        )
        assert not any(store.bad_at.get(number, [])), f"{tag} was marked bad after it had values"
    slots = round((polls[-1] - polls[0]) / (INTERVAL_MS * 1e6)) + 1
    print(f"{file.name}: {len(polls)} polls in {slots} slots, {missed} counted as missed")
    assert slots - len(polls) <= missed + 1, "polls are missing that the source does not count"


@pytest.mark.system
@pytest.mark.foreign("libmodbus")
@pytest.mark.usefixtures("unhurried")
@patient
async def test_edits_cost_no_other_tag_anything(tmp_path: Path) -> None:
    """After 30 edits (`make sim`: 300) of three tag files, good, bad and half written, every tag that was not edited
    has a value of each poll, none twice; and what the files say last is in force."""
    seed, edits = first_seed(), scaled(30, 300)
    chance = random.Random(seed)
    files = [Edited.of(name, count) for name, count in SIZES.items()]
    files[2].kept += [(f"deaf/{address}", 2, "holding", address, "uint16") for address in range(100)]
    store = Tally()
    with ExitStack() as stack:
        devices = {name: stack.enter_context(modbus_device(tmp_path / name, units=(1, 2))) for name in SIZES}
        for file in files:
            prepare(devices[file.name], file.name)
            port, text = devices[file.name].port, file.text()
            limits = {"poll_interval_ms": INTERVAL_MS, **(IMPATIENT if file.name == "dying" else {})}
            file.settings = source(port, tmp_path, text, name=file.name, **limits)
        settings = [file.settings for file in files if file.settings is not None]
        async with ingesting(*settings, store=store, times=SWIFT) as run:
            begin_ns = await begun(store, files)
            witness = store.number("well/witness")
            for number in range(edits):
                file, edit = chance.choice(files), chance.choice(EDITS)
                print(f"{number} {file.name} {edit.__name__}")
                write(file, edit(file, chance), chance)
                if chance.random() < 0.4:
                    trouble(devices["dying"], chance, life=number + 1)
                await polls_pass(store, witness, chance.choice([0, 1, 1, 2, 4]))
            await settled(store, run, files, devices["dying"])
        for file in files:
            judge(store, run, file, begin_ns)


async def begun(store: Tally, files: list[Edited]) -> int:
    """Until every good tag that nobody edits has a value; the time of that. What a device refuses is learned by
    then."""
    for file in files:
        await wait_until_async(
            lambda f=file: all(store.values.get(number) for number in unedited(store, f).values()), file.name
        )
    return time.time_ns()


async def polls_pass(store: Tally, witness: int, count: int) -> None:
    """Until the well device was polled so often again."""
    before = len(store.values[witness])
    await wait_until_async(lambda: len(store.values[witness]) >= before + count, "polls")


async def settled(store: Tally, run: Running, files: list[Edited], dying: ModbusDevice) -> None:
    """Until all files are good and in force, and the dying device is back."""
    if not dying.is_running:
        trouble(dying, random.Random(), life=LIVES_MAX)
    for file in files:
        assert file.settings is not None
        file.settings.tags_file.write_text(file.text())
    for file in files:
        count = len(file.kept) + len(file.loose)
        await wait_until_async(
            lambda f=file, n=count: run.source(f.name).tags == n and not run.source(f.name).tags_problem,
            f"{file.name} in force",
        )
        for row in file.loose.values():
            tag = str(row[0])
            await wait_until_async(lambda tag=tag: store.is_told(tag), tag)
    before = {row[0]: len(store.values[store.number(str(row[0]))]) for row in files[1].kept[:5]}
    for tag, count in before.items():
        await wait_until_async(lambda t=tag, n=count: len(store.values[store.number(str(t))]) > n, str(tag))
