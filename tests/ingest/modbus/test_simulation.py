"""A source and its supervisor at a gateway with random faults, in virtual time: no value is another register's or an
old one, and no interval without a value is undeclared."""

import asyncio
import itertools
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from random import Random
from typing import Any, cast

import pytest

from agent.concurrency import TaskGroup
from agent.ingest.delivery import Delivery, record_ended
from agent.ingest.modbus.address import Register, Table
from agent.ingest.modbus.decode import value_type
from agent.ingest.modbus.line import Endpoints
from agent.ingest.modbus.line.answers import AnswerMatcher
from agent.ingest.modbus.source import ModbusSource
from agent.ingest.modbus.units import Unit
from agent.ingest.ports import StoredFacts
from agent.ingest.quality import TAG_REMOVED, is_bad
from agent.ingest.recorder import Recorder
from agent.ingest.sampling import SamplingRule
from agent.ingest.supervision.joint_search import JointSearch
from agent.ingest.supervision.supervisor import SourceSupervisor
from agent.ingest.tags.tag_map import Tag, TagMap
from agent.message import Sample, TagDefinition
from agent.settings.sources import ModbusSourceSettings
from tests.ingest.modbus.faulty_device import EPOCH_S, REGISTERS, TABLES, UNITS, FaultyDevice, epoch, place
from tests.ingest.simulated import Before, CommittingStore, Killed, WatchedSupervisor, fault_of, us
from tests.sim import first_seed, patient, scaled
from tests.support.virtual_time import STARTED_S

pytestmark = pytest.mark.usefixtures("quiet")

CALM_S = 150
NEXT_POLL_NS, TAKE_OVER_NS = 3 * 10**9, 15 * 10**9  # from an edit to the poll that takes it over: usually, at most
DEFECT_SEEDS = 60
KINDS = {1: "uint16", 2: "uint32", 4: "uint64"}  # by registers


