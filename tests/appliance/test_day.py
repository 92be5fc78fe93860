"""A day's traffic of 1,000 tags a second through a node on the smallest gateway's limits, compressed in time: one
processor, the memory of the unit's MemoryMax, and a disk that takes long for each sync.

`make appliance-test` runs a day, 86.4 million values; `make test` a hundredth of an hour. FACTS=n chooses.
"""

import contextlib
import os
import random
import re
import shutil
import subprocess
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from agent.demo.processes import Child
from agent.fact_store import StoreReader
from tests.foreign.modbus.device import LIBMODBUS, ModbusDevice, modbus_device
from tests.support import command
from tests.support.mosquitto import HOST, Mosquitto
from tests.waiting import wait_until

ROOT = Path(__file__).resolve().parents[2]
TAGS = 1000
BLOCK = 125  # registers of a read, here a tag each
FACTS = int(os.environ.get("FACTS") or (86_400_000 if "APPLIANCE" in os.environ else 36_000))
POLL_INTERVAL_MS = (
    10  # a hundred times as fast as once a second: a day takes a quarter of an hour where the processor is free
)
SYNC_US = 30_000  # an eMMC's slow syncs; a good one takes 2 ms
SAMPLE_S = 5.0
CHANGE_S = 0.02
LATE_MS = 1500  # longer than a source waits for an answer
STACK_BYTES = 1 << 20  # of each thread; else the limit below counts the 8 MB that threads may use and do not
LIMIT_S = 60.0 + FACTS / 3_000

pytestmark = [pytest.mark.system, pytest.mark.timeout(LIMIT_S * 2)]


def memory_max_bytes() -> int:
    """The unit's MemoryMax."""
    (mib,) = re.findall(r"^MemoryMax=(\d+)M$", (ROOT / "systemd" / "bsfg@.service").read_text("utf-8"), re.MULTILINE)
    return int(mib) << 20


def settings(folder: Path, zone: str, broker: Mosquitto, peer: str, more: str = "") -> Path:
    """A node's file."""
    (folder / zone).mkdir()
    file = folder / zone / "node.toml"
    file.write_text(
        f'[node]\nzone = "{zone}"\n[store]\ncommit_interval_ms = 1000\n{broker.section(zone, "b")}'
        f'[[peer]]\nbroker = "b"\n{peer}\n{more}'
    )
    return file


@contextmanager
def node(file: Path, *before: str) -> Iterator[Child]:
    """`bsfg run`, with limits in front of it."""
    child = Child(file.parent.name, [*before, *command.words("run", "--config", str(file))], file.with_name("log"))
    try:
        child.start()
        child.wait_ready(lambda: answers(file))
        yield child
    finally:
        child.stop()


def answers(file: Path) -> bool:
    """Whether a node is there to be asked."""
    return bool(command.bsfg(file.parent, "status", "--config", str(file), "--json").stdout)


def offset(file: Path) -> int:
    """How many facts of the stream a node has."""
    with contextlib.closing(StoreReader(file.parent / "state" / "facts.db")) as reader:
        return reader.end_offset("facts.telemetry")


def rows(file: Path, statement: str) -> Iterator[list[str]]:
    """What a statement finds in a node's store."""
    printed = command.bsfg(file.parent, "sql", "--csv", "--config", str(file), statement)
    assert printed.returncode == 0, printed.stderr
    return (line.split(",") for line in printed.stdout.splitlines()[1:])


def bad_tags(file: Path) -> int:
    """How many tags of the device have a bad latest value; unknown values of the node's health have a quality, too."""
    asked = "select quality from latest where subject like 'tag:a/%'"
    return sum(int(quality) != 0 for (quality,) in rows(file, asked))


def process_of(child: Child) -> int:
    """The node itself: the last of strace, prlimit and taskset's descendants."""
    pid = child.pid
    while below := Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
        pid = int(below[0])
    return pid


