"""A source and its supervisor at a server with random faults, in virtual time: no value is lost without a gap fact."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any, cast
from unittest.mock import patch

import pytest

from agent.concurrency import TaskGroup
from agent.ingest.delivery import Delivery
from agent.ingest.opcua import source as source_module
from agent.ingest.opcua.source import OpcuaSource
from agent.ingest.opcua.subscriptions.losses import Absences
from agent.ingest.opcua.subscriptions.monitoring import Monitoring
from agent.ingest.ports import StoredFacts
from agent.ingest.recorder import Recorder
from agent.ingest.supervision.joint_search import JointSearch
from agent.ingest.tags.tag_map import Tag, TagMap
from agent.settings.sources import OpcuaSourceSettings
from tests.ingest.opcua.faulty_server import JUDGED, OTHERS, REFUSALS, FaultyServer
from tests.ingest.opcua.sources import tag
from tests.ingest.simulated import Before, CommittingStore, Killed, WatchedSupervisor, fault_of, us
from tests.sim import first_seed, patient, scaled

pytestmark = pytest.mark.usefixtures("quiet")

CALM_S = 60
DEFECT_SEEDS = 60


class Simulation:
    """One server, and a source with changing tags of it in several processes, one after the other."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.server, self.store = FaultyServer(self.random), CommittingStore()
        choice = self.random.choice
        self.settings = OpcuaSourceSettings(
            "plc",
            "opc.tcp://plc",
            Path("t.csv"),
            parked_retry_ms=choice([100, 2_000]),
            liveness_timeout_ms=3_000,
            items_per_subscription_max=choice([2, 5, 100]),
            reconnect_delay_ms=50,
            reconnect_delay_max_ms=200,
            items_per_call_max=choice([1, 3, 100]),
            buffer_values_max=choice([1_000, 50_000]),
            publish_requests=choice([1, 4]),
            history_values_per_s_max=0,
            events=(),
        )
        self.supervisor: WatchedSupervisor

    async def run(self) -> None:
        """Processes that are stopped or killed, then one that ends in a calm in which everything comes back; then the
        judgement."""
        with patch.object(source_module, "open_session", self.server.open_session):
            for _ in range(self.random.choice([0, 0, 1, 2])):
                await self._run_process(self.random.randint(5, 80), is_killed=self.random.random() < 0.5)
                for _ in range(self.random.randint(0, 5)):
                    await asyncio.sleep(0.5)  # tidy: virtual time
                    self.server.change_values()
            await self._run_process(self.random.randint(30, 150), is_last=True)
        missing = self.find_missing()
        assert not missing, f"missing: {missing[:5]}"

    async def _run_process(self, acts: int, *, is_killed: bool = False, is_last: bool = False) -> None:
        stored = cast(StoredFacts, Before(self.store))
        recorder, search = Recorder("plc", "plant-a", self.store), JointSearch(stored)
        self.supervisor = WatchedSupervisor(self.settings, self._draw_map(), recorder, stored, None, search)
        self.supervisor.begin_recording(None)
        try:
            async with TaskGroup() as group:
                self.supervisor.start(group)
                try:
                    for _ in range(acts):
                        await asyncio.sleep(self.random.choice([0, 0.05, 0.2, 0.5, 1.5]))  # tidy: virtual time
                        self._disturb()
                        self._run_plant()
                    if is_last:
                        await self._calm_down()
                    if is_killed:
                        raise Killed
                finally:
                    self.supervisor.stop()
        except* Killed:
            self.store.kill()
        self.store.commit()

    def _disturb(self) -> None:
        """An operator edits tags, the server refuses others, the store does."""
        act = self.random.random()
        if act < 0.12:
            self.supervisor.offer(self._draw_map())
        elif act < 0.2 and self.server.session is not None:
            refused = self.random.choices([*JUDGED, *OTHERS], k=self.random.randint(0, 4))
            self.server.session.refusals = {(node, ""): self.random.choice(REFUSALS) for node in refused}
        elif act < 0.22:
            self.supervisor.retry()
        elif act < 0.25:
            self.store.refusing = not self.store.refusing
        elif act < 0.28:
            self.store.toggle_limits(self.random)

    def _run_plant(self) -> None:
        self.server.change_values()
        if not self.server.happens(0.25):  # otherwise later, and more at once
            self.server.publish()
        assert not self.supervisor.unexpected, f"unexpected: {self.supervisor.unexpected}"

    async def _calm_down(self) -> None:
        """All faults end: every tag of the last map is good again, and nothing is left open."""
        self.server.recover()
        self.store.recover()
        last = self._draw_map()
        self.supervisor.offer(last)
        for _ in range(2 * CALM_S):
            await asyncio.sleep(0.5)  # tidy: virtual time
            self._run_plant()
        assert self.supervisor.is_connected, f"not connected: {self.supervisor.statistics().last_error}"
        for name in (read.name for read in last.tags):
            newest = self.store.of(name)[-1:]
            is_current = newest and newest[0].quality == 0 and newest[0].value > self.server.value - 20
            assert is_current, f"not current: {name}, {newest} at {self.server.value}"
        assert set(self.store.complete) == {("plc", "")}, f"not complete: {self.store.complete}"

    def find_missing(self) -> list[tuple[int, int, float]]:
        """The values of judged nodes, from the first good sample of each to its last, that are neither stored nor in
        the time of a gap fact."""
        gaps = [(us(fact["first_time"]), us(fact["last_time"]), fact["tags"]) for fact in self.store.told()]
        missing = list[tuple[int, int, float]]()
        for node in JUDGED:
            samples = self.store.of(f"a/{node}")
            times = [sample.source_time_ns for sample in samples if sample.quality == 0]
            stored = {(sample.source_time_ns // 100, sample.value) for sample in samples}
            spans = [(first, last) for first, last, tags in gaps if f"tag:a/{node}" in tags]
            missing += [
                (node, time_ns, value)
                for (judged, time_ns), value in self.server.truth.items()
                if judged == node
                and min(times) < time_ns < max(times)
                and (time_ns // 100, value) not in stored
                and not any(first <= time_ns // 1_000 <= last for first, last in spans)
            ]
        return missing

    def _draw_map(self) -> TagMap:
        """The judged nodes, and others in some order, monitored in some way."""
        nodes = [*JUDGED, *self.random.sample(OTHERS, self.random.randint(0, len(OTHERS)))]
        self.random.shuffle(nodes)
        return TagMap("t.csv", tuple(tag(node) if node in JUDGED else self._draw_tag(node) for node in nodes))

    def _draw_tag(self, node: int) -> Tag:
        choice = self.random.choice
        monitoring = Monitoring(sampling_interval_ms=choice([0, 100]), deadband=choice([0.0, 0.5]))
        point = replace(tag(node).point, monitoring=choice([Monitoring(), Monitoring(), Monitoring(), monitoring]))
        return tag(node, point, unit=choice(["", "", "", "a", "b", "c"]))


def find_fault(seed: int) -> str:
    """What is wrong in that simulation; empty: nothing."""
    return fault_of(Simulation(seed).run(), seed)


@patient
def test_no_value_is_lost_without_a_gap() -> None:
    """Whatever the server, the store and the operator do: each value from the first good one to the last is stored or
    in the time of a gap fact, and afterwards every tag is good, and complete. A kept, transferred or new session,
    ended subscriptions, lost and repeated notifications, refused items, new tag maps, a store that refuses, and
    processes that are stopped or killed."""
    first = first_seed()
    found = {seed: fault for seed in range(first, first + scaled(8, 5_000)) if (fault := find_fault(seed))}
    assert not found


async def _declares_none(*_: object) -> None:
    """Declares no notification that did not arrive."""


def _ends_quietly(self: Absences, tags: Sequence[int], *_: object) -> None:
    """Ends the absence of these tags without a loss."""
    for absent in tags:
        self._since.pop(absent, None)


@pytest.mark.parametrize(
    "owner, name, broken, found",
    [
        (OpcuaSource, "_note_missing", _declares_none, "missing"),
        (OpcuaSource, "take_missed", lambda _: False, "missing"),
        (Absences, "end_absence", _ends_quietly, "missing"),
        (Absences, "request", lambda *_: None, "not complete"),
        (Delivery, "present", lambda _, tags: list(tags), "unexpected"),
    ],
)
def test_the_judge_finds_defects(
    owner: type, name: str, broken: Callable[..., Any], found: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each check fails for a source with one defect; one that cannot fail proves nothing."""
    monkeypatch.setattr(owner, name, broken)
    assert any(find_fault(seed).startswith(found) for seed in range(DEFECT_SEEDS))