class Simulation:
    """One gateway, and a source with changing tags of it in several processes, one after the other. `meant`: the
    register of each definition. `maps`: since when which map was the last, on the wall clock."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.device, self.store = FaultyDevice(self.random), CommittingStore()
        choice = self.random.choice
        self.settings = ModbusSourceSettings(
            "plc",
            Path("t.csv"),
            0,
            host="192.0.2.1",
            transport="rtu_over_tcp" if self.device.is_rtu else "tcp",
            timeout_ms=choice([100, 300]),
            registers_per_read_max=choice([1, 2, 5, 125]),
            hole_max=choice([0, 3, 16]),
            connections_max=choice([1, 2]),
            close_after_poll=self.random.random() < 0.1,
            unit_retry_ms=choice([100, 1_000]),
            unit_retry_max_ms=5_000,
            reconnect_delay_ms=50,
            reconnect_delay_max_ms=500,
            request_pause_ms=choice([0, 0, 5]),
        )
        where = [(unit, table) for unit in UNITS for table in TABLES for _ in range(self.random.randint(0, 3))]
        self.registers = [self._draw_register(unit, table) for unit, table in where or [(1, TABLES[0])]]
        self.versions = [0] * len(self.registers)  # of the definitions
        self.meant = dict[TagDefinition, Register]()
        self.maps = list[tuple[int, TagMap]]()

    async def run(self) -> None:
        """Processes that are stopped or killed, then one that ends in a calm; then the judgement."""
        with self.device.reachable():
            for _ in range(self.random.randint(0, 2)):
                await self._run_process(self.random.randint(5, 60), is_killed=self.random.random() < 0.4)
                if self.random.random() < 0.5:
                    self.store.recover()
                await asyncio.sleep(self.random.choice([0, 1, 10]))  # tidy: virtual time
            await self._run_process(self.random.randint(20, 120), is_last=True)
        self._judge_values()
        self._judge_times()

    async def _run_process(self, acts: int, *, is_killed: bool = False, is_last: bool = False) -> None:
        tags = self._draw_map() if not self.maps or self.random.random() < 0.5 else self.maps[-1][1]
        self.maps.append((time.time_ns(), tags))
        before, recorder_of = Before(self.store), partial(Recorder, zone="plant-a", store=self.store)
        stored = cast(StoredFacts, before)
        supervisor = WatchedSupervisor(self.settings, tags, recorder_of("plc"), stored, Endpoints, JointSearch(stored))
        supervisor.begin_recording(None)
        readers = {tag.definition.subject: {"plc"} for tag in tags.tags}
        try:
            async with TaskGroup() as group:
                removal = record_ended(before.find_removed(readers), readers, recorder_of, declares=True)
                removing = group.create_task(removal, name="removed")
                supervisor.start(group)
                for _ in range(acts):
                    await asyncio.sleep(self.random.choice([0, 0.05, 0.3, 1.0, 3.0]))  # tidy: virtual time
                    self.device.disturb()
                    self._disturb(supervisor)
                if is_last:
                    await self._calm_down(supervisor)
                if is_killed:
                    raise Killed  # noqa: TRY301 as cancelled as a process
                removing.cancel()
                supervisor.stop()
        except* Killed:
            self.device.break_all()
            self.store.kill()
        self.store.commit()

    def _disturb(self, supervisor: SourceSupervisor) -> None:
        """An operator edits tags, the store refuses."""
        act = self.random.random()
        if act < 0.1:
            self._offer_map(supervisor)
        elif act < 0.12:
            supervisor.retry()
        elif act < 0.15:
            self.store.refusing = not self.store.refusing
        elif act < 0.18:
            self.store.toggle_limits(self.random)

    async def _calm_down(self, supervisor: WatchedSupervisor) -> None:
        """All faults end: every tag of the last map is good again."""
        self.device.recover()
        self.store.recover()
        self._offer_map(supervisor)
        await asyncio.sleep(CALM_S)  # tidy: virtual time
        assert not supervisor.unexpected, f"unexpected: {supervisor.unexpected}"
        assert supervisor.is_connected, f"not connected: {supervisor.statistics().last_error}"
        for name in (read.name for read in self.maps[-1][1].tags):
            newest = self.store.of(name)[-1:]
            is_current = newest and newest[0].quality == 0 and time.time_ns() - newest[0].source_time_ns < 5 * 10**9
            assert is_current, f"not current: {name}, {newest} at {time.time_ns()}"

    def _judge_values(self) -> None:
        """Each good value is that of its register, read at its time."""
        longest_s = 6 * self.settings.timeout_ms / 1_000 + 1.5  # from a request to the value of its answer
        for _, sample in self.store.samples:
            if sample.quality != 0:
                continue
            definition = self.store.definitions[sample.tag - 1]
            meant = self.meant[definition]
            words = [divmod(sample.value >> 16 * n & 0xFFFF, 256) for n in range(meant.count)]
            words = words if meant.kind.order[0] else words[::-1]
            first = place(meant.unit_id, meant.table, meant.address)
            assert [high for high, _ in words] == [*range(first, first + meant.count)], f"wrong: {definition} {sample}"
            at_s = sample.source_time_ns / 1e9 - STARTED_S
            epochs = {epoch(at_s - EPOCH_S / 2 * n) for n in range(int(longest_s / EPOCH_S * 2))}
            assert len({low for _, low in words}) == 1, f"torn: {definition} {sample}"
            assert words[0][1] in epochs, f"old: {definition} {sample} at {at_s}"

    def _judge_times(self) -> None:
        """From a good value to the next sample, no more than three intervals are undeclared while the tag is in the
        map."""
        series: dict[str, list[Sample]] = defaultdict(list)
        for _, sample in self.store.samples:
            series[self.store.definitions[sample.tag - 1].subject].append(sample)
        facts = [fact for fact in self.store.told() if "first_time" in fact]
        spans = [(1_000 * us(fact["first_time"]), 1_000 * us(fact["last_time"]), fact["tags"]) for fact in facts]
        for subject, samples in series.items():
            times_ns = [sample.source_time_ns for sample in samples if sample.quality != TAG_REMOVED]
            assert times_ns == sorted(times_ns), f"order: {subject} {times_ns}"
            samples.sort(key=lambda sample: sample.source_time_ns)
            mine = [(first_ns, last_ns) for first_ns, last_ns, tags in spans if subject in tags]
            for before, after in itertools.pairwise(samples):
                first_ns, last_ns = before.source_time_ns, after.source_time_ns
                assert last_ns > first_ns or before.tag != after.tag, f"one time: {subject} {before} {after}"
                intervals_ms = self._intervals(subject, first_ns, last_ns)
                if is_bad(before.quality) or not all(intervals_ms):
                    continue
                limit_s = 3.1 * max(intervals_ms) / 1_000 + 0.5
                longest_s = longest_uncovered(mine, first_ns, last_ns) / 1e9
                assert longest_s <= limit_s, f"undeclared: {subject} {longest_s} of {limit_s} s, {before} {after}"

    def _intervals(self, subject: str, first_ns: int, last_ns: int) -> list[int]:
        """The poll intervals of a tag in this time, in ms; 0: it was in no map. An older map may be polled for a
        while."""
        found = [0]
        for at_ns, tags in self.maps:
            if at_ns < last_ns:
                mine = next((read.interval_ms for read in tags.tags if read.definition.subject == subject), 0)
                is_old, is_over = at_ns <= first_ns - NEXT_POLL_NS, at_ns <= first_ns - TAKE_OVER_NS
                found = [*(known for known in found if not is_over and (known or not is_old)), mine]
        return found

    def _offer_map(self, supervisor: SourceSupervisor) -> None:
        self.maps.append((time.time_ns(), self._draw_map()))
        supervisor.offer(self.maps[-1][1])

    def _draw_map(self) -> TagMap:
        """Some of the tags, a few of them with other registers or definitions than before."""
        tags = dict[Register, Tag]()
        for n in self.random.sample(range(len(self.registers)), self.random.randint(1, len(self.registers))):
            if self.random.random() < 0.08:
                self.versions[n] += 1
                if self.random.random() < 0.7:
                    self.registers[n] = self._draw_register(self.random.choice(UNITS), self.registers[n].table)
            register, version = self.registers[n], str(self.versions[n])
            definition = TagDefinition(f"tag:a/{n}", source="plc", address=version, data_type=register.kind.name)
            self.meant[definition] = register
            stream = "facts.telemetry" if n % 4 else "facts.slow"
            interval_ms = register.poll_interval_ms
            tags[replace(register, poll_interval_ms=0)] = Tag(
                n + 1, stream, definition, SamplingRule(), register, interval_ms=interval_ms
            )
        return TagMap("t.csv", tuple(tags.values()))

    def _draw_register(self, unit: int, table: Table) -> Register:
        size = self.random.choice([1, 1, 1, 2, 2, 4])
        kind = value_type(KINDS[size], self.random.choice(["ABCD", "CDAB"]))
        address = self.random.randrange(REGISTERS - size + 1)
        return Register(unit, table, address, size, kind, self.random.choice([500, 1_000, 1_000, 2_000]))


def longest_uncovered(spans: Sequence[tuple[int, int]], first: int, last: int) -> int:
    """The longest time between these two in none of the spans."""
    longest = 0
    for begin, end in sorted(spans):
        if first <= end and begin <= last:
            longest, first = max(longest, begin - first), max(first, end)
    return max(longest, last - first)


def find_fault(seed: int) -> str:
    """What is wrong in that simulation; empty: nothing."""
    return fault_of(Simulation(seed).run(), seed)


@patient
def test_no_value_is_wrong_and_no_loss_undeclared() -> None:
    """Whatever the gateway, the store and the operator do: each good value is that of its register and of its time,
    each interval without one is in a gap fact, and afterwards every tag is good. Late and foreign answers, exceptions,
    silent units that hold the line, closed and half-dead connections, edited tags, a store that refuses, and processes
    that are stopped or killed."""
    first = first_seed()
    found = {seed: fault for seed in range(first, first + scaled(8, 5_000)) if (fault := find_fault(seed))}
    assert not found


def _forgets(self: AnswerMatcher) -> None:
    """Forgets a request that was given up."""
    self._waiting = None
    self._open.clear()


@pytest.mark.parametrize(
    "owner, name, broken, found",
    [
        (AnswerMatcher, "give_up", _forgets, "wrong"),
        (ModbusSource, "_note_missed", lambda *_: None, "undeclared"),
        (Delivery, "add_gap", lambda *_, **__: None, "undeclared"),
        (Unit, "answered", lambda *_: None, "not current"),
        (Unit, "replan", lambda *_: None, "unexpected"),
    ],
)
def test_the_judge_finds_defects(
    owner: type, name: str, broken: Callable[..., Any], found: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each check fails for a source with one defect; one that cannot fail proves nothing."""
    monkeypatch.setattr(owner, name, broken)
    assert any(find_fault(seed).startswith(found) for seed in range(DEFECT_SEEDS))