def peak_bytes(pid: int) -> int:
    """The most memory that a process had."""
    (kib,) = re.findall(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    return int(kib) << 10


class Record:
    """The device's own log: how often it answered a read of each register."""

    def __init__(self, device: ModbusDevice) -> None:
        self._device, self._seen, self._rng = device, 0, random.Random(1)
        self.answered, self.in_parts = [0] * TAGS, [0] * TAGS
        self.spoiled = 0
        for first in range(0, TAGS, BLOCK):
            device.count(1, "holding", first, first)

    def change(self) -> None:
        """Let the values of all registers move that do not count."""
        for first in range(0, TAGS, BLOCK):
            self._device.set(1, "holding", first + 1, *self._rng.choices(range(1000, 1256), k=BLOCK - 1))

    def read(self) -> None:
        """Take over what is new in the log."""
        for asked in self._device.asked(self._seen):
            self._seen += 1
            self.spoiled += asked.outcome != "good"
            for register in range(asked.address, asked.address + asked.count) if asked.outcome == "good" else ():
                self.answered[register] += 1
                self.in_parts[register] += asked.count != BLOCK


def settle(file: Path, record: Record) -> tuple[int, int]:
    """Compare the stored values with the device's record: how many values there are, and how many answers of a block
    came too late to be used.

    The first register of a block counts how often it was read, so its stored values are the numbers of the answers:
    none may be there twice, and where one is missing the tag was bad. The other registers of the block came with it.
    Only a read in parts, in which the node searches for what was not answered, reads a register twice for one value.
    """
    telemetry = "from facts where stream = 'facts.telemetry' and kind = 'sample'"
    firsts = ",".join(f"'tag:a/t{first}'" for first in range(0, TAGS, BLOCK))
    last, late, unmarked, is_bad = Counter[int](), Counter[int](), Counter[int](), set[int]()
    counted = f"select subject, value, quality {telemetry} and subject in ({firsts})"
    for subject, value, quality in rows(file, counted):
        first = number_of(subject)
        if int(quality):
            is_bad.add(first)
            continue
        missing = (int(value) - last[first] - 1) % 2**16
        (late if first in is_bad else unmarked)[first] += missing
        last[first] += missing + 1
        is_bad.discard(first)
    good = Counter[int]()
    for subject, count in rows(file, f"select subject, sum(quality = 0) {telemetry} group by subject"):
        good[number_of(subject)] = int(count)
    for register in range(TAGS):
        first = register - register % BLOCK
        assert last[first] == record.answered[first], "the last answer is in the store"
        assert unmarked[first] <= record.in_parts[first], f"block {first} lost an answer without a mark"
        unused = record.answered[register] - good[register]
        spread = record.in_parts[register] + record.in_parts[first]
        assert abs(unused - late[first]) <= spread, f"register {register}: {unused} answers are not in the store"
    return good.total(), late.total()


def number_of(subject: str) -> int:
    """The register of a tag."""
    return int(subject.removeprefix("tag:a/t"))


def test_a_day_on_the_smallest_gateway(tmp_path: Path) -> None:
    """Every answer of the device is in the IDMZ, in order and once, by the device's own record; an answer that came
    too late is missing, and its tags were marked as bad. The node stays within its memory and was never restarted."""
    if shutil.which("strace") is None:
        pytest.skip("strace is not installed: apt-get install strace")
    if why := LIBMODBUS.why_not():
        pytest.skip(why)
    slow = ["strace", "--quiet=all", "-f", "--seccomp-bpf", "-o", "/dev/null", "-e", "trace=fdatasync,fsync"]
    slow += ["-e", f"inject=fdatasync,fsync:delay_exit={SYNC_US}"]
    limits = ("prlimit", f"--data={memory_max_bytes()}", f"--stack={STACK_BYTES}", "taskset", "-c", "0")
    with (
        Mosquitto.started(tmp_path, zones=("plant-a", "idmz"), links=("plant-a:idmz",)) as broker,
        modbus_device(tmp_path / "device") as device,
    ):
        record = Record(device)
        record.change()
        source = f'[[modbus]]\nname = "d"\nhost = "{HOST}"\nport = {device.port}\naddress_base = 0\n'
        source += f'tags_file = "tags.csv"\npoll_interval_ms = {POLL_INTERVAL_MS}\nreconnect_delay_ms = 50\n'
        plant = settings(tmp_path, "plant-a", broker, 'zone = "idmz"\nexports = ["facts.telemetry"]', source)
        tags = "".join(f"a/t{n},1,holding,{n},uint16\n" for n in range(TAGS))
        (plant.parent / "tags.csv").write_text("tag,unit_id,table,register,type\n" + tags)
        idmz = settings(tmp_path, "idmz", broker, 'zone = "plant-a"\npulls = ["facts.telemetry"]')
        begun_s = time.monotonic()
        with node(idmz), node(plant, *slow, *limits) as running:
            pid, behind = process_of(running), [0]
            device.fault("late", LATE_MS, at=(0, 0), times=1)
            while (here := offset(plant)) < FACTS:
                behind.append(max(0, here - offset(idmz)))
                assert time.monotonic() - begun_s < LIMIT_S, f"{here} facts in {LIMIT_S} s"
                record.read()
                sample_end_s = time.monotonic() + min(SAMPLE_S, FACTS / 50_000)
                while time.monotonic() < sample_end_s:
                    record.change()
                    time.sleep(CHANGE_S)  # tidy: the pace of the plant, nothing waits for it
            device.fault("silent")
            # The values that came last are before these in the log.
            wait_until(lambda: bad_tags(plant) == TAGS, "each tag says that the device is silent", LIMIT_S)
            record.read()
            facts = offset(plant)
            wait_until(lambda: offset(idmz) >= facts, "the IDMZ has all", LIMIT_S)
            peak = peak_bytes(pid)
            assert process_of(running) == pid
        took_s = time.monotonic() - begun_s
    values, late = settle(idmz, record)
    print(
        f"{values:,} values in {took_s:.0f} s, {sum(record.answered):,} answered, {late} blocks late, {record.spoiled} "
        f"reads spoiled, peak {peak >> 20} MiB of {memory_max_bytes() >> 20}, at most {max(behind):,} facts behind"
    )
    assert peak < memory_max_bytes()
    verified = subprocess.run(
        command.words("store", "verify", "--quick", "--config", str(plant)), capture_output=True, text=True, check=False
    )
    assert verified.returncode == 0, verified.stdout
